"""`specc bench --against`: SGLang's own kernels compute what a program's do, before either is timed."""

from __future__ import annotations

import sysconfig

import pytest

from .conftest import HERE, ROOT, start
from .oracle_files import PYTHON


def test_both_sides_give_the_same_results() -> None:
    process = start([str(PYTHON), str(HERE / "benched.py"), sysconfig.get_path("purelib")], {"PYTHONPATH": str(ROOT)})
    output, _ = process.communicate()
    if process.returncode:
        pytest.fail(output, pytrace=False)
    assert output.count("same results as SGLang 0.5.23") == 8
