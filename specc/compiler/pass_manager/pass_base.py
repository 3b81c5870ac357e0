"""What a pass is. Its dataclass fields are its options, spelled the same on the command line and in tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from specc.compiler.config import LoadedConfig
from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Resources
from specc.compiler.support.location import Location

REMOVED = "removed"
"""What was chosen for something that is gone."""


@dataclass(frozen=True)
class Rejected:
    """What a pass did not choose, and why; ``cost`` in the unit of its choice, None where nothing was counted."""

    what: str
    reason: str
    cost: float | None = None


@dataclass(frozen=True)
class Choice:
    """A decision as data.

    Attributes:
        of: what it is about: a node, a value, a part of the plan.
        chosen: what became of it.
        reason: why.
        rejected: what else was possible.
        cost: what is chosen costs so much, None where nothing was counted.
        unit: of all costs: ``bytes``, ``us``, ``graphs``, ...

    """

    of: str
    chosen: str
    reason: str
    rejected: tuple[Rejected, ...] = ()
    cost: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Remark:
    """A decision a pass took: what and why, in words and, where there was something to choose, as data."""

    pass_name: str
    message: str
    location: Location | None = None
    choice: Choice | None = None


@dataclass
class Context:
    """What passes share besides the module.

    Attributes:
        loaded: the configuration; None when a module was read from ``.specir``.
        kept: carried values and states that stay though nothing may read them: a program of another depth does.
        resources: figures of compiled kernels, by (kernel, arch); empty before AOT compilation.
        remarks: decisions taken so far, in order.

    """

    loaded: LoadedConfig | None = None
    kept: frozenset[str] = frozenset()
    resources: Mapping[tuple[str, str], Resources] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def at(self, *key: str) -> Location | None:
        """Where a key of the configuration was written; None if it was not, or there is no configuration."""
        written = self.loaded is not None and self.loaded.locations.written(*key)
        return self.loaded.location(*key) if self.loaded is not None and written else None


@dataclass(frozen=True)
class Pass(ABC):
    """One transformation of a module.

    The checker holds before and after; in between the module may be broken. ``requires`` must be established when it
    starts; afterwards what it ``establishes`` is, besides what was: no pass takes an invariant back. Once ``until`` is
    established it may not run: the ops of kernels stay as they are, and no declaration is made twice.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset()
    establishes: ClassVar[frozenset[str]] = frozenset()
    until: ClassVar[str] = "clustered"
    repeats: ClassVar[bool] = True
    """Whether the text of a module and the options are all that it reads: not so of the pass that makes the ops."""

    @classmethod
    def of(cls, loaded: LoadedConfig) -> Self:
        """The pass with the options that a configuration gives it: most have none.

        What a pass decides it decides by the module and its options, so that its text and they repeat what it did. The
        configuration in its context says where something was written.
        """
        return cls()

    @classmethod
    def violations(cls, module: Module) -> list[str]:
        """What keeps a module from being what the pass ``establishes``, in words. The checker knows more, see `until`.

        The first in the pipeline is asked where several passes establish the same.
        """
        return []

    @abstractmethod
    def run(self, module: Module, ctx: Context) -> None:
        """Transform ``module`` in place.

        Raises:
            DiagnosticError: the program cannot be built.

        """

    def remark(
        self, ctx: Context, message: str, location: Location | None = None, choice: Choice | None = None
    ) -> None:
        """Record a decision."""
        ctx.remarks.append(Remark(self.name, message, location, choice))
