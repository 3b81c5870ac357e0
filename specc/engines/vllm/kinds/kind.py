"""What a kind of draft in vLLM is. Imports the standard library only: the compiler reads it, where vLLM is not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """A method of vLLM's, and by what it knows a draft of it.

    Attributes:
        name: vLLM's word.
        usual: whether it is vLLM's where nothing says another.
        stated: whether it takes any draft that is given with this word.
        names: what is in the name of a draft that has this method, unless another one is stated.
        classes: those of drafts that have it, whatever their names are.
        formats: other words for it of the format of speculators -> whether all drafts are then made in one forward.
        prefix: how vLLM's names of drafts' classes begin; empty where they are as config.json has them.
        ends: whether a name may end with that as well.
        modules: whether modules of multi-token prediction draft, which a target may bring itself.
        model_less: whether no model drafts.
        in_place: whether the word may stand where a draft's name does.
        at_once: whether all drafts are made in one forward.
        bundled: whether a target may have a draft of it among its own weights.
        first_runner: whether vLLM has it in its first model runner alone.

    """

    name: str
    usual: bool = False
    stated: bool = False
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    formats: Mapping[str, bool] = field(default_factory=dict[str, bool])
    prefix: str = ""
    ends: bool = False
    modules: bool = False
    model_less: bool = False
    in_place: bool = False
    at_once: bool = False
    bundled: bool = False
    first_runner: bool = False

    def called(self, architecture: str) -> str:
        """Return vLLM's name of the class of a draft."""
        own = architecture.startswith(self.prefix) or (self.ends and architecture.endswith(self.prefix))
        return architecture if own else f"{self.prefix}{architecture}"


@dataclass(frozen=True, eq=False)
class KindOfDraft:
    """A kind of draft: a class of speculators in vLLM, and all that is particular to it.

    Attributes:
        algorithms: the names of programs' algorithms -> vLLM's methods of the same; several kinds may share a name.
        needs: what it needs of vLLM, lines as in `seam`; they begin with the class of speculators.
        absent: what is said where that is not all there.
        digests: by class or module vLLM's functions whose meaning counts for it, as `digests.KNOWN`.
        drafts: the adapter's class that is put in front of vLLM's.
        form: what drafts, in words, where it is another form of a draft than others of the same method.
        draws: whether drafts may be drawn, and weighed by what they were drawn from.
        rescores: whether a program changes the draft's logits before it draws from them, and keeps them as it has them.
        estimates: whether vLLM's estimator reads the logits that forwards of the draft return, which is what a program
            draws from as well.
        settles: settings of a server, see `served.SETTINGS`, that vLLM settles for it whatever is written.
        options: by key of `options` its only value in vLLM, as `Preset.options`.
        written: further options of programs -> vLLM's keys that say them, and `origin`, what says so in a comment.
        whole_text: the option that says how many tokens a text may have; empty where there is none.

    """

    algorithms: Mapping[str, tuple[Method, ...]]
    needs: str
    absent: str
    digests: Mapping[str, Mapping[str, str]]
    drafts: str
    form: str = ""
    draws: bool = False
    rescores: bool = False
    estimates: bool = False
    settles: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    written: Mapping[str, str] = field(default_factory=dict[str, str])
    origin: str = ""
    whole_text: str = ""

    @property
    def methods(self) -> tuple[Method, ...]:
        """All of vLLM's methods that are of this kind."""
        return tuple(method for methods in self.algorithms.values() for method in methods)

    def algorithm(self, method: str | None) -> str | None:
        """Return the program's algorithm that a method is; None for a method of another kind."""
        names = (name for name, methods in self.algorithms.items() if method in [of.name for of in methods])
        return next(names, None)

    def own(self, place: str) -> Any:
        """Return what is at a place of the adapter, such as `drafts`; that imports vLLM."""
        module, _, name = place.rpartition(".")
        return getattr(importlib.import_module(f"..{module}", __package__), name)

    def settled(self, written: Mapping[str, int | None], wrong: Callable[[str], None]) -> Mapping[str, int]:
        """Return the options of `written`, by what the command line says of them, after reporting what is wrong."""
        return {}
