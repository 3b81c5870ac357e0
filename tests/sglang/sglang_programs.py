"""The program for an engine's arguments, as a user would make it: written by `specc sglang check`, then built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_job import specc

CPU = {"device": "cpu", "dtype": "float32", "attention_backend": "intel_amx", "context_length": 1024}
"""What `serve.py` sets for every engine, as far as it says something about a program."""


def build_program(engine: Mapping[str, Any], folder: Path, *options: str) -> Path:
    """The wheel for an engine with these arguments, built in a new folder. RuntimeError with what specc said.

    `options` are those of `specc sglang check`.
    """
    folder.mkdir(parents=True)
    config = folder / "program.yaml"
    written = {**CPU, **engine}
    flash = written["attention_backend"] == "fa3"
    if flash:
        written["attention_backend"] = CPU["attention_backend"]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in written.items()]
    specc("sglang", "check", "-o", str(config), "--name", "served", *options, "--", *words)
    if flash:
        config.write_text(config.read_text().replace("mask: qlen", "mask: slots"))
    specc("build", str(config), "-o", str(folder), "--quiet")
    return next(folder.glob("*.whl"))
