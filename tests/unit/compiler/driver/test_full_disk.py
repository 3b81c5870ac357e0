"""A wheel for which there is no room: an error by name, once, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fakes.toy_wheel import toy_wheel

TESTS = Path(__file__).parents[3]
"""Whose modules come before those of `bench/`, which have the same names and which other tests import."""
SCRIPT = """
import resource, signal, sys
from pathlib import Path

from fakes.toy_wheel import toy_wheel

out, size = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for limit in [*range(0, size, size // 20), size - 1]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        toy_wheel(out)
    except OSError as error:
        print(error.strerror, [path.name for path in out.iterdir()])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
print(toy_wheel(out).read_bytes() == Path(sys.argv[3]).read_bytes())
"""


def test_no_room(tmp_path: Path) -> None:
    """Wherever the limit cuts it, RECORD and the archive's directory at its end included."""
    whole = toy_wheel(tmp_path / "whole")
    out, older = tmp_path / "out", "specc_program_toy_chain-0.0.9+pold-py3-none-any.whl"
    out.mkdir()
    (out / older).write_bytes(b"older")
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(out), str(whole.stat().st_size), str(whole)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.stderr == ""
    *failed, last = found.stdout.splitlines()
    assert len(failed) > 20
    assert set(failed) == {f"File too large ['{older}']"}
    assert last == "True"
