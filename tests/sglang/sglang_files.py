"""Where SGLang's environment is. Imports the standard library only."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENT = ROOT / ".sglang"
PYTHON = ENVIRONMENT / "bin" / "python"
READY = ENVIRONMENT / "versions.json"
"""Written last: the sign that the environment is complete."""
