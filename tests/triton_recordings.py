"""What a function of Triton's language asks of the builder, recorded once for arguments of each types.

The interpreter runs the language as the compiler does: between a sum of two tensors and numpy's are a dozen functions
that ask for types. Types and numbers decide what the builder is asked for, so it is asked for the same at once when
they come again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import TensorHandle

_new = object.__new__


@cache
def recorded(function: Callable[..., Any], semantic: TritonSemantic) -> Callable[..., Any]:
    """A function of the language that knows the interpreter, and is called once for arguments of each types."""
    known: dict[tuple[Any, ...], Recording | None] = {}
    Tensor = tl.tensor

    def called(*args: Any, **kwargs: Any) -> Any:
        if "_semantic" in kwargs:  # by another function, which is recorded
            return function(*args, **kwargs)
        key: list[Any] = [*kwargs]
        handles: list[TensorHandle] = []
        for value in (*args, *kwargs.values()) if kwargs else args:
            if value.__class__ is Tensor:
                key.append(value.type.name)
                handles.append(value.handle)
            else:
                key.append(_key(value))
        types = tuple(key)
        try:
            recording = known[types]
        except KeyError:
            recorder = Recorder(semantic.builder)
            result = function(*args, **kwargs, _semantic=TritonSemantic(recorder))
            if len({*map(id, handles)}) == len(handles):  # else nothing says which of two is meant
                known[types] = recorder.recording(handles, result)
            return result
        except TypeError:  # of what no key is made
            recording = None
        if recording is None:
            return function(*args, **kwargs, _semantic=semantic)
        return recording.play(semantic.builder, handles)

    return called


def _key(value: Any) -> Any:
    """What makes a value another one, its class included: 0 is not 0.0, nor is that -0.0. A list cannot be hashed."""
    kind = value.__class__
    if value is None or kind in (int, bool, str):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is tl.constexpr:
        return kind, _key(value.value)
    if isinstance(value, tl.dtype):
        return tl.dtype, value.name
    if kind is tuple or kind is tl.core.tuple:
        return tuple, *map(_key, value)
    if kind is slice:
        return kind, *map(_key, (value.start, value.stop, value.step))
    return []


@dataclass(slots=True)
class Recording:
    """Calls of a builder's methods, whose arguments are places in a list of values.

    Attributes:
        values: constants in their places; the first places are those of given handles, others those of results.
        calls: names of methods, and the places of their arguments and of their result.
        last: the place of the handle that is returned.
        made: all that the tensor around it has besides; None if nothing is returned.

    """

    values: list[Any]
    calls: list[tuple[str, tuple[int, ...], int]]
    last: int
    made: dict[str, Any] | None

    def play(self, builder: Any, handles: list[TensorHandle]) -> Any:
        """The result for other handles of the same types, made without a constructor that asks for types again."""
        values = self.values.copy()
        values[: len(handles)] = handles
        for name, places, place in self.calls:
            values[place] = getattr(builder, name)(*[values[at] for at in places])
        if self.made is None:
            return None
        result = _new(tl.tensor)
        vars(result).update(self.made, handle=values[self.last])
        return result


class Recorder:
    """A builder that hands everything on to another one, and keeps what that was asked and has answered."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._asked: list[tuple[str, tuple[Any, ...], Any]] = []

    def __getattr__(self, name: str) -> Any:
        """What the other builder has; what makes handles is recorded."""
        method = getattr(self._builder, name)
        if not name.startswith(("create_", "get_")):
            return method

        def asked(*args: Any) -> Any:
            result = method(*args)
            self._asked.append((name, args, result))
            return result

        return asked

    def recording(self, given: Sequence[TensorHandle], result: Any) -> Recording | None:
        """What was asked by a function of these handles that has returned a result, as far as it depends on them.

        None where the function has other handles than the builder's, or returns more than one tensor.
        """
        values: list[Any] = [*given]
        calls: list[tuple[str, tuple[int, ...], int]] = []
        places = {id(handle): place for place, handle in enumerate(given)}
        constant = set[int]()

        def placed(value: Any) -> int:
            values.append(value)
            return len(values) - 1

        for name, args, made in self._asked:
            read = {id(arg) for arg in args if isinstance(arg, TensorHandle)}
            if not read <= places.keys() or any(map(_has_handles, args)):
                return None
            if name.startswith("get_") or (read and read <= constant):
                places[id(made)] = placed(made)
                constant.add(id(made))
            else:
                at = tuple(places[id(arg)] if id(arg) in read else placed(arg) for arg in args)
                places[id(made)] = placed(None)
                calls.append((name, at, places[id(made)]))
        if result is None:
            return Recording(values, calls, 0, None)
        if not isinstance(result, tl.tensor) or id(result.handle) not in places:
            return None
        made = {name: value for name, value in vars(result).items() if name != "handle"}
        values[: len(given)] = [None] * len(given)
        return Recording(values, calls, places[id(result.handle)], made)


def _has_handles(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(each, TensorHandle) for each in value)
