"""The program for an engine's arguments, as a user would make it: written by `specc sglang check`, then built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import engine_job
from engine_job import CONFIG, specc
from sglang_files import BACKEND, DEVICE, DTYPE, ON_GPU

SERVED = {
    "device": DEVICE,
    "dtype": DTYPE,
    "attention_backend": BACKEND if ON_GPU else "intel_amx",
    "context_length": 1024,
}
"""What `serve.py` sets for every engine, as far as it says something about a program."""

ON_GPUS = ("DFLASH", "DSPARK")
"""Algorithms that SGLang starts on a GPU alone, so that a program is written for a server of one."""


def write_program(engine: Mapping[str, Any], folder: Path, *options: str) -> Path:
    """The configuration for an engine with these arguments, in a new folder. RuntimeError with what specc said.

    `options` are those of `specc sglang check`.
    """
    folder.mkdir(parents=True)
    config = folder / CONFIG
    if DEVICE == "cpu" and engine["speculative_algorithm"] in ON_GPUS:
        given = {**SERVED, **engine}["attention_backend"]
        attention = BACKEND if given == SERVED["attention_backend"] else given
        engine = {**engine, "device": "cuda", "attention_backend": attention}
        options = ("--gpu", "h100", *options)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**SERVED, **engine}.items()]
    specc("sglang", "check", "-o", str(config), "--name", "served", *options, "--", *words)
    return config


def build_program(engine: Mapping[str, Any], folder: Path, *options: str) -> Path:
    """The wheel for an engine, built in a new folder; see `write_program`."""
    config = write_program(engine, folder, *options)
    specc("build", str(config), "-o", str(folder), "--quiet")
    return next(folder.glob("*.whl"))


def plugin_wheel(code: str, folder: Path, wheels: Sequence[Path] = ()) -> Path:
    """A wheel with a plugin of SGLang's and all that is in other wheels, named as the first of these."""
    return engine_job.plugin_wheel(code, folder, "sglang.srt.plugins", wheels)
