"""Answers to questions about a module that several ask, remembered until the module changes.

Passes ask while they run, and the checker asks again after each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Decl

Answer = TypeVar("Answer")

_ANSWERS: WeakKeyDictionary[Module, dict[object, tuple[tuple[object, ...], Any]]] = WeakKeyDictionary()


def remembered(module: Module, question: Callable[[Module], Answer], *without: type[Decl]) -> Answer:
    """The answer of a function that reads nothing but the module, and of that no declarations of some kinds.

    The answer is shared, so callers leave it as it is. Kinds are left out that passes declare after the first question.
    """
    answers, state = _ANSWERS.setdefault(module, {}), module.state(*without)
    before, answer = answers.get(question, ((), None))
    if state != before:
        answer = question(module)
        answers[question] = state, answer
    return answer
