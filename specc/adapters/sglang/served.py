"""What of a server programs serve and what they do not, from plain facts of it: the one list of both.

The adapter asks when a server starts, with facts of SGLang's objects; the compiler asks before there is one, with what
arguments and two model directories say. Imports the standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .served_drafts import BLOCKS, BY_MODULES, LOOKS_UP, beside, drafting
from .served_settings import DATA_PARALLEL, SETTINGS, served_values

__all__ = ["BLOCKS", "BY_MODULES", "DATA_PARALLEL", "LOOKS_UP", "SETTINGS", "beside", "served_values"]

TESTED = ("0.5.22", "0.5.23")
"""The versions of SGLang that `make sglang` runs programs in."""
ROLES = ("draft", "verify", "extend")
"""What attention does in a step: forwards of the draft, that of the target, and the draft's over accepted tokens."""


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
    "flashinfer": AttentionBackend(("mha",), mask="qlen", tried=False, planned=True),
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
class Server:
    """Facts of a server; what is not known is left out, and is in nobody's way.

    Attributes:
        target, draft: its models.
        topk: drafts kept per step; more than one is a tree.
        attention: by role its attention backend.
        device: where it runs, `cuda` or `cpu`.
        ranks: among which layers are shared out.
        groups: of ranks, of which each has requests of its own (attention under data parallelism).
        head_rows: whether the draft scores rows of the target's head by a token map.
        adapters: whether requests may have one (LoRA).
        looks_up: whether drafts are looked up, by no model.
        modules: whether the draft has a module for each step.
        blocks: whether a model fills in a block of drafts at once.
        settings: by SGLang's name what `SETTINGS` has a word on.

    """

    target: ServedModel | None = None
    draft: ServedModel | None = None
    topk: int = 1
    attention: Mapping[str, str] = field(default_factory=dict[str, str])
    device: str = "cuda"
    ranks: int = 1
    groups: int = 1
    head_rows: bool = False
    adapters: bool = False
    looks_up: bool = False
    modules: bool = False
    blocks: bool = False
    settings: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def mask(self) -> str | None:
        """The mode of the mask that the verification of a tree reads; None for a chain and where none is served."""
        verify = BACKENDS.get(self.attention.get("verify", ""))
        return verify.mask if verify is not None and self.topk > 1 else None

    @property
    def untried(self) -> list[str]:
        """The attention backends of this server on which no program has run yet."""
        named = dict.fromkeys(self.attention.get(role, "") for role in ROLES)
        return [name for name in named if name in BACKENDS and not BACKENDS[name].tried]

    @property
    def whole(self) -> str | None:
        """Beside what programs have whole logits and no head of their own, in words; None where they may."""
        beside = {
            "under data parallelism": self.groups > 1,
            "with a draft of several modules": self.modules,
            "with a draft that the target's head scores": self.blocks,
        }
        return next((what for what, there in beside.items() if there), None)

    @property
    def single(self) -> list[str]:
        """What of this server has steps of one shape alone, in words."""
        named = [name for name in dict.fromkeys(self.attention.values()) if name in BACKENDS]
        several = {"LoRA": self.adapters, "attention under data parallelism": self.groups > 1, "blocks": self.blocks}
        return [f"{name} attention" for name in named if not BACKENDS[name].shapes] + [
            what for what, there in several.items() if there
        ]


@dataclass(frozen=True)
class Refusal:
    """Something that is not served.

    Attributes:
        about: the name of what would have to change: one of `SETTINGS`, ``attention`` with a role of `ROLES` behind it,
            or another field of `Server`.
        what: it, in a few words, a noun.

    """

    about: str
    what: str

    def __str__(self) -> str:
        """In a sentence."""
        return f"{self.what} is not served"


def refusals(server: Server) -> Iterator[Refusal]:
    """All that is in the way of any program on a server; nothing where programs are served."""
    parallel = server.groups > 1
    table = SETTINGS | DATA_PARALLEL if parallel else SETTINGS
    for name in filter(server.settings.__contains__, table):
        value, what = server.settings[name], table[name][1]
        if all((value or None) != (served or None) for served in served_values(name, data_parallel=parallel)):
            about = f"{what} under data parallelism" if parallel and name in DATA_PARALLEL else what
            yield Refusal(name, about if value is True else f"{about} ({name} {value})")
    yield from itertools.starmap(Refusal, drafting(server))
    if server.head_rows and server.ranks > 1:
        yield Refusal("head_rows", "a token map that names rows of a head of which each rank has a part")
    for owner, model in (("target", server.target), ("draft", server.draft)):
        if model is not None and not model.borrows:
            yield from _of_model(owner, model, server.topk)
    yield from _of_attention(server)


def _of_model(owner: str, model: ServedModel, topk: int) -> Iterator[Refusal]:
    """Name what of a model is not served. A window, a chunk or a state explains the cache that SGLang keeps for it."""
    if model.recurrent:
        yield Refusal(owner, f"recurrent state of the {owner}")
    if model.chunk:
        yield Refusal(owner, f"chunks of attention of the {owner}")
    elif model.cache not in CACHES:
        if model.window:
            yield Refusal(owner, f"a KV pool of another kind for sliding windows of the {owner}")
        elif not model.recurrent:
            yield Refusal(owner, f"the KV cache of the {owner}, {model.cache},")
    elif model.window and topk > 1:
        yield Refusal("topk", f"a tree over sliding windows of the {owner}")
    elif model.cache != "mha" and topk > 1:
        yield Refusal("topk", f"a tree over the latent KV cache of the {owner} ({model.cache})")


def _of_attention(server: Server) -> Iterator[Refusal]:
    """Which attention backends are not served, or not for what they do here."""
    for role in filter(server.attention.__contains__, ROLES):
        name = server.attention[role]
        model, backend = server.target if role == "verify" else server.draft, BACKENDS.get(name)
        if backend is None or backend.device == "cpu" != server.device:
            yield Refusal(f"attention {role}", f"{name} attention on {server.device} ({role})")
            continue
        known = model if model is not None and model.cache in CACHES else None  # another is refused by itself
        if known is not None and known.cache not in backend.over(role, known):
            second = "a second KV pool for sliding windows"
            cache = second if known.cache == "swa" else f"a KV cache of the layout {known.cache}"
            yield Refusal(f"attention {role}", f"{name} attention over {cache} ({role})")
        elif known is not None and known.window and not backend.sees(role, known):
            yield Refusal(f"attention {role}", f"{name} attention with sliding windows ({role})")
        elif server.groups > 1 and backend.planned:
            yield Refusal(f"attention {role}", f"{name} attention under data parallelism ({role})")
        elif server.blocks and role == "draft" and not backend.blocks:
            yield Refusal(f"attention {role}", f"{name} attention over blocks ({role})")
        elif server.topk > 1 and backend.mask is None:
            yield Refusal(f"attention {role}", f"a tree with {name} attention ({role})")
