"""A program as the speculative decoding of vLLM, in its model runner V2.

vLLM finds `register` through the entry point of the wheel (group `vllm.general_plugins`) and calls it in every process
that it starts. This folder is copied as it is into the wheel, beside the runtime; it imports the standard library,
torch, vLLM and the package that holds it. docs/vllm.md says what is served.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from .._plugin import offer, tried
from .served import TESTED


def register() -> None:
    """Put speculators that run programs in the place of vLLM's own.

    Several programs may be installed: each calls this, and a server takes the one that fits it. What `offer` raises is
    logged, for vLLM would end; SystemExit if `SPECC_PROGRAM` demands this program.
    """
    package = importlib.import_module(__name__.rpartition(".")[0])
    tried(lambda: offer(package, "vLLM", TESTED, "vllm.plugins", _replace), "vLLM")


def _replace(programs: list[Any]) -> None:
    from . import seam

    version = importlib.metadata.version("vllm")
    seam.probe(version, tested=version.partition("+")[0] in TESTED)
    from .runner import replace_speculators

    replace_speculators(programs)
