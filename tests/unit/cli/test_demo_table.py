"""The table that `make demo` ends with, of what `specc run --format json` writes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from specc.lab.engine.reference import Tie, Verdict
from specc.lab.engine.serving.stats import Stats

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "demo_table.py"
TIE = Tie(3, 5, 1.0, 6, 1.0)
VERDICTS = {
    "yes": [Verdict(True), Verdict(True)],
    "near-ties": [Verdict(True), Verdict(False, (TIE,))],
    "no": [Verdict(False, (TIE,)), Verdict(False, position=4, found=1, expected=2)],
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_row(verdict: str, tmp_path: Path) -> None:
    record = {"completions": [{"check": asdict(check)} for check in VERDICTS[verdict]], "stats": Stats().as_dict()}
    record["stats"] |= {"tokens": 1234567, "mean_accept_len": 2.5071, "decode_seconds": 3.14159}
    (tmp_path / "eagle-chain-adaptive.json").write_text(json.dumps(record))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "eagle-chain-adaptive.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "60"})
    assert done.stdout.splitlines()[1].split() == ["eagle-chain-adaptive", "1,234,567", "2.51", "3.14", verdict]


def test_make_demo_ends_with_it() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\ndemo: setup\n")[1].split("\n\n")[0].splitlines()
    assert recipe[-1].split()[1] == "examples/demo_table.py"
    assert sum("--check" in line and "--format json" in line for line in recipe) == 2
