"""What a kind of draft in SGLang is. Imports the standard library only: the compiler reads it, where SGLang is not."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

STEPS, TOPK, NODES = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
"""SGLang's arguments of a shape."""

Said = tuple[int | str, str]
"""A value, and the words for where it comes from."""

STARTS_NONE = "SGLang starts no such server"

_settings = partial(field, default_factory=dict[str, str])


class CommandLine(Protocol):
    """The arguments of a server, as far as a kind of draft hangs on them, and the variables before them."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by name."""
        ...

    def number(self, name: str) -> int | None:
        """Return the number behind an argument; None where it does not stand."""

    def wrong(self, message: str, hint: str | None = None) -> None:
        """Report a mistake."""

    def refuse(self, what: str, hint: str | None) -> None:
        """Report something that is not served."""


@dataclass(frozen=True, eq=False)
class KindOfDraft:
    """A kind of draft: a class of workers in SGLang, and all that is particular to it. Defaults are those of a head.

    Attributes:
        algorithms: the names of programs' algorithms.
        place: SGLang's class of workers.
        needs: what it needs of SGLang, lines as in `seam`.
        absent: what is said where that is not all there; nothing where no program runs without.
        keeps: SGLang's class of what a request keeps between steps.
        state: the adapter's class of that.
        forwards: the adapter's class of callbacks.
        members: what its workers have beside what all have; `kind` is there where a draft says which of several it is.
        roles: of `served_attention.ROLES` those of its steps -> the model whose cache each reads.
        head: whether the draft is a head, which reads hidden states of the target.
        blocks: whether the draft fills in all places of a step at once.
        each_step: what of the draft there is for each step, in words; then SGLang has as many steps as there are.
        model_less: how it drafts without any model, in words.
        adaptive: whether SGLang changes the number of its steps while it runs, where it is asked to.
        own_branches: whether a program has branches of its own, whatever SGLang's tree has.
        own_dtype: whether the draft may have another element type than the target.
        token_maps: by algorithm whether the token map that is written counts; False where the draft has its own.
        options: by key of `options` its only value in SGLang, as `Preset.options`.
        written: SGLang's name of the algorithm, where that is of another kind as well.
        setting: the setting by which SGLang then takes this one, and what that is with a draft of another kind.
        targets: the targets with which it takes this one by itself, a regular expression over their classes.
        drafts: the drafts with which it takes this one in the place of EAGLE, likewise; no other may have them.
        bundled: by a target's class that of a draft of this kind among the target's own weights.
        folder: the folder of a target's files where SGLang finds a draft of this kind by itself, if there is one.
        called: what such a draft is called, with its article.
        marks: what a directory says of a draft of this kind alone, the name of a fact.
        shaped_by: SGLang's arguments of steps, topk and nodes; an empty one where a shape has no such argument.
        chains_only: whether SGLang counts on chains, though no topk is written, when it chooses an attention backend.
        refused: what is not served with it -> in words. There are `topk`, `adapters`, `groups` (of ranks) and
            `disaggregation_mode`.
        unstarted: what SGLang itself does not start with it -> the hint. There are `adapters`, `groups` and `cpu`.
        weighs: values of `verify` by which SGLang weighs drafts of this kind, where an argument asks for it.
        whole: beside what logits are whole, in words; nothing where ranks may share them out.
        computed: whether programs may compute its head, on one rank where logits are whole.

    """

    algorithms: tuple[str, ...]
    place: str
    needs: str
    absent: str = ""
    keeps: str = "speculative.eagle_info.EagleDraftInput"
    state: str = "requests.state.State"
    forwards: str = "models.forwards.Forwards"
    members: Mapping[str, Any] = field(default_factory=dict[str, Any])
    roles: Mapping[str, str] = field(default_factory=lambda: {"draft": "draft", "verify": "target", "extend": "draft"})
    head: bool = False
    blocks: bool = False
    each_step: str = ""
    model_less: str = ""
    adaptive: bool = False
    own_branches: bool = False
    own_dtype: bool = False
    token_maps: Mapping[str, bool] = field(default_factory=dict[str, bool])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    written: str = ""
    setting: tuple[str, str] = ("", "")
    targets: str = ""
    drafts: str = ""
    bundled: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: str = ""
    called: str = ""
    marks: str = ""
    shaped_by: tuple[str, str, str] = (STEPS, TOPK, NODES)
    chains_only: bool = False
    refused: Mapping[str, str] = _settings()
    unstarted: Mapping[str, str] = _settings()
    weighs: tuple[str, ...] = ()
    whole: str = ""
    computed: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """SGLang's names of its algorithms."""
        return (self.written,) if self.written else self.algorithms

    @property
    def reads(self) -> tuple[str, ...]:
        """The arguments of a command line that say something of its shapes."""
        return tuple(filter(None, self.shaped_by))

    @property
    def borrows(self) -> bool:
        """Whether the draft has no KV cache of its own, and reads the target's."""
        return self.roles.get("draft") == "target"

    @property
    def has_steps(self) -> bool:
        """Whether SGLang counts steps of its drafts."""
        return bool(self.shaped_by[0])

    @property
    def stateless(self) -> bool:
        """Whether a draft keeps no recurrent state, though its configuration, which may be the target's, has one."""
        return self.head or bool(self.each_step)

    @property
    def recurs(self) -> bool:
        """Whether the draft has a forward for each step."""
        return not (self.blocks or self.model_less)

    def of_target(self, architecture: str) -> bool:
        """Whether SGLang takes it by itself for a target of this class."""
        return bool(self.targets) and re.match(self.targets, architecture) is not None

    def of_draft(self, architecture: str) -> bool:
        """Whether drafts of this class are of this kind, and of no other."""
        return bool(self.drafts) and re.fullmatch(self.drafts, architecture) is not None

    def program_of(self, name: str) -> str:
        """Return the program's name of an algorithm that runs in SGLang under this one."""
        if not self.written:
            return name
        return self.algorithms[0] if name == self.written else f"{name} of {self.called}"

    def arguments(self, num_steps: int, topk: int, num_nodes: int) -> list[str]:
        """Return the arguments by which a server has a shape."""
        sizes = zip(self.shaped_by, (num_steps, topk, num_nodes), strict=True)
        return [word for name, size in sizes if name for word in (name, str(size))]

    def own(self, place: str) -> Any:
        """Return what is at a place of the adapter, such as `forwards`; that imports SGLang."""
        module, _, name = place.rpartition(".")
        return getattr(importlib.import_module(f"..{module}", __package__), name)

    # --- what kinds do in ways of their own ---------------------------------------------------------------------------

    def shape(self, line: CommandLine, draft: Mapping[str, Any]) -> tuple[Said, Said, Said] | None:
        """Return steps, topk and nodes of a program; None where SGLang's three arguments say them.

        `draft` has what the draft's directory says, by name, as values with an origin.
        """
        return None

    def check(self, line: CommandLine, page_size: Said, verify: str) -> None:
        """Report what is not started, or not served, on pages of this size, where that backend verifies."""

    def attention(self, written: str, prefill: Said, *, newest: bool, on_cpu: bool) -> Said | None:
        """Return the attention backend of the draft, where SGLang does not give that out as it does to others.

        `written` is the argument's, or empty; `prefill` is that of the server's prefill. `newest` is whether the GPU is
        a B200 or a B300.
        """
        return None

    def beside(self, architecture: str, projector: str = "", *, embeds: bool = False) -> str:
        """Return what sets a draft apart from those that are served, in words; nothing for one that is.

        `projector` is its `projector_type`, `embeds` whether it has an embedding of its own.
        """
        return ""

    def model_beside(self, model: Any) -> str:
        """Return `beside` of SGLang's model; only kinds that ask it say that it answers."""
        return ""

    def behind(self, drafter: Any, num_steps: int) -> int:
        """Return of how many tokens behind a request's last one the draft's forwards have queries, in a step."""
        return num_steps if self.recurs else 1

    def tables(self, model: Any) -> Mapping[str, Any]:
        """Return by name the tables that programs read of SGLang's model beside its head."""
        return {}

    def misfits(self, draft: Any, groups: int) -> Iterator[tuple[str, str]]:
        """Name what of a draft, a `ServedModel`, is not served: what would have to change, and it in words.

        `groups` of ranks have requests of their own.
        """
        return iter(())

    def backends(self, drafter: Any) -> Mapping[str, Any]:
        """Return SGLang's attention backends of a draft, by the names that `attention.roles.Roles` has for them.

        They are those of an EagleDraftWorker.
        """
        several = drafter.draft_attn_backend
        return {
            "draft": [] if several is None else several.attn_backends,
            "container": several,
            "extend": drafter.draft_extend_attn_backend or drafter.draft_runner.attn_backend,
        }

    def unsegmented(self, worker: Any) -> str:
        """Return whose forwards alone can be a graph each, where a worker's cannot; nothing where they can."""
        return ""
