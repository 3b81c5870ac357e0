"""Where the oracle's environment is. Imports the standard library only."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
ORACLE = HERE.parents[1] / ".oracle"
PYTHON = ORACLE / "bin" / "python"
READY = ORACLE / "versions.json"
"""Written last: the sign that the environment is complete."""
