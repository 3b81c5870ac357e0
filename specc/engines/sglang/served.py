"""What of a server programs serve and what they do not, from plain facts of it: the one list of both.

The adapter asks when a server starts, with facts of SGLang's objects; the compiler asks before there is one, with what
arguments and two model directories say. Imports the standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from .attention.kinds import BACKENDS, KNOWN_BACKENDS, backend_of
from .kinds import KINDS, NODES, STARTS_NONE, STEPS, TOPK, KindOfDraft, kind_of
from .served_attention import CACHES, MISPLACED, ROLES, STATES, ServedModel
from .served_settings import DETERMINISTIC, NAMES, SETTINGS, WEIGHING, served_anyhow, served_under

__all__ = [
    "BACKENDS", "CACHES", "KINDS", "KNOWN_BACKENDS", "NAMES", "NODES", "ROLES", "SETTINGS", "STARTS_NONE", "STATES",
    "STEPS", "TOPK", "WEIGHING", "KindOfDraft", "ServedModel", "backend_of", "kind_of", "served_anyhow",
]  # fmt: skip

TESTED = ("0.5.22", "0.5.23")
"""The versions of SGLang that `make sglang` runs programs in."""


@dataclass(frozen=True)
class Server:
    """Facts of a server; what is not known is left out, and is in nobody's way.

    Attributes:
        target, draft: its models.
        kind: how it drafts.
        topk: drafts kept per step; more than one is a tree.
        attention: by role its attention backend.
        device: where it runs, `cuda` or `cpu`.
        ranks: among which layers are shared out.
        groups: of ranks, of which each has requests of its own (attention under data parallelism).
        head_rows: whether the draft scores rows of the target's head by a token map.
        adapters: whether requests may have one (LoRA).
        budget: whether a program's requests share the target's rows out.
        draws: whether it draws drafts, and weighs them by what they were drawn from.
        candidates: numbers of steps among which SGLang changes while it runs; none where it does not.
        ring: how many tokens' records SGLang keeps of a state, which it folds later (GDN); 0 where it keeps none.
        kept_at_ends: whether it keeps for prefixes the states that texts end with, rather than those at intervals.
        settings: by SGLang's name what `SETTINGS` has a word on.

    """

    target: ServedModel | None = None
    draft: ServedModel | None = None
    kind: KindOfDraft | None = None
    topk: int = 1
    attention: Mapping[str, str] = field(default_factory=dict[str, str])
    device: str = "cuda"
    ranks: int = 1
    groups: int = 1
    head_rows: bool = False
    adapters: bool = False
    budget: bool = False
    draws: bool = False
    candidates: tuple[int, ...] = ()
    ring: int = 0
    kept_at_ends: bool = False
    settings: Mapping[str, object] = field(default_factory=dict[str, object])

    def model(self, role: str) -> ServedModel | None:
        """The model whose cache attention reads in a role of `ROLES`."""
        if self.kind is not None and self.kind.borrows and role != "verify":
            return None if self.target is None else replace(self.target, borrows=True)
        return self.target if role == "verify" else self.draft

    @property
    def mask(self) -> str | None:
        """The mode of the mask that the verification of a tree reads; None for a chain and where none is served."""
        verify = BACKENDS.get(self.attention.get("verify", ""))
        return verify.mask if verify is not None and self.topk > 1 else None

    @property
    def conditions(self) -> list[str]:
        """Those of `served_settings.UNDER` that it is under."""
        of_target = [] if self.target is None else self.target.conditions
        return ["under data parallelism"] * (self.groups > 1) + of_target

    @property
    def weighs(self) -> str | None:
        """The `verify` of a program that weighs drafts as SGLang is asked to; None where it is not asked."""
        return next((verify for name, verify in WEIGHING.items() if self.settings.get(name)), None)

    @property
    def untried(self) -> list[str]:
        """The attention backends of this server on which no program has run yet."""
        named = dict.fromkeys(self.attention.get(role, "") for role in ROLES)
        return [name for name in named if name in BACKENDS and not BACKENDS[name].tried]

    @property
    def whole(self) -> str | None:
        """Beside what logits of programs are whole, in words; None where ranks may share them out."""
        if self.groups > 1:
            return "under data parallelism"
        return None if self.kind is None else self.kind.whole or None

    @property
    def headless(self) -> str | None:
        """Beside what no program computes a head, in words; None where one may."""
        alone = self.kind is not None and self.kind.computed and self.groups == 1
        several = " on several ranks" if alone else ""
        return f"{self.whole}{several}" if self.whole and not (alone and self.ranks == 1) else None

    @property
    def single(self) -> list[str]:
        """What of this server has steps of one shape alone, in words; of each candidate SGLang has attention anew."""
        named = [] if self.candidates else [name for name in dict.fromkeys(self.attention.values()) if name in BACKENDS]
        beside = {"LoRA": self.adapters, "attention under data parallelism": self.groups > 1}
        alone = [f"{name} attention" for name in named if not BACKENDS[name].shapes]
        planned = [name for name in named if self.kind and self.kind.blocks and BACKENDS[name].planned]
        alone += [f"blocks under {name} attention" for name in planned]
        return [*alone, *(what for what, there in beside.items() if there)]


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
    for name, (values, what) in served_under(server.conditions).items():
        value = server.settings.get(name, values[0])
        if all((value or None) != (served or None) for served in values):
            yield Refusal(name, what if value is True else f"{what} ({name} {value})")
    yield from itertools.starmap(Refusal, _of_draft(server))
    if server.weighs and server.kind is not None and server.kind.each_step:
        yield Refusal("speculative_use_rejection_sampling", "several modules whose drafts are drawn")
    if server.weighs and server.settings.get("disaggregation_mode", "null") != "null":
        yield Refusal("disaggregation_mode", "drafts that are drawn, on two servers,")
    if server.candidates:
        beside = ["drafts that are drawn"] * (server.weighs is not None) + server.single
        beside += [what for state, what in MISPLACED.items() if server.target and server.target.state == state]
        yield from (Refusal("candidates", f"adaptive speculation with {what}") for what in beside)
    yield from itertools.starmap(Refusal, _of_rings(server) if server.ring else ())
    if server.head_rows and server.ranks > 1:
        yield Refusal("head_rows", "a token map that names rows of a head of which each rank has a part")
    yield from (Refusal("budget", f"a budget of rows with {what}") for what in beside_budgets(server) if server.budget)
    borrows = server.kind is not None and server.kind.borrows
    for owner, model in (("target", server.target), ("draft", None if borrows else server.draft)):
        if model is not None:
            yield from _of_model(owner, model, server.topk)
    yield from _of_attention(server)


def beside_budgets(server: Server) -> Iterator[str]:
    """Name what of a server is not served beside a budget of rows."""
    there = {
        "LoRA": server.adapters,
        "attention under data parallelism": server.groups > 1,
        "adaptive speculation": bool(server.candidates),
        "two servers": server.settings.get("disaggregation_mode", "null") != "null",
        "drafts that are drawn in a deterministic server": server.draws and bool(server.settings.get(DETERMINISTIC)),
    }
    yield from (what for what, is_there in there.items() if is_there)
    if server.target is not None and server.target.cache != "mha":
        yield f"a KV cache of the layout {server.target.cache}"
    if (name := server.attention.get("verify", "")) in BACKENDS and (whole := BACKENDS[name].whole(server.topk)):
        yield whole


def _of_draft(server: Server) -> Iterator[tuple[str, str]]:
    """Name what is in the way by how a server drafts: what would have to change, and it in words."""
    kind = server.kind
    for setting, elsewhere in (other.setting for other in KINDS if other is not kind):
        if server.settings.get(setting) and not (kind is not None and kind.model_less):
            yield setting, elsewhere
            return
    if kind is None:
        return
    if server.draft is not None:
        yield from kind.misfits(server.draft, server.groups)
    asked = {
        "topk": server.topk > 1,
        "adapters": server.adapters,
        "groups": server.groups > 1,
        "disaggregation_mode": server.settings.get("disaggregation_mode", "null") != "null",
    }
    yield from ((about, what) for about, what in kind.refused.items() if asked[about])


def _of_rings(server: Server) -> Iterator[tuple[str, str]]:
    """Name what reads states as they are before later records are folded into them, as SGLang does as well."""
    if server.kept_at_ends:
        yield "kept_at_ends", "a prefix's state without the records behind it, where texts end,"
    if server.candidates:
        yield "candidates", "adaptive speculation with rings of records, which have room for steps of one length,"
    if server.kind is not None and server.kind.blocks:
        yield "enable_linear_replayssm_spec", "a draft of blocks with rings of records"


def _of_model(owner: str, model: ServedModel, topk: int) -> Iterator[Refusal]:
    """Name what of a model is not served. A window, a chunk or a state explains the cache that SGLang keeps for it."""
    if model.state and (owner == "draft" or model.state not in STATES):
        yield Refusal(owner, f"recurrent state of the {owner}")
    elif model.state and topk > 1:
        yield Refusal("topk", f"a tree over recurrent state of the {owner}")
    if model.chunk:
        yield Refusal(owner, f"chunks of attention of the {owner}")
    elif model.cache not in CACHES:
        if model.window:
            yield Refusal(owner, f"a KV pool of another kind for sliding windows of the {owner}")
        elif not model.state:
            yield Refusal(owner, f"the KV cache of the {owner}, {model.cache},")
    elif model.window and topk > 1:
        yield Refusal("topk", f"a tree over sliding windows of the {owner}")
    elif model.cache != "mha" and topk > 1:
        yield Refusal("topk", f"a tree over the latent KV cache of the {owner} ({model.cache})")


def _of_attention(server: Server) -> Iterator[Refusal]:
    """Which attention backends are not served, or not for what they do here."""
    for role in filter(server.attention.__contains__, ROLES):
        name, model, backend = server.attention[role], server.model(role), BACKENDS.get(server.attention[role])
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
        elif server.groups > 1 and not backend.grouped:
            yield Refusal(f"attention {role}", f"{name} attention under data parallelism ({role})")
        elif server.kind is not None and server.kind.blocks and role == "draft" and not backend.blocks:
            yield Refusal(f"attention {role}", f"{name} attention over blocks ({role})")
        elif server.topk > 1 and (backend.mask is None or (server.kind and server.kind.blocks and backend.planned)):
            yield Refusal(f"attention {role}", f"a tree with {name} attention ({role})")
