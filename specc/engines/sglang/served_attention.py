"""Attention backends of SGLang's and models, as programs are served on them. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ROLES = ("draft", "verify", "extend")
"""What attention does in a step: forwards of the draft, that of the target, and the draft's over accepted tokens."""

CACHES: Mapping[str, str] = {
    "mha": "MHATokenToKVPool",
    "swa": "SWAKVPool",
    "mla": "MLATokenToKVPool",
    "dsa": "DSATokenToKVPool",
}
"""Layouts of KV caches that are served -> SGLang's class: keys and values, those with a second pool for layers with a
window, a latent row, one with an indexer's keys."""


@dataclass(frozen=True)
class ServedModel:
    """A model of a server.

    Attributes:
        cache: the layout of its KV cache, a word of `CACHES`; anything else, such as the name of SGLang's class, is a
            layout that is not served.
        window: whether it has layers that see a window of the text alone.
        chunk: whether it has layers that see a chunk of the text alone.
        recurrent: whether it has layers that keep a state per request.
        beside: what a draft that fills in blocks has beside its layers, in words; nothing for a plain one.
        borrows: whether it has no KV cache, and reads the target's.

    """

    cache: str = "mha"
    window: bool = False
    chunk: bool = False
    recurrent: bool = False
    beside: str = ""
    borrows: bool = False


@dataclass(frozen=True)
class AttentionBackend:
    """An attention backend of SGLang's.

    Attributes:
        caches: layouts of the KV caches over which it is served, as `Model.cache` has them.
        drafts: those over which it runs the draft's forwards, where not all of `caches`.
        mask: the mode in which it reads the mask of a tree, by specc's name; None where chains alone are served.
        device: `cpu` for one that runs on no GPU; one of a GPU is served wherever SGLang starts it.
        tried: whether a program has run on it, on a GPU if it is one of a GPU's.
        shapes: whether it prepares steps of several shapes.
        windows: the roles in which layers may see a window of the text alone.
        planned: whether the host plans each step of it.
        blocks: whether it runs a draft that fills in blocks.

    """

    caches: tuple[str, ...]
    drafts: tuple[str, ...] | None = None
    mask: str | None = None
    device: str = "cuda"
    tried: bool = True
    shapes: bool = True
    windows: tuple[str, ...] = ()
    planned: bool = False
    blocks: bool = False

    def over(self, role: str, model: ServedModel | None) -> tuple[str, ...]:
        """The layouts over which it is served in a role of `ROLES` of a model."""
        return self.caches if _reads(role, model) or role != "draft" or self.drafts is None else self.drafts

    def sees(self, role: str, model: ServedModel | None) -> bool:
        """Whether layers may see a window of the text alone in a role of `ROLES` of a model."""
        return role in self.windows or (_reads(role, model) and bool(self.windows))


def _reads(role: str, model: ServedModel | None) -> bool:
    """Whether a role does no more than read: of an assistant, by SGLang's own preparation."""
    return role == "draft" and model is not None and model.borrows


BACKENDS: Mapping[str, AttentionBackend] = {
    "triton": AttentionBackend(("mha", "swa"), drafts=("mha",), mask="full", windows=("verify",)),
    "fa3": AttentionBackend(("mha", "swa", "mla"), mask="slots", windows=ROLES, blocks=True),
    "flashinfer": AttentionBackend(("mha",), mask="qlen", planned=True),
    "intel_amx": AttentionBackend(
        ("mha", "swa"), drafts=("mha",), mask="qlen", device="cpu", windows=ROLES, blocks=True
    ),
    "trtllm_mha": AttentionBackend(("mha",), tried=False, shapes=False),
    "trtllm_mla": AttentionBackend(("mla",), tried=False, shapes=False),
    "cutedsl_mla": AttentionBackend(("mla",), tried=False, shapes=False),
    "flashmla": AttentionBackend(("mla",), tried=False, shapes=False),
    "fa4": AttentionBackend(("mha",), tried=False, shapes=False),
    "dsa": AttentionBackend(("dsa",), tried=False, shapes=False),
}
"""The attention backends that are served, by SGLang's names."""
