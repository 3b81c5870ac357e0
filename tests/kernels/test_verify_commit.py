"""verify_commit of a chain against a walk over a plain scan's argmaxes."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, generator, ids, quicker
from kernel_families import FAMILIES
from kernel_launcher import Launcher
from verify_cases import random_inputs, run

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "steps": st.integers(1, 6),
        "vocab": st.integers(1, 300) | st.integers(301, 3000) | st.sampled_from([64, 512, 2048]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, 4),
        "block": st.sampled_from([16, 64, 512, 1024]),
    }
)
CHAINS = [flags for flags in FAMILIES["verify_commit"].combinations() if not flags["tree"]]


@pytest.mark.parametrize("flags", CHAINS, ids=ids(CHAINS))
@settings(quicker, max_examples=4)
@given(shape=shapes, dtype=st.sampled_from(sorted(DTYPES)))
def test_verify_commit(launcher: Launcher, flags: dict[str, Any], shape: dict[str, int], dtype: str) -> None:
    """Most drafts follow the target for a while."""
    source = generator(shape["seed"])
    shape = {**shape, "nodes": shape["steps"] + 1}
    inputs, targets = random_inputs(shape, dtype, source)
    follow = torch.rand(targets[:, 1:].shape, generator=source) < 0.8
    inputs["tokens_ptr"][:, 1:] = torch.where(follow, targets[:, :-1], inputs["tokens_ptr"][:, 1:])
    run(launcher, flags, shape, inputs, source)


@pytest.mark.parametrize("accepted", range(4))
def test_every_accept_length(launcher: Launcher, accepted: int) -> None:
    """Drafts that follow the target exactly `accepted` times are accepted exactly so often."""
    shape = {"batch": 2, "nodes": 4, "steps": 3, "vocab": 40, "slack": 0, "splits": 2, "block": 16}
    source = generator(accepted)
    logits = torch.randn(8, 40, generator=source)
    targets = logits.argmax(-1).view(2, 4)
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    tokens[:, 1:] = targets[:, :-1]
    if accepted < 3:
        tokens[:, accepted + 1] = (tokens[:, accepted + 1] + 1) % 40
    inputs = {
        "rows_ptr": torch.tensor([5, 0]),
        "logits_ptr": logits,
        "tokens_ptr": tokens,
        "seq_lens_ptr": torch.tensor([7, 9]),
    }
    flags = CHAINS[-1]
    expected = run(launcher, flags, shape, inputs, source)
    assert expected["accept_lens_ptr"][:2].tolist() == [accepted + 1, 0]
    assert expected["new_seq_lens_ptr"][:2].tolist() == [7 + accepted + 1, 0]
    assert expected["bonus_ptr"][0] == targets[0, accepted]
