"""Recordings of the interpreter compute what it computes itself, whichever arguments came first."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from kernel_launcher import INTERPRETED
from triton.language.semantic import IncompatibleTypeErrorImpl
from triton.runtime.interpreter import TensorHandle, interpreter_builder
from triton_interpreter import interpreter_semantic
from triton_recordings import recorded

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled in this process")
DTYPES = {np.int32: tl.int32, np.int64: tl.int64, np.float32: tl.float32, np.bool_: tl.int1}


def tensor(values: Any, dtype: type) -> Any:
    """A block of values, or a scalar of one."""
    data, kind = np.array(values, dtype).reshape(-1), DTYPES[dtype]
    return tl.tensor(TensorHandle(data, kind), tl.block_type(kind, [len(data)]) if isinstance(values, list) else kind)


def language(function: Any) -> Callable[..., Any]:
    """A function of the language, recorded anew."""
    return recorded.__wrapped__(getattr(function, "__wrapped__", function), interpreter_semantic(interpreter_builder))


def values_of(result: Any) -> Any:
    return result.handle.data.tolist()


X, Y = tensor([1, -2, 3, 4], np.int32), tensor([5, 6, -7, 8], np.int32)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "lt", "xor"])
def test_operands_stay_in_their_places(name: str) -> None:
    """Also behind a call in which both were the same tensor."""
    called, expected = language(getattr(tl.tensor, f"__{name}__")), getattr(operator, name)
    for left, right in [(X, X), (X, Y), (Y, X), (Y, Y), (X, Y)]:
        pairs = zip(left.handle.data.tolist(), right.handle.data.tolist(), strict=True)
        assert values_of(called(left, right)) == [expected(*pair) for pair in pairs]


@pytest.mark.parametrize("numbers", [(2, 3, 2), (1, 2.5, 1), (1, True, 1), (math.nan, 1.0, 2.0)])
def test_numbers_are_told_apart(numbers: tuple[float, ...]) -> None:
    """Those that compare equal as well."""
    called, x = language(tl.tensor.__mul__), tensor([-1.5, 2.0], np.float32)
    for number in (*numbers, *map(tl.constexpr, numbers)):
        product = called(x, number).handle.data
        value = number.value if isinstance(number, tl.constexpr) else number
        expected = np.array([-1.5, 2.0], np.float32) * np.float32(value)
        assert product.tobytes() == expected.tobytes()


def test_types_are_told_apart() -> None:
    """Scalars from blocks, and numbers of one width from those of another."""
    called = language(tl.tensor.__add__)
    for left, right in [
        (X, Y),
        (X, tensor(2**20, np.int32)),
        (X, tensor(2**40, np.int64)),
        (X, tensor(0.5, np.float32)),
    ]:
        for _ in range(2):
            found = called(left, right)
            expected = left.handle.data + right.handle.data.astype(DTYPES_OF[found.dtype.name])
            assert values_of(found) == expected.tolist()
            assert found.shape.values == [4]


DTYPES_OF = {kind.name: dtype for dtype, kind in DTYPES.items()}


def test_names_and_shapes_are_told_apart() -> None:
    """A keyword is another argument, and an axis another result."""
    where, index = language(tl.where), language(tl.tensor.__getitem__)
    condition = tensor([True, False, True, False], np.bool_)
    for _ in range(2):
        assert values_of(where(condition, x=X, y=Y)) == [1, 6, 3, 8]
        assert values_of(where(condition, y=X, x=Y)) == [5, -2, -7, 4]
        assert index(X, (slice(None), None)).handle.data.shape == (4, 1)
        assert index(X, (None, slice(None))).handle.data.shape == (1, 4)


def test_what_depends_on_more_than_arguments_is_asked_for_each_time() -> None:
    called = language(tl.program_id)
    interpreter_builder.set_grid_dim(3, 1, 1)
    for number in (0, 2, 1):
        interpreter_builder.set_grid_idx(number, 0, 0)
        assert values_of(called(0)) == [number]


def test_an_error_is_an_error_each_time() -> None:
    called = language(tl.tensor.__and__)
    for _ in range(3):
        with pytest.raises(IncompatibleTypeErrorImpl):
            called(X, tensor(0.5, np.float32))
