"""Candidates of a block's places that are found one after the other; against plain lists and the reference ops."""

import pytest
import torch
from cluster_cases import Scan, TypedBuilder, check_module, integer, random_batch, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick, random_logits
from kernel_launcher import Launcher

from specc.runtime.semantics.convention import DTYPES

FLOATS = ("f32", "f16", "bf16")


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=15)
@given(seed=st.integers(0, 2**32), branches=st.integers(2, 5), steps=st.integers(1, 5), vocab=st.integers(6, 300))
def test_candidates_are_put_beside_those_of_other_places(
    launcher: Launcher, dtype: str, seed: int, branches: int, steps: int, vocab: int
) -> None:
    """In the launch that ranks a place's tokens: those of all places so far, and the best of this one."""
    source = generator(seed)
    module = small_module(K=branches, S=steps, V=vocab)
    place = integer(source, 0, steps - 1)
    b = TypedBuilder(module)
    before = b.given("before", "f32", "S", "K"), b.given("known", "i64", "S", "K")
    with b.phase("draft"):
        p, index, bad = b.many("vocab.topk", b.given("logits", dtype, "V"), module.inputs["req_pool_indices"])
        if place:
            both = [b("place.append", *pair, place=place) for pair in zip(before, (p, index), strict=True)]
        else:
            both = [b("place.start", row) for row in (p, index)]
        best = b("place.best", index)
    b.hand_out(*both, best, bad)
    batch = random_batch(source)
    logits = random_logits(source, len(batch), vocab, vocab, DTYPES[dtype])
    known = torch.randint(vocab, (len(batch), steps, branches), generator=source)
    values = check_module(
        launcher, module, source, {"req_pool_indices": batch, "logits": logits, "known": known}, Scan(1, 64, 1)
    )
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1
    candidates, places = values[index.name].tolist(), values[both[1].name].tolist()
    assert values[best.name].tolist() == [row[0] for row in candidates]
    for row, chosen, had in zip(places, candidates, known.tolist(), strict=True):
        assert row[place] == chosen
        assert not place or [own for at, own in enumerate(row) if at != place] == [
            own for at, own in enumerate(had) if at != place
        ]
