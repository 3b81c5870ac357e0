"""What of servers whose draft fills in a block at once programs serve. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Iterator

BLOCKS = ("DFLASH",)
"""Algorithms of SGLang's, by the names of programs, of which a model fills in a block of drafts."""
PLAIN = ("DFlashDraftModel",)
"""SGLang's classes of such models that are served: layers, behind which the target's head scores."""
DRAFT = "a draft that fills in blocks"


def beside(architecture: str, projector: str = "", *, embeds: bool = False) -> str:
    """What a draft is or has that is no plain one, in words; nothing for one that is served.

    `projector` is its `projector_type`, `embeds` whether it has an embedding of its own.
    """
    if architecture not in PLAIN:
        return f"of the class {architecture}"
    return f"with a {projector} projector" if projector else "with an embedding of its own" if embeds else ""


def reasons(beside: str, *, window: bool, adapters: bool, groups: int, decodes: bool) -> Iterator[tuple[str, str]]:
    """What is in the way on a server: the name of what would have to change, and it in words.

    `beside` is of its draft, as is `window`: layers that see a window of the text. `adapters` are LoRA's, `groups`
    those of ranks. One that `decodes` what another one prefills is sent nothing of the draft's context.
    """
    if beside:
        yield "draft", f"{DRAFT}, {beside},"
    if window:
        yield "draft", f"sliding windows of {DRAFT}"
    if adapters:
        yield "adapters", f"LoRA with {DRAFT}"
    if groups > 1:
        yield "groups", f"attention under data parallelism with {DRAFT}"
    if decodes:
        yield "disaggregation_mode", f"{DRAFT} on a server of texts that another one prefills"
