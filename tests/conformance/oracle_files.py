"""Where the oracle's environment is: it is that of `tests/sglang`, made by `make_environment.py` there.

Imports the standard library only.
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent
ORACLE = HERE.parents[1] / ".sglang"
PYTHON = ORACLE / "bin" / "python"
READY = ORACLE / "versions.json"
"""Written last: the sign that the environment is complete."""
ANSWERS = HERE.parents[1] / "build" / "oracle"
"""Where answers are kept."""
