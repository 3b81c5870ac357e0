"""Models of Qwen4-Exp's kind: an index picks tokens, states are recurrent, n-grams are looked up, a module drafts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hybrid_models import decided
from sglang_family import Family, FamilyTests, Running, in_float32
from sglang_files import NEWEST, ON_GPU, RANKS, VERSION
from sglang_hybrids import STATES, states_accounted_for
from sglang_mixed import Oracle
from sglang_server import Variant, greedy
from sglang_sparse import write_sparse
from sglang_vision import with_pictures
from sglang_workload import workload

pytestmark = pytest.mark.skipif(VERSION != NEWEST, reason="stand-ins are those of what the newest calls")
REQUESTS = int(os.environ.get("SPECC_TEST_HYBRIDS", "40"))
PAGE = 64
"""As SGLang takes it for such models."""
POOL = {"max_total_tokens": 12 * PAGE}
OWN = Variant("NEXTN", "sparse", target="sparse", page=PAGE, overlap=True)
PROGRAMS = [OWN, replace(OWN, overlap=False, samples=True), *[replace(OWN, ranks=2, experts=True)] * (RANKS > 1)]


def requests(folder: Path) -> list[Mapping[str, Any]]:
    """Requests, some of which have pictures; on a GPU none, of which a machine may lack what prepares them."""
    made = workload(REQUESTS, seed=3)
    return made if ON_GPU else [*with_pictures(made, folder)]


SPARSE = Family(
    Variant(target="sparse", page=PAGE),
    [replace(program, program=True) for program in PROGRAMS],
    lambda folder: write_sparse(folder / "sparse", wide=32 if ON_GPU else 16),
    requests,
    own=OWN,
    arguments=STATES | POOL | ({"mm_attention_backend": "triton_attn"} if ON_GPU else {}),
    anew=True,
    pools={"NEXTN": ["QSATokenToKVPool", "QSATokenToKVPool"]},
    accepted=1.05,
)
COMPARED = [(SPARSE, engine) for engine in (OWN, *SPARSE.programs)]


class TestSparse(FamilyTests):
    compared, beside = COMPARED, [(SPARSE, program, OWN) for program in SPARSE.programs]


@in_float32
@pytest.mark.parametrize("family", [SPARSE], ids=str)
def test_without_speculation_texts_are_the_targets_own(family: Family, engines: Running) -> None:
    """Against transformers, every third one; they depend on states and n-grams, and rounding decides on none."""
    oracle, answers = Oracle(engines.models / "sparse"), list(greedy(engines.of(family.alone)))
    followed, ahead = decided(oracle.of_texts)
    assert followed > 24
    assert ahead > 0.1
    for number, request, output in answers[::3]:
        if "pictures" not in request:
            assert oracle.follow(oracle.tokens(request["text"]), output["token_ids"]), number


@pytest.mark.parametrize(("family", "engine"), [(SPARSE, program) for program in SPARSE.programs], ids=str)
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    """Behind a dry step that was SGLang's own, from states of new requests."""
    served = engines.of(engine)
    assert served.state["specc"]["proof"] == "passed"
    assert served.state["specc"]["served"] > 20
    assert served.state["specc"]["left"].keys() <= (set() if engine.samples else family.left)
    assert served.state["specc_testing"]["pools"] == family.pools["NEXTN"]
    assert states_accounted_for(served.state["specc_testing"]) > 0
