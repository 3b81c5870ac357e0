"""Triton's interpreter, without what it does for nothing, and without its warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_patch_language = interpreter._patch_lang


def lighten() -> None:
    """Leave out what the interpreter does for nothing: more than half of its time.

    At every call of a device function it looks for functions of `triton.language` to replace, though the launch has
    replaced them all. And it computes whether integers overflow, to assert it; but its assertions are for debugging,
    which is off.
    """
    interpreter._patch_lang = _patch_what_is_left
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


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
        # What floats do on a GPU without a word.
        warnings.filterwarnings("ignore", "(overflow|invalid value) encountered in|All-NaN", RuntimeWarning)
        yield
