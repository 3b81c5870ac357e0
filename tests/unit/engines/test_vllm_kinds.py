"""The records of kinds of drafts in vLLM: what they name is there, and each method is of one of them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from specc.compiler.algorithms import names
from specc.engines import vllm
from specc.engines._probe import touches
from specc.engines.vllm.check.preset import VLLM
from specc.engines.vllm.kinds import (
    ALGORITHMS,
    ASSISTANTS,
    KINDS,
    METHODS,
    SEVERAL_MODULES,
    KindOfDraft,
    kind_of,
)
from specc.engines.vllm.kinds.unserved import UNSERVED
from specc.engines.vllm.served import Server

ADAPTER = Path(vllm.__file__).parent
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.needs.split(".")[4].split("(")[0])


def test_every_method_is_of_one_kind() -> None:
    """In each form of what drafts."""
    count = Counter((method.name, kind.form) for kind in KINDS for method in kind.methods)
    assert set(count.values()) == {1}
    assert {*METHODS} == {name for name, _ in count} | {method.name for method in UNSERVED}
    assert not {name for name, _ in count} & {method.name for method in UNSERVED}
    assert set(VLLM.algorithms) == {*ALGORITHMS} <= {*names()}


def test_methods_that_programs_have_not_are_of_no_kind() -> None:
    for method in (None, "", "deepseek_mtp", *(method.name for method in UNSERVED)):
        assert all(kind_of(method, kind.form) is None for kind in KINDS)
        assert Server(method).kind is None and Server(method).algorithm is None


@every
def test_a_method_says_which_algorithm_a_program_has(kind: KindOfDraft) -> None:
    for algorithm, methods in kind.algorithms.items():
        for method in methods:
            server = Server(method.name, modules=1 + (kind is SEVERAL_MODULES), assistant=kind is ASSISTANTS)
            assert (server.kind, server.algorithm) == (kind, algorithm)


@every
def test_what_a_record_names_is_there(kind: KindOfDraft) -> None:
    *folders, file, name = kind.drafts.split(".")
    tree = ast.parse(ADAPTER.joinpath(*folders, f"{file}.py").read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert touches(kind.needs)[0].place.startswith("v1.worker.gpu.spec_decode.")
    assert kind.digests, "nothing of what vLLM's own drafts of this kind do is known"


def test_a_word_of_a_draft_stands_for_one_method() -> None:
    for words in ("names", "classes", "formats"):
        count = Counter(word for method in METHODS.values() for word in getattr(method, words))
        assert set(count.values()) <= {1}
    assert sum(method.usual for method in METHODS.values()) == sum(method.modules for method in METHODS.values()) == 1
