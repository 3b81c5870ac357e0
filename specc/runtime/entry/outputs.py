"""Outputs as typed attributes of a result: what there is, is there by name, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar, overload

from ..plan.outputs import MEANINGS

T = TypeVar("T")


class Attribute(Generic[T]):
    """An attribute of results: the output of its name, a T. AttributeError where the program does not hand it out."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Be the output `name`, and say what it means."""
        self._name = name
        self.__doc__ = MEANINGS[name]

    @overload
    def __get__(self, result: None, owner: type) -> Attribute[T]: ...
    @overload
    def __get__(self, result: Outputs, owner: type) -> T: ...
    def __get__(self, result: Outputs | None, owner: type) -> Attribute[T] | T:
        """The output of a result; of its class the attribute itself, for `help`."""
        if result is None:
            return self
        if self._name in result.outputs:
            return result.outputs[self._name]
        raise AttributeError(f"no output {self._name!r}; there are {', '.join(sorted(result.outputs))}")

    def __set__(self, result: Outputs, value: object) -> NoReturn:
        """AttributeError: results stay what they are."""
        raise AttributeError(f"the output {self._name!r} cannot be set")


@dataclass(frozen=True)
class Outputs:
    """What an entry of a program hands back, by name and as attributes; those of a plugin are attributes as well."""

    outputs: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Let outputs that no class declares be attributes, unless something else has the name."""
        vars(self).update({name: value for name, value in self.outputs.items() if not hasattr(type(self), name)})

    def __dir__(self) -> list[str]:
        """What this result has: outputs that the program does not hand out are left out."""
        declared = {name for name in MEANINGS if isinstance(getattr(type(self), name, None), Attribute)}
        return sorted({*super().__dir__()} - declared | declared & self.outputs.keys())
