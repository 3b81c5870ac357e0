"""The records of kinds of drafts: what they name is there, and nothing of them is a word that nobody reads."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from specc.compiler.algorithms import names
from specc.engines import sglang
from specc.engines.sglang import seam
from specc.engines.sglang.check.preset import SGLANG
from specc.engines.sglang.kinds import KINDS, KindOfDraft, kind_of
from specc.engines.sglang.kinds.block_drafts import CORRECTED_BLOCKS
from specc.engines.sglang.served import ROLES, SETTINGS, ServedModel, Server
from specc.engines.sglang.served_settings import OF_KINDS

ADAPTER = Path(sglang.__file__).parent
every = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.algorithms[0].lower())


def test_every_algorithm_is_of_one_kind() -> None:
    count = Counter(name for kind in KINDS for name in kind.algorithms)
    assert set(count.values()) == {1}
    assert set(SGLANG.algorithms) == set(count) <= set(names())
    assert kind_of(None) is None and kind_of("NONE") is None
    assert all(name in kind.algorithms for kind in KINDS for name in kind.token_maps)


@every
def test_classes_of_sglang_are_in_the_table_of_what_it_needs(kind: KindOfDraft) -> None:
    """That of its workers comes first, and SGLang's own forward of a batch is looked at."""
    lines = [touch.place for touch in seam.touches(kind.needs if kind.absent else seam.MUST)]
    assert lines[0] == kind.place or not kind.absent
    assert f"{kind.place}.forward_batch_generation" in lines
    assert kind.keeps in [*lines, *(touch.place for touch in seam.touches(seam.MUST))]


@every
def test_classes_of_the_adapter_are_there(kind: KindOfDraft) -> None:
    for place in (kind.forwards, kind.state):
        *folders, file, name = place.split(".")
        tree = ast.parse(ADAPTER.joinpath(*folders, f"{file}.py").read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


@every
def test_what_a_kind_says_is_read(kind: KindOfDraft) -> None:
    assert kind.roles.keys() <= set(ROLES)
    assert kind.roles["verify"] == "target" and set(kind.roles.values()) <= {"target", "draft"}
    assert kind.refused.keys() <= {"topk", "adapters", "groups", "disaggregation_mode"}
    assert kind.unstarted.keys() <= {"adapters", "groups", "cpu"}
    assert not kind.setting[0] or kind.written, f"{kind.setting} is of a kind that has its algorithm from another"
    assert kind.setting[0] not in SETTINGS
    assert not kind.setting[0] or kind.setting[0] in OF_KINDS


@every
def test_models_are_asked_for_what_is_beside_by_kinds_that_refuse_some(kind: KindOfDraft) -> None:
    """Modules of Step-3.5's kind say that they have embeddings, and fail when they are asked for them."""

    class Model:
        def get_input_embeddings(self) -> None:
            raise AttributeError

    if kind is CORRECTED_BLOCKS:  # of another class is enough
        assert kind.model_beside(Model()) == kind.beside("Model")
    elif kind.marks:
        with pytest.raises(AttributeError):
            kind.model_beside(Model())
    else:
        assert kind.model_beside(Model()) == ""


@every
def test_a_role_reads_the_cache_that_its_kind_says(kind: KindOfDraft) -> None:
    models = {"target": ServedModel(cache="mla"), "draft": ServedModel()}
    server = Server(models["target"], models["draft"], kind)
    for role, owner in kind.roles.items():
        model = server.model(role)
        assert model is not None and model.cache == models[owner].cache
