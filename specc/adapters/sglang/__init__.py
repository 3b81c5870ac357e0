"""A program as the speculative decoding of SGLang 0.5.23.

SGLang finds `register` through the entry point of the wheel (group `sglang.srt.plugins`) and calls it in every process
that it starts. This folder is copied as it is into the wheel, beside the runtime; it imports the standard library,
torch, SGLang and the package that holds it. docs/sglang.md says what is served.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from typing import Any

VERSION = "0.5.23"
"""The only version of SGLang whose inside this adapter knows."""
CHOICE = "SPECC_PROGRAM"
"""The environment variable that names the package of a program that must run: a server in which it cannot, ends."""


def register() -> None:
    """Put workers that run programs in the place of SGLang's own.

    Several programs may be installed: each calls this, and a worker takes the one that fits its server. RuntimeError,
    which SGLang logs, on a version of SGLang that the adapter does not know; SystemExit if `SPECC_PROGRAM` demands
    this program.
    """
    package = importlib.import_module(__name__.rpartition(".")[0])
    try:
        _offer(package)
    except Exception as error:
        if os.environ.get(CHOICE) == package.__name__:
            raise SystemExit(f"{CHOICE}={package.__name__}: {error}") from error
        raise


def _offer(package: Any) -> None:
    from sglang.srt import plugins

    found = importlib.metadata.version("sglang")
    if found != VERSION:
        raise RuntimeError(f"{package.__name__} runs in SGLang {VERSION}, this is {found}")
    # One list for all wheels, each of which has a copy of this module: the first one's runs them all.
    programs = vars(plugins).setdefault("specc_programs", [])
    made_by = [program.__version__.partition("+")[0] for program in (package, *programs)]
    if len(set(made_by)) > 1:
        raise RuntimeError(f"{package.__name__} is of specc {made_by[0]}, {programs[0].__name__} of {made_by[1]}")
    if not programs:
        from .workers import replace_workers

        replace_workers(programs)
    programs.append(package)
