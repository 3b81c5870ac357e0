"""A pytest plugin: writes the first failure, as JSON, to the file that MUTANT_WITNESS names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_BROKEN = {"ImportError", "SyntaxError", "NameError", "TemplateError"}
"""What a mutant raises that is no program any more."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Called after setup, call and teardown of every test."""
    witness = Path(os.environ["MUTANT_WITNESS"])
    if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception) or witness.exists():
        return
    kinds = {kind.__name__ for error in _causes(call.excinfo.value) for kind in type(error).__mro__}
    found = {"test": item.nodeid, "error": call.excinfo.typename, "broken": bool(kinds & _BROKEN)}
    witness.write_text(json.dumps(found))
