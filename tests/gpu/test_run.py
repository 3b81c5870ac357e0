"""`specc run` on a GPU: real models, real text, compared with what transformers' `generate` writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import EXAMPLES, ROOT, RUNNABLE, Built

PROMPTS = ("def main():\n", "import os\nimport sys\n\n", "class Node:\n", "x", "for index in range(")


@pytest.mark.parametrize("name", sorted(RUNNABLE))
def test_text_equals_generate(name: str, example: Callable[[str], Built]) -> None:
    """And drafts are accepted as often as on the CPU: a draft that computes on garbage changes no text."""
    pytest.importorskip("transformers")
    records = [run(name, example(name), device) for device in ("cuda", "cpu")]
    cuda, cpu = (record["stats"]["mean_accept_len"] for record in records)
    assert cpu > 1.2
    assert cuda > 0.9 * cpu
    assert cuda < 1.1 * cpu or "budget" in name  # on a GPU there are the rows of a bucket to share out


def run(name: str, built: Built, device: str) -> dict[str, Any]:
    """What `specc run` reports of an example."""
    models = EXAMPLES / "models"
    command = [sys.executable, "-m", "specc.cli.main", "run", str(built.wheel), "--device", device]
    command += ["--target", str(models / "target")]
    command += ["--draft", str(models / RUNNABLE[name])] if RUNNABLE[name] else []
    command += ["--check", "--format", "json", "--max-new-tokens", "48"]
    command += [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert [item["check"]["identical"] for item in record["completions"]] == [True] * len(PROMPTS)
    return record
