"""What runs in a process of its own: the tests of one mutant, and a pytest plugin that notes which of them failed."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PR_SET_PDEATHSIG = 1
BROKEN = {"ImportError", "SyntaxError", "NameError", "TemplateError"}
"""What a mutant raises that is no program any more."""


class Witness:
    """Notes the first failure in a file, as JSON: `test`, `error`, and whether the mutant is `broken`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Called after setup, call and teardown of every test."""
        if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception) or self._path.exists():
            return
        kinds = {kind.__name__ for error in _causes(call.excinfo.value) for kind in type(error).__mro__}
        found = {"test": item.nodeid, "error": call.excinfo.typename, "broken": bool(kinds & BROKEN)}
        self._path.write_text(json.dumps(found))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _without_shrinking() -> list[str]:
    """Options of pytest for fixed examples, of which the first that fails is enough."""
    try:
        from hypothesis import Phase, settings
    except ImportError:
        return []
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, deadline=None, database=None, phases=phases)
    return ["--hypothesis-profile", "mutants"]


def run(root: Path, tests: Sequence[str]) -> None:
    """Run tests of the tree at `root`, to their first failure; ends the process with pytest's exit status.

    What they print is in the file `output` there, the first failure in `failure`.
    """
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody waits for the tests of who has gone
    os.chdir(root)
    with open("output", "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ |= {"PYTHONPATH": str(root), "SPECC_CACHE_DIR": str(root / "cache"), "CI": "1", "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = False  # the next run of this tree need not compile it again
    early = "ignore::pytest.PytestAssertRewriteWarning"  # plugins were imported before the fork
    options = ("-q", "-x", "-p", "no:cacheprovider", "-W", "error", "-W", early, *_without_shrinking())
    status = pytest.main([*options, *tests], plugins=[Witness(root / "failure")])
    sys.stdout.flush()
    os._exit(status)
