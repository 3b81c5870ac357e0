"""What of servers programs serve, by how these draft. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LOOKS_UP = ("NGRAM",)
"""Algorithms of SGLang's, by the names of programs, of which no model drafts."""
BY_MODULES = {"EAGLE": "MULTI_LAYER_EAGLE"}
"""Algorithm of SGLang's -> that of programs where a draft has a module for each step (`enable_multi_layer_eagle`)."""
BLOCKS = ("DFLASH",)
"""Algorithms of SGLang's, by the names of programs, of which a model fills in a block of drafts."""
PLAIN = ("DFlashDraftModel",)
"""SGLang's classes of such models that are served: layers, behind which the target's head scores."""
DRAFT = "a draft that fills in blocks"
ASSISTANT = "an assistant, which reads the target's keys and values"


def beside(architecture: str, projector: str = "", *, embeds: bool = False) -> str:
    """Return what sets a draft apart from a plain one, in words; nothing for one that is served.

    `projector` is its `projector_type`, `embeds` whether it has an embedding of its own.
    """
    if architecture not in PLAIN:
        return f"of the class {architecture}"
    return f"with a {projector} projector" if projector else "with an embedding of its own" if embeds else ""


def drafting(server: Any) -> Iterator[tuple[str, str]]:
    """Name what is in the way of a `Server` by its draft: what would have to change, and it in words."""
    asked = {
        "topk": server.topk > 1,
        "adapters": server.adapters,
        "groups": server.groups > 1,
        "disaggregation_mode": server.settings.get("disaggregation_mode", "null") != "null",
    }
    words: dict[str, str] = {}
    if server.looks_up:
        words = {"disaggregation_mode": "a server that looks drafts up in texts that another one prefills"}
    elif server.modules:
        words = {
            "topk": "a tree of several modules",
            "adapters": "LoRA beside a draft of several modules",
            "disaggregation_mode": "a draft of several modules behind a server that prefills",
        }
    elif server.settings.get("enable_multi_layer_eagle") and server.groups == 1:
        yield "enable_multi_layer_eagle", "multi-layer EAGLE of another algorithm"
    elif server.blocks:
        yield from _of_blocks(server.draft)
        words = {
            "groups": f"attention under data parallelism with {DRAFT}",
            "disaggregation_mode": f"{DRAFT} on a server of texts that another one prefills",
        }
    elif server.draft is not None and server.draft.borrows:
        named = {"topk": "a tree", "adapters": "LoRA", "groups": "data-parallel attention"}
        named["disaggregation_mode"] = "two servers"
        words = {about: f"{what} with {ASSISTANT}," for about, what in named.items()}
    yield from ((about, what) for about, what in words.items() if asked[about])


def _of_blocks(draft: Any) -> Iterator[tuple[str, str]]:
    """Name what of a model that fills in blocks is not served; None is one of which nothing is known."""
    if draft is not None and draft.beside:
        yield "draft", f"{DRAFT}, {draft.beside},"
    if draft is not None and draft.window:
        yield "draft", f"sliding windows of {DRAFT}"
