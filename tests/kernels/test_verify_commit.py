"""verify_commit against a walk over a plain scan's argmaxes."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES,
    affordable,
    argmax,
    check,
    generator,
    ids,
    poison,
    quicker,
    random_logits,
    random_rows,
    scratch,
)
from kernel_families import FAMILIES
from kernel_launcher import Launcher

SPLITS, POOL, BIT = 4, 24, 2
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "nodes": st.integers(2, 7),
        "vocab": st.integers(1, 300) | st.integers(301, 3000) | st.sampled_from([64, 512, 2048]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, 4),
        "block": st.sampled_from([16, 64, 512, 1024]),
    }
)


def walk(tokens: list[int], targets: list[int]) -> list[int]:
    """The tokens that greedy verification of a chain emits: accepted drafts, then the bonus."""
    emitted = [targets[0]]
    for draft, target in zip(tokens[1:], targets[1:], strict=True):
        if draft != emitted[-1]:
            break
        emitted.append(target)
    return emitted


def expect(
    flags: dict[str, bool],
    shape: dict[str, int],
    inputs: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """What the buffers hold after the kernel, request by request."""
    want = {name: value.clone() for name, value in outputs.items()}
    nodes = shape["nodes"]
    logits = inputs["logits_ptr"].view(shape["batch"], nodes, -1)
    for b, row in enumerate(inputs["rows_ptr"].tolist()):
        want["predict_ptr"][b] = 0
        want["extend_ids_ptr"][b] = 0
        emitted: list[int] = []
        if row:
            results = [argmax(logits[b, c, : shape["vocab"]]) for c in range(nodes)]
            emitted = walk(inputs["tokens_ptr"][b].tolist(), [index for index, _ in results])
            want["health_ptr"][b] |= BIT * any(bad for _, bad in results)
        count = len(emitted)
        want["predict_ptr"][b, :count] = torch.tensor(emitted, dtype=torch.int32)
        want["extend_ids_ptr"][b, :count] = torch.tensor(emitted, dtype=torch.int64)
        want["accept_lens_ptr"][b] = count
        want["new_seq_lens_ptr"][b] = int(inputs["seq_lens_ptr"][b]) + count if row else 0
        want["bonus_ptr"][b] = emitted[-1] if row else 0
        want["select_ptr"][b] = b * nodes + max(count - 1, 0)
        if flags["accept_index"]:
            want["accept_index_ptr"][b] = -1
            want["accept_index_ptr"][b, :count] = b * nodes + torch.arange(count, dtype=torch.int32)
        if flags["publish"] and row:
            want["relay_seq_lens_ptr"][row] = int(inputs["seq_lens_ptr"][b]) + count
    return want


def buffers(flags: dict[str, bool], max_b: int, nodes: int, source: torch.Generator) -> dict[str, torch.Tensor]:
    """The output buffers, poisoned; the health word holds earlier bits."""
    outputs = {
        "health_ptr": torch.randint(0, 8, (max_b,), generator=source, dtype=torch.int32) & ~BIT,
        "predict_ptr": poison(max_b, nodes, dtype=torch.int32),
        "accept_lens_ptr": poison(max_b, dtype=torch.int32),
        "new_seq_lens_ptr": poison(max_b, dtype=torch.int64),
        "bonus_ptr": poison(max_b, dtype=torch.int32),
        "extend_ids_ptr": poison(max_b, nodes, dtype=torch.int64),
        "select_ptr": poison(max_b, dtype=torch.int64),
    }
    if flags["accept_index"]:
        outputs["accept_index_ptr"] = poison(max_b, nodes, dtype=torch.int32)
    if flags["publish"]:
        outputs["relay_seq_lens_ptr"] = poison(POOL, dtype=torch.int64)
    return outputs


def random_inputs(shape: dict[str, int], dtype: str, source: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows, logits, lengths, and tokens of which most follow the target for a while."""
    batch, nodes, vocab = shape["batch"], shape["nodes"], shape["vocab"]
    logits = random_logits(source, batch * nodes, vocab, vocab + shape["slack"], DTYPES[dtype])
    targets = torch.tensor([argmax(row[:vocab])[0] for row in logits]).view(batch, nodes)
    tokens = torch.randint(0, vocab, (batch, nodes), generator=source)
    follow = torch.rand(batch, nodes - 1, generator=source) < 0.8
    tokens[:, 1:] = torch.where(follow, targets[:, :-1], tokens[:, 1:])
    return {
        "rows_ptr": random_rows(source, batch, POOL),
        "logits_ptr": logits,
        "tokens_ptr": tokens,
        "seq_lens_ptr": torch.randint(1, 2**40, (batch,), generator=source),
    }


VERIFY = list(FAMILIES["verify_commit"].combinations())


@pytest.mark.parametrize("flags", VERIFY, ids=ids(VERIFY))
@quicker
@given(shape=shapes, dtype=st.sampled_from(sorted(DTYPES)))
def test_verify_commit(launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str) -> None:
    source = generator(shape["seed"])
    inputs = random_inputs(shape, dtype, source)
    run(launcher, flags, shape, inputs, source)


def run(
    launcher: Launcher,
    flags: dict[str, bool],
    shape: dict[str, int],
    inputs: dict[str, torch.Tensor],
    source: torch.Generator,
) -> dict[str, torch.Tensor]:
    """Check one case; gives what was expected."""
    max_b, nodes = shape["batch"] + 2, shape["nodes"]
    outputs = buffers(flags, max_b, nodes, source)
    expected = expect(flags, shape, inputs, outputs)
    constants: dict[str, Any] = {
        "N": nodes,
        "V": shape["vocab"],
        "STRIDE": shape["vocab"] + shape["slack"],
        "SPLITS": SPLITS,
        "BLOCK": affordable(shape),
        "HEALTH_BIT": BIT,
    }
    grid = (shape["batch"], nodes * shape["splits"])
    scratches = scratch(max_b, nodes, SPLITS)
    check(launcher, "verify_commit", flags, grid, inputs, scratches, outputs, expected, constants)
    return expected


@pytest.mark.parametrize("accepted", range(4))
def test_every_accept_length(launcher: Launcher, accepted: int) -> None:
    """Drafts that follow the target exactly `accepted` times are accepted exactly so often."""
    shape = {"batch": 2, "nodes": 4, "vocab": 40, "slack": 0, "splits": 2, "block": 16}
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
    expected = run(launcher, {"accept_index": True, "publish": True}, shape, inputs, source)
    assert expected["accept_lens_ptr"][:2].tolist() == [accepted + 1, 0]
    assert expected["new_seq_lens_ptr"][:2].tolist() == [7 + accepted + 1, 0]
    assert expected["bonus_ptr"][0] == targets[0, accepted]
