"""A program as the speculative decoding of SGLang.

SGLang finds `register` through the entry point of the wheel (group `sglang.srt.plugins`) and calls it in every process
that it starts. This folder is copied as it is into the wheel, beside the runtime; it imports the standard library,
torch, SGLang and the package that holds it. docs/sglang.md says what is served.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from .._plugin import offer
from .served import TESTED


def register() -> None:
    """Put workers that run programs in the place of SGLang's own.

    Several programs may be installed: each calls this, and a worker takes the one that fits its server. Raises as
    `offer`, which SGLang logs.
    """
    package = importlib.import_module(__name__.rpartition(".")[0])
    offer(package, "SGLang", TESTED, "sglang.srt.plugins", _replace)


def _replace(programs: list[Any]) -> None:
    from . import seam

    version = importlib.metadata.version("sglang")
    seam.probe(version, tested=version.partition("+")[0] in TESTED)
    from .workers import replace_workers

    replace_workers(programs)
