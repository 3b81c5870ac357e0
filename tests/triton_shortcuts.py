"""What Triton's interpreter computes for a function of the language, without what leads there.

A sum of two tensors goes through a dozen of functions that ask for types before numpy adds. Types decide what numpy is
asked to do in the end. So it is learnt once for operands of each types, and done at once from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

SHORTENED = frozenset(
    (
        *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "and", "or", "xor") for side in ("", "r")),
        *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne", "lshift", "rshift")),
        *("to", "where", "minimum", "maximum", "fma", "exp", "exp2"),
    )
)
"""Functions of the language that are one function of numpy, for most types."""


@dataclass(frozen=True)
class _Operation:
    """What the interpreter has computed.

    Attributes:
        function: a function of numpy's arrays.
        operands: what it was given.
        typed: the type of the result's numbers as the interpreter has it, or the operand that has it.
        result: what came out.

    """

    function: Callable[..., Any]
    operands: tuple[TensorHandle, ...]
    typed: Any
    result: TensorHandle


_noted: list[_Operation] = []
"""What was computed since somebody has looked last."""


class _Shortcut:
    """An operation for arguments of some types: each operand is an argument, by its number, or a constant.

    It is called hundreds of thousands of times, so it makes its result without the checks of a constructor.
    """

    __slots__ = ("_constants", "_function", "_operands", "_result", "_scalar", "_typed")

    def __init__(
        self, operation: _Operation, operands: Sequence[int | TensorHandle], arguments: int, result: Any
    ) -> None:
        constants = [operand for operand in operands if not isinstance(operand, int)]
        places = iter(range(arguments, arguments + len(constants)))
        self._function, self._constants = operation.function, tuple(tl.tensor(each, tl.void) for each in constants)
        self._operands = [operand if isinstance(operand, int) else next(places) for operand in operands]
        self._typed = self._operands[operation.typed] if isinstance(operation.typed, int) else None
        self._scalar = operation.typed
        self._result = {name: value for name, value in vars(result).items() if name != "handle"}

    def of(self, arguments: tuple[Any, ...]) -> Any:
        """The result for arguments of these types."""
        given = (*arguments, *self._constants) if self._constants else arguments
        handle, made = _new(TensorHandle), _new(tl.tensor)
        handle.data = self._function(*[given[at].handle.data for at in self._operands])
        handle.dtype = self._scalar if self._typed is None else given[self._typed].handle.dtype.scalar
        handle.attr = {}
        vars(made).update(self._result)
        made.handle = handle
        return made


_new = object.__new__


def note_operations() -> None:
    """Let the interpreter note what it computes."""
    builder = InterpreterBuilder
    builder.binary_op = _noting(builder.binary_op, 0)
    builder.ternary_op = _noting(builder.ternary_op, 2)
    builder.unary_op = _noting(builder.unary_op, 0)
    builder.cast_impl = _noting_casts(builder.cast_impl)
    builder.create_fma = lambda self, x, y, z: self.ternary_op(x, y, z, _multiplied_and_added)
    builder.create_addptr = lambda self, pointer, steps: self.binary_op(pointer, steps, _moved(_width(pointer)))


def _noting(operate: Callable[..., Any], typed: int) -> Callable[..., Any]:
    def noted(self: Any, *given: Any) -> Any:
        *operands, function = given
        result = operate(self, *given)
        _noted.append(_Operation(function, tuple(operands), typed, result))
        return result

    return noted


def _noting_casts(cast: Callable[..., Any]) -> Callable[..., Any]:
    def noted(self: Any, given: Any, type_: Any) -> Any:
        result = cast(self, given, type_)
        bf16 = tl.bfloat16 in (given.dtype.scalar, type_.scalar)  # of which numpy knows nothing
        function = np.array if bf16 else partial(np.ndarray.astype, dtype=result.data.dtype)
        _noted.append(_Operation(function, (given,), result.dtype, result))
        return result

    return noted


def _multiplied_and_added(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def _width(pointer: Any) -> int:
    """Bytes of what a pointer points to."""
    return max(1, pointer.get_element_ty().primitive_bitwidth // 8)


@cache
def _moved(width: int) -> Callable[..., Any]:
    return lambda addresses, steps: addresses + width * steps.astype(np.uint64)


@cache
def shortened(called: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the language that asks for types once: for each types of its operands, and for each number."""
    known: dict[tuple[Any, ...], _Shortcut | None] = {}

    def shortcut(*arguments: Any, **named: Any) -> Any:
        key = tuple([each.type.name if type(each) is tl.tensor else _plain(each) for each in arguments])
        if named:
            key += tuple((name, _plain(argument)) for name, argument in named.items())
        if (short := known.get(key)) is not None:
            return short.of(arguments)
        _noted.clear()
        result = called(*arguments, **named)
        if key not in known:
            known[key] = _learnt(arguments, result)
        return result

    return shortcut


def _plain(argument: Any) -> tuple[Any, ...]:
    value = argument.value if isinstance(argument, tl.constexpr) else argument
    if isinstance(value, tl.dtype):
        return type(value), value.name
    return type(value), value if value == value else str(value)


def _learnt(arguments: Sequence[Any], result: Any) -> _Shortcut | None:
    """How the result comes of arguments, if by one operation on them in their order, spread over blocks or not."""
    if type(result) is not tl.tensor or not _noted or _noted[0].result is not result.handle:
        return None
    tensors = [(at, each.handle) for at, each in enumerate(arguments) if type(each) is tl.tensor]
    operands: list[int | TensorHandle] = []
    for operand in _noted[0].operands:
        is_argument = bool(tensors) and _is_spread(operand, tensors[0][1])
        operands.append(tensors.pop(0)[0] if is_argument else operand)
    short = _Shortcut(_noted[0], operands, len(arguments), result)
    return None if tensors or not _alike(short.of(arguments).handle, result.handle) else short


def _is_spread(operand: TensorHandle, handle: TensorHandle) -> bool:
    """Whether an operand is a tensor's numbers, each perhaps several times."""
    same = operand.data.dtype == handle.data.dtype
    return same and _equal(operand.data, np.broadcast_to(handle.data, operand.data.shape))


def _alike(handle: TensorHandle, other: TensorHandle) -> bool:
    same = (handle.data.dtype, handle.dtype, handle.data.shape) == (other.data.dtype, other.dtype, other.data.shape)
    return same and _equal(handle.data, other.data)


def _equal(numbers: Any, others: Any) -> bool:
    return np.array_equal(numbers, others, equal_nan=np.issubdtype(numbers.dtype, np.floating))
