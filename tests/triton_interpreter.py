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

_patch_language = interpreter._patch_lang


@cache
def lighten() -> None:
    """Leave out what the interpreter does for nothing: most of its time. Whoever asks again has it already.

    At every call of a device function it looks for functions of `triton.language` to replace, though the launch has
    replaced them all. It computes whether integers overflow, to assert it; but its assertions are for debugging,
    which is off. It sorts the arguments of every call. And it derives for every value anew what follows from its type.
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
    TritonSemantic.scalar_constant = _remembered_constants(TritonSemantic.scalar_constant)
    TritonSemantic.broadcast_impl_value = _remembered_spreads(TritonSemantic.broadcast_impl_value)
    TritonSemantic.binary_op_type_checking_impl = _remembered_numbers(
        _unless_alike(TritonSemantic.binary_op_type_checking_impl)
    )


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


def _remembered_constants(constant: Callable[..., Any]) -> Callable[..., Any]:
    """A number as a tensor, made once for each type. Nothing may be written to its array, so others may have it."""
    known: dict[tuple[type, Any, str], Any] = {}

    def made(self: Any, value: Any, dtype: Any) -> Any:
        key = type(value), value, dtype.name
        if key not in known:
            known[key] = _lasting(constant(self, value, dtype))
        return known[key]

    return made


def _remembered_numbers(operands: Callable[..., Any]) -> Callable[..., Any]:
    """What operations make of a number beside a tensor that stays as it is, once for each type of that tensor.

    Types alone say whether the tensor stays. What is refused is refused every time, for nothing is remembered then.
    """
    known: dict[tuple[Any, ...], Any] = {}

    def made(self: Any, lhs: Any, rhs: Any, *flags: bool, **named: bool) -> Any:
        number, tensor = (lhs, rhs) if isinstance(rhs, tl.tensor) else (rhs, lhs)
        if isinstance(number, tl.tensor) or not isinstance(tensor, tl.tensor):
            return operands(self, lhs, rhs, *flags, **named)
        key = tensor is lhs, type(number), number, tensor.type.name, flags, *named.items()
        constant = known.get(key)
        if constant is None:
            left, right = operands(self, lhs, rhs, *flags, **named)
            kept, constant = (left, right) if tensor is lhs else (right, left)
            if kept is not tensor:
                return left, right
            known[key] = _lasting(constant)
        return (tensor, constant) if tensor is lhs else (constant, tensor)

    return made


def _remembered_spreads(spread: Callable[..., Any]) -> Callable[..., Any]:
    """Two operands of one shape. Which type each has then is asked once for each pair of types."""
    known: dict[tuple[str, str], tuple[Any, Any]] = {}

    def made(self: Any, lhs: Any, rhs: Any) -> Any:
        key = lhs.type.name, rhs.type.name
        if key not in known:
            left, right = spread(self, lhs, rhs)
            known[key] = left.type, right.type
            return left, right
        left, right = known[key]
        return _spread_to(self, lhs, left), _spread_to(self, rhs, right)

    return made


def _spread_to(semantic: Any, operand: Any, type_: Any) -> Any:
    """An operand in every place of a block of a type; its numbers are not copied unless there is only one."""
    if operand.type.name == type_.name:
        return operand
    if not operand.type.is_block():
        return tl.tensor(semantic.builder.create_splat(type_.to_ir(semantic.builder), operand.handle), type_)
    numbers = np.broadcast_to(operand.handle.data, [*map(index, type_.shape)])
    return tl.tensor(interpreter.TensorHandle(numbers, operand.handle.dtype.scalar), type_)


def _unless_alike(operands: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two operands, called unless it once left operands of these types as they were: types decide it."""
    alike: set[tuple[Any, ...]] = set()

    def made(self: Any, lhs: Any, rhs: Any, *flags: bool, **named: bool) -> Any:
        if not (isinstance(lhs, tl.tensor) and isinstance(rhs, tl.tensor)):
            return operands(self, lhs, rhs, *flags, **named)
        key = lhs.type.name, rhs.type.name, flags, *named.items()
        if key in alike:
            return lhs, rhs
        left, right = operands(self, lhs, rhs, *flags, **named)
        if left is lhs and right is rhs:
            alike.add(key)
        return left, right

    return made


def _lasting(tensor: Any) -> Any:
    """A tensor that others are given, too."""
    tensor.handle.data.flags.writeable = False
    return tensor


def _equal(self: Any, other: Any) -> Any:
    """Whether two shapes are equal, without making a tuple of the language of the other."""
    return tl.constexpr(self.values == (other.values if isinstance(other, tl.core.tuple) else list(other)))


def _patch_builtin(holder: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Let a function of the language know the interpreter, whose own patch copies the arguments of every call."""
    semantic = interpreter_semantic(builder)
    function = getattr(member, "__wrapped__", member)

    def called(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    scope.set_attr(holder, name, called)


@cache
def interpreter_semantic(builder: Any) -> TritonSemantic:
    """The one of the interpreter, where it has one."""
    return getattr(interpreter, "interpreter_semantic", None) or TritonSemantic(builder)


def _patch_what_is_left(function: FunctionType) -> Any:
    """Patch unless everything is; the modules are looked up where the interpreter does."""
    modules = [value for value in function.__globals__.values() if value is tl or value is tl.core]
    if any(tl.core.is_builtin(module.load) for module in modules):
        return _patch_language(function)
    return interpreter._LangPatchScope()


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
