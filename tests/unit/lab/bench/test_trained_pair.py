"""bench/trained_pair.py at tiny sizes on a CPU, in a process of its own: its modules are called as others here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]
SIZES = {
    "text": str(ROOT / "specc"),
    "megabytes": 0.5,
    "vocabulary": 1024,
    "width": 64,
    "layers": 4,
    "steps": 12,
    "tokens": 1024,
    "sizes": 512,
    "heads": "engine,fp8",
    "prompts": 3,
    "new": 8,
    "device": "cpu",
    "threads": 1,
}


def ran(folder: Path, **more: Any) -> tuple[dict[str, Any], str]:
    """What a run writes, and what it prints."""
    given = [word for key, value in {**SIZES, **more}.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, str(ROOT / "bench" / "trained_pair.py"), *given, "--json", str(folder / "pair.json")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "pair.json").read_text()), done.stdout


def test_a_tiny_pair_learns_and_every_head_writes_the_texts_of_its_target(tmp_path):
    report, printed = ran(tmp_path)
    losses = report["losses"]
    assert losses["unigram"] < losses["uniform"]
    assert losses["target"] < losses["uniform"]
    assert report["sizes"] == {"hidden": 64, "kv_heads": 1, "vocab_size": 1024, "layers": 4}
    assert report["target"] == {"steps": 12, "tokens": 12 * 1024}
    found = {(row["tokens"], row["head"]): row for row in report["accepted"]}
    assert list(found) == [(1024, "engine"), (1024, "fp8"), (512, "engine"), (512, "fp8")]
    assert all(row["wrong_texts"] == 0 and 1 <= row["accepted"] <= 4 for row in found.values())
    assert "| 1024 | 100.00% |" in printed


def test_training_ends_in_time_and_lengths_that_no_time_is_left_for_are_left_out(tmp_path):
    report, _ = ran(tmp_path, steps=100000, seconds=1)
    assert report["target"]["steps"] == report["head"]["steps"] == 1
    assert report["accepted"] == []
