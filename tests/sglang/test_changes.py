"""Recorded differences of `tests/changes` that are of SGLang's adapter, run in SGLang by copies of the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed_copy import run_changed
from sglang_files import CHOICE, ENVIRONMENT, VERSION

REQUESTS = "40"


@pytest.mark.parametrize(
    ("change", "tests"),
    [("attention", "tests/sglang/test_torch_native.py"), ("kind", "tests/sglang/test_two_model.py")],
)
def test_a_change_runs(change: str, tests: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / ENVIRONMENT.folder.name).symlink_to(ENVIRONMENT.folder.resolve())
    said = run_changed(
        change, copy, tests, "-m", "sglang", variables={"SPECC_TEST_REQUESTS": REQUESTS, CHOICE: VERSION}
    )
    assert "skipped" not in said
