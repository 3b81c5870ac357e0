"""What SGLang 0.5.23 makes of arguments where the draft fills in blocks: how long they are, and their attention."""

from __future__ import annotations

from specc.compiler.config.archs import Gpu
from specc.compiler.config.models import Fact, ModelFacts
from specc.engines.sglang.check.command_line import BLOCK, NODES, Arguments
from specc.engines.sglang.check.defaults import B200
from specc.engines.sglang.served import backend_of

USUAL_BLOCK = 16
"""Tokens of a block where nothing is written, neither by the draft."""


def form(arguments: Arguments, draft: ModelFacts) -> tuple[Fact, Fact, Fact]:
    """Return steps, topk and nodes of a program: a step for every token of a block but the first, which is no draft."""
    written = {name: size for name in (NODES, BLOCK) if (size := arguments.number(name)) is not None}
    if len(set(written.values())) > 1:
        arguments.wrong(f"{NODES} and {BLOCK} differ", "a block has one size: write one of them")
    size = next((Fact(size, name) for name, size in written.items()), None)
    size = size or draft.facts.get("block_size") or Fact(USUAL_BLOCK, "SGLang's default")
    if int(size.value) < 2:
        arguments.wrong(f"a block of {size.value} tokens ({size.origin}) has no drafts", f"write {NODES} 2 or more")
    steps = Fact(int(size.value) - 1, f"all of a block but its first token: {size.origin}")
    return steps, Fact(1, "a chain, as every block is"), size


def attention(written: str, prefill: Fact, gpu: Gpu) -> Fact:
    """Return the attention backend of the draft's forward: what is written, or that of the server's prefill.

    Where such a draft cannot have it SGLang takes another; on a CPU there is no such server.
    """
    name = "--speculative-draft-attention-backend"
    own = Fact(written, name) if written else prefill
    if gpu.is_cpu or backend_of(str(own.value)).drafts_blocks:
        return own
    other = "fa4" if own.value == "trtllm_mha" and gpu.arch in B200 else "flashinfer"
    return Fact(other, f"SGLang's choice for blocks in the place of {own.value} ({own.origin})")
