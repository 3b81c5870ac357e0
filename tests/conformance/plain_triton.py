"""Scalar Triton kernels as plain Python: the same functions, over numpy numbers in place of the interpreter's tensors.

SGLang's tree builder and verifier are one program per request that loads and stores single numbers. In Triton's
interpreter a tree of 300 nodes takes half a minute; run like this, a fraction of a second. What is executed is the body
of the kernel, unchanged: only its global `tl` is another one. Every answer that Triton's interpreter can give in time
is computed by both and compared by `oracle.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Pointer:
    """An element of a flat array; arithmetic moves it."""

    array: np.ndarray[Any, Any]
    offset: int = 0

    def __add__(self, count: Any) -> Pointer:
        return Pointer(self.array, self.offset + int(count))

    def __sub__(self, count: Any) -> Pointer:
        return self + -int(count)


class Language:
    """The part of `triton.language` that scalar kernels use. An access outside of a buffer is an error."""

    def __init__(self) -> None:
        self.program = 0

    def program_id(self, axis: int) -> np.int64:
        """The number of the program."""
        assert axis == 0
        return np.int64(self.program)

    @staticmethod
    def load(pointer: Pointer, mask: Any = True, other: Any = None) -> Any:
        """One number; `other` where the mask is false."""
        if not mask:
            return other
        if pointer.offset < 0:
            raise IndexError(pointer.offset)
        value = pointer.array[pointer.offset]
        return value if value.dtype == np.int64 else np.int64(value)

    @staticmethod
    def store(pointer: Pointer, value: Any, mask: Any = True) -> None:
        """One number."""
        if mask:
            if pointer.offset < 0:
                raise IndexError(pointer.offset)
            pointer.array[pointer.offset] = value

    @staticmethod
    def cast(value: Any, dtype: Any) -> Any:
        """All numbers are i64."""
        assert dtype == np.int64
        return np.int64(value)


@dataclass(frozen=True)
class Kernel:
    """A kernel that is launched as Triton's are: `kernel[grid](...)`."""

    function: Callable[..., None]
    language: Language

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            passed = [Pointer(a.view(-1).numpy()) if isinstance(a, Tensor) else a for a in arguments]
            for program in range(grid[0]):
                self.language.program = program
                self.function(*passed, **constants)

        return launch


def plain(wrapper: Callable[..., Any], kernel: str) -> Callable[..., Any]:
    """The function `wrapper`, which launches the kernel of that name in its module, with the kernel as plain Python."""
    language = Language()
    source = wrapper.__globals__[kernel].fn
    function = types.FunctionType(source.__code__, {**source.__globals__, "tl": language}, kernel)
    return types.FunctionType(
        wrapper.__code__, {**wrapper.__globals__, kernel: Kernel(function, language)}, kernel, wrapper.__defaults__
    )
