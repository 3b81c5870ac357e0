"""The program for an engine's arguments, as a user would make it: written by `specc sglang check`, then built."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SPECC = (sys.executable, "-c", "from specc.cli.main import main; main()")
CPU = {"device": "cpu", "dtype": "float32", "attention_backend": "intel_amx", "context_length": 1024}
"""What `serve.py` sets for every engine, as far as it says something about a program."""


def build_program(engine: Mapping[str, Any], folder: Path, *options: str) -> Path:
    """The wheel for an engine with these arguments, built in a new folder. RuntimeError with what specc said.

    `options` are those of `specc sglang check`.
    """
    folder.mkdir(parents=True)
    config = folder / "program.yaml"
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**CPU, **engine}.items()]
    specc("sglang", "check", "-o", str(config), "--name", "served", *options, "--", *words)
    specc("build", str(config), "-o", str(folder), "--quiet")
    return next(folder.glob("*.whl"))


def specc(*words: str) -> None:
    """Run a command of specc's."""
    ended = subprocess.run([*SPECC, *words], capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"specc {' '.join(words)}\n{ended.stdout}{ended.stderr}")
