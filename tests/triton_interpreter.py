"""Triton's interpreter, without what it does for nothing or wrong, and without its warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from operator import index
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton_recordings import recorded

_patch_language = interpreter._patch_lang


@cache
def lighten() -> None:
    """Leave out what the interpreter does for nothing: most of its time. Whoever asks again has it already.

    At every call of a device function it looks for functions of `triton.language` to replace, though the launch has
    replaced them all. It computes whether integers overflow, to assert it; but its assertions are for debugging,
    which is off. It sorts the arguments of every call. And it derives for every value anew what follows from its type,
    and what a function does for types.
    """
    interpreter._patch_lang = _patch_what_is_left
    interpreter._patch_attr = _patch_builtin
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = _remembered(interpreter._get_np_dtype)
    interpreter._validate_np_data_size = _remembered_sizes(interpreter._validate_np_data_size)
    tl.block_type.__init__ = _remembered_blocks(tl.block_type.__init__)
    tl.tensor.__init__ = _remembered_shapes(tl.tensor.__init__)
    tl.core.tuple.__eq__ = _equal
    interpreter.InterpreterBuilder.create_splat = _splat(interpreter.InterpreterBuilder.create_splat)
    interpreter.InterpreterBuilder.cast_impl = _rounded(interpreter.InterpreterBuilder.cast_impl)


def _splat(spread: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar in every place of a block. A condition stays one.

    The interpreter makes numbers of it, since it takes the type of what was compared for that of the comparison. Up to
    Triton 3.8 they were masks all the same, in 3.9 they are refused.
    """

    def spread_over(self: Any, block: Any, value: Any) -> Any:
        if value.data.dtype != np.bool_:
            return spread(self, block, value)
        return interpreter.TensorHandle(np.full(block.shape, value.data), tl.int1)

    return spread_over


def _rounded(cast: Callable[..., Any]) -> Callable[..., Any]:
    """Numbers f32 as bf16, to the nearest, of two the even one, as a GPU makes them; the interpreter cuts bits off."""

    def cast_to(self: Any, value: Any, to: Any) -> Any:
        if (value.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, value, to)
        bits = np.ascontiguousarray(value.data, dtype=np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return interpreter.TensorHandle(
            np.where(np.isnan(value.data), bits >> 16 | 0x40, rounded).astype(np.uint16), tl.bfloat16
        )

    return cast_to


def _remembered(of_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of a type, called once for each. A type is its name: it has element, address space and shape."""
    known: dict[str, Any] = {}

    def remembered(type_: Any) -> Any:
        if type_.name not in known:
            known[type_.name] = of_type(type_)
        return known[type_.name]

    return remembered


def _remembered_blocks(init: Callable[..., None]) -> Callable[..., None]:
    """The checks of a block's shape and its name, once for each."""
    known: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}

    def made(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, tuple(map(index, shape))
        if key not in known:
            init(self, element_ty, shape)
            known[key] = dict(vars(self))
        vars(self).update(known[key], element_ty=element_ty)

    return made


def _remembered_shapes(init: Callable[..., None]) -> Callable[..., None]:
    """The shape of a tensor in constants, once for each type."""
    known: dict[str, dict[str, Any]] = {}

    def made(self: Any, handle: Any, type: Any) -> None:
        if type.name not in known:
            init(self, handle, type)
            known[type.name] = dict(vars(self))
        vars(self).update(known[type.name], handle=handle, type=type, dtype=type.scalar)

    return made


def _remembered_sizes(fits: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Whether numbers of an array are no wider than those of a type, asked once for each pair."""
    known: dict[tuple[Any, str], bool] = {}

    def remembered(array: Any, type_: Any) -> bool:
        key = array.dtype, type_.name
        if key not in known:
            known[key] = fits(array, type_)
        return known[key]

    return remembered


def _equal(self: Any, other: Any) -> Any:
    """Whether two shapes are equal, without making a tuple of the language of the other."""
    return tl.constexpr(self.values == (other.values if isinstance(other, tl.core.tuple) else list(other)))


def _patch_builtin(holder: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Let a function of the language know the interpreter, whose own patch copies the arguments of every call."""
    scope.set_attr(holder, name, recorded(getattr(member, "__wrapped__", member), interpreter_semantic(builder)))


@cache
def interpreter_semantic(builder: Any) -> TritonSemantic:
    """The one of the interpreter, where it has one."""
    return getattr(interpreter, "interpreter_semantic", None) or TritonSemantic(builder)


def _patch_what_is_left(function: FunctionType) -> Any:
    """Patch unless everything is; the modules are looked up where the interpreter does."""
    if any(tl.core.is_builtin(module.load) for module in _languages(function)):
        return _patch_language(function)
    return interpreter._LangPatchScope()


@cache
def _languages(function: FunctionType) -> tuple[Any, ...]:
    """The modules of the language that a function sees."""
    return tuple(value for value in function.__globals__.values() if value is tl or value is tl.core)


@contextmanager
def quietly() -> Iterator[None]:
    """Ignore what says nothing about kernels."""
    with warnings.catch_warnings():
        # The interpreter of triton 3.6 does this in `range` over its tensors; numpy < 2.4 still allows it.
        warnings.filterwarnings("ignore", "Conversion of an array", DeprecationWarning)
        # Deprecated in triton 3.9, gone in 3.10, which is not supported: without it values go through shared memory.
        warnings.filterwarnings("ignore", r"tl.reshape\(can_reorder=True\)", UserWarning)
        # What floats do on a GPU without a word.
        warnings.filterwarnings("ignore", "(overflow|invalid value) encountered in|All-NaN", RuntimeWarning)
        yield
