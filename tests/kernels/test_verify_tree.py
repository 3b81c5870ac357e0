"""verify_commit of a tree: random trees, hostile links, log-probabilities; against plain Python and the reference."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, argmax, generator, ids, poison, quicker
from kernel_families import FAMILIES
from kernel_launcher import Launcher
from verify_cases import POOL, RING, Tensors, random_inputs, run

from specc.runtime.reference import OPS

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 2) | st.integers(1, 3),
        "nodes": st.integers(2, 9) | st.sampled_from([16, 21]),
        "steps": st.integers(1, 6),
        "vocab": st.integers(2, 12) | st.integers(13, 150) | st.sampled_from([512, 1500]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, 4),
        "block": st.sampled_from([16, 64, 1024]),
    }
)
TREES = [flags for flags in FAMILIES["verify_commit"].combinations() if flags["tree"]]
EVERYTHING = TREES[-1]


def grow(nodes: int, source: torch.Generator) -> torch.Tensor:
    """Parents i64[N]: every column has an earlier one, some are orphans; the earlier ones of few are preferred."""
    reach = torch.randint(1, 5, (nodes,), generator=source)
    columns = torch.arange(nodes)
    drawn = (columns - 1 - torch.randint(0, nodes, (nodes,), generator=source) % reach).clamp(min=0)
    orphan = torch.rand(nodes, generator=source) < 0.1
    orphan[0] = True
    return torch.where(orphan, -1, drawn)


def random_tree(shape: dict[str, int], dtype: str, source: torch.Generator) -> Tensors:
    """Trees in which many children, often several of one node, hold the token that the target puts after it."""
    inputs, targets = random_inputs(shape, dtype, source)
    parent = torch.stack([grow(shape["nodes"], source) for _ in range(shape["batch"])])
    wanted = targets.gather(1, parent.clamp(min=0))
    follow = torch.rand(parent.shape, generator=source) < 0.6
    inputs["tokens_ptr"] = torch.where(follow, wanted, inputs["tokens_ptr"])
    return inputs | {"parent_ptr": parent}


def agrees_with_reference(shape: dict[str, int], inputs: Tensors, expected: Tensors) -> None:
    """What plain Python expects is what the reference ops compute, padding included."""
    batch, nodes = shape["batch"], shape["nodes"]
    dims = {"A": shape["steps"] + 1, "N": nodes}
    rows = inputs["rows_ptr"]
    logits = inputs["logits_ptr"].view(batch, nodes, -1)[..., : shape["vocab"]]
    argmax, bad = OPS["vocab.argmax"]((logits, rows), {"dtype": "i32"}, dims)
    operands = (inputs["tokens_ptr"], argmax, rows, inputs["parent_ptr"])
    predict, accept_index, accept_lens = OPS["verify.greedy"](operands, {}, dims)
    (node_logprobs,) = OPS["vocab.logprob"]((logits, rows, predict), {}, dims)
    (path,) = OPS["commit.compact"]((predict, accept_index), {}, dims)
    (logprobs,) = OPS["commit.compact"]((node_logprobs, accept_index), {}, dims)
    lengths, bonus = OPS["commit.lengths"]((inputs["seq_lens_ptr"], accept_lens, path), {}, dims)
    results = {"predict": path, "accept_index": accept_index, "accept_lens": accept_lens, "bonus": bonus}
    results |= {"new_seq_lens": lengths, "logprobs": logprobs}
    results["extend_ids"], results["select"] = (
        OPS["commit.extend_ids"]((path, accept_lens), {}, dims)[0],
        OPS["commit.select"]((accept_lens,), {}, dims)[0],
    )
    for name, value in results.items():
        if f"{name}_ptr" in expected:
            torch.testing.assert_close(expected[f"{name}_ptr"][:batch], value, rtol=1e-5, atol=1e-6)
    if "relay_text_ptr" in expected:
        operands = (rows, inputs["seq_lens_ptr"], path, accept_lens, poison(POOL, RING, dtype=torch.int32))
        torch.testing.assert_close(expected["relay_text_ptr"], OPS["carry.append"](operands, {}, dims)[0])
    assert (expected["health_ptr"][:batch] & 2 != 0).tolist() == bad.any(1).tolist()


@pytest.mark.parametrize("flags", TREES, ids=ids(TREES))
@settings(quicker, max_examples=3)
@given(shape=shapes, dtype=st.sampled_from(sorted(DTYPES)))
def test_random_trees(launcher: Launcher, flags: dict[str, Any], shape: dict[str, int], dtype: str) -> None:
    source = generator(shape["seed"])
    inputs = random_tree(shape, dtype, source)
    expected = run(launcher, flags, shape, inputs, source)
    agrees_with_reference(shape, inputs, expected)


@pytest.mark.parametrize(("nodes", "steps", "most", "splits"), [(64, 6, 8, 2), (130, 4, 4, 1)])
def test_large_trees(launcher: Launcher, nodes: int, steps: int, most: int, splits: int) -> None:
    """A path from the first column to the last, beside many that agree with nodes off it."""
    shape = {"batch": 1, "nodes": nodes, "steps": steps, "vocab": 90, "slack": 0, "block": 128}
    shape |= {"most": most, "splits": splits}
    source = generator(nodes)
    inputs = random_tree(shape, "bf16", source)
    columns = torch.linspace(0, nodes - 1, steps + 1).long()
    inputs["rows_ptr"] = torch.tensor([4])
    inputs["parent_ptr"][0, columns[1:]] = columns[:-1]
    targets = torch.tensor([argmax(row)[0] for row in inputs["logits_ptr"]])
    wanted = targets[inputs["parent_ptr"][0].clamp(min=0)]
    inputs["tokens_ptr"][0] += (inputs["tokens_ptr"][0] == wanted) & torch.isin(inputs["parent_ptr"][0], columns)
    inputs["tokens_ptr"][0, columns[1:]] = targets[columns[:-1]]
    expected = run(launcher, EVERYTHING, shape, inputs, source)
    agrees_with_reference(shape, inputs, expected)
    assert expected["accept_index_ptr"][0].tolist() == columns.tolist()


@settings(quicker, max_examples=6)
@given(shape=shapes, wild=st.booleans())
def test_links_that_are_no_tree(launcher: Launcher, shape: dict[str, int], wild: bool) -> None:
    """Cycles, nodes that are their own parents, columns that do not exist: bounded, and as the reference walks."""
    source = generator(shape["seed"])
    inputs = random_tree(shape, "fp32", source)
    size = (shape["batch"], shape["nodes"])
    low, high = (-(2**40), 2**40) if wild else (0, shape["nodes"])
    links = torch.randint(low, high, size, generator=source)
    inputs["parent_ptr"] = torch.where(torch.rand(size, generator=source) < 0.6, links, inputs["parent_ptr"])
    # Column 0 is nobody's child, and a token that agrees in its lower half does not agree.
    inputs["parent_ptr"][:, 0] = 0
    inputs["tokens_ptr"][torch.rand(size, generator=source) < 0.2] += 2**32
    expected = run(launcher, EVERYTHING, shape, inputs, source)
    agrees_with_reference(shape, inputs, expected)


def test_a_column_that_does_not_exist_has_no_children(launcher: Launcher) -> None:
    """All drafts agree with the target, and all hang below the column behind the last one."""
    shape = {"batch": 1, "nodes": 5, "steps": 4, "vocab": 50, "slack": 0, "splits": 2, "block": 16}
    source = generator(2)
    logits = torch.randn(1, 50, generator=source).repeat(5, 1)
    inputs = {
        "rows_ptr": torch.tensor([5]),
        "logits_ptr": logits,
        "tokens_ptr": logits.argmax(-1)[None],
        "parent_ptr": torch.tensor([[-1, 5, 5, 5, 5]]),
        "seq_lens_ptr": torch.tensor([7]),
    }
    expected = run(launcher, EVERYTHING, shape, inputs, source)
    assert expected["accept_lens_ptr"][0] == 1


@pytest.mark.parametrize("accepted", range(6))
def test_every_accept_length(launcher: Launcher, accepted: int) -> None:
    """A path of six drafts beside decoys: as many are accepted as follow the target, and no more than S = 4."""
    shape = {"batch": 1, "nodes": 13, "steps": 4, "vocab": 50, "slack": 0, "splits": 2, "block": 16}
    source = generator(accepted)
    logits = torch.randn(13, 50, generator=source)
    targets = logits.argmax(-1)
    # Columns 2, 4, ... 12 are the path; before each of them a sibling that does not agree.
    parent = torch.tensor([[-1, *(2 * (level // 2) for level in range(12))]])
    tokens = targets[parent.clamp(min=0)]
    tokens[0, 1::2] = (tokens[0, 1::2] + 1) % 50
    tokens[0, 2 * accepted + 2] = (tokens[0, 2 * accepted + 2] + 1) % 50
    inputs = {"rows_ptr": torch.tensor([3]), "logits_ptr": logits, "tokens_ptr": tokens, "parent_ptr": parent}
    inputs["seq_lens_ptr"] = torch.tensor([11])
    expected = run(launcher, EVERYTHING, shape, inputs, source)
    drafts = min(accepted, 4)
    assert expected["accept_lens_ptr"][0] == drafts + 1
    assert expected["accept_index_ptr"][0].tolist() == [2 * i for i in range(drafts + 1)] + [-1] * (4 - drafts)
    assert expected["bonus_ptr"][0] == targets[2 * drafts]


@pytest.mark.parametrize("kind", ["far apart", "one", "plus infinities", "lowest", "nothing", "nan", "nan alone"])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_logprobs_of_hostile_rows(launcher: Launcher, kind: str, dtype: str) -> None:
    """Sums of exponentials over chunks of which some have no finite value, or are empty."""
    vocab, source = 150, generator(5)
    row = torch.randn(vocab, generator=source) * 30
    if kind == "far apart":
        row[::7] = torch.finfo(DTYPES[dtype]).min
        row[100] = 60000.0
    elif kind == "one":
        row[:] = -math.inf
        row[70] = -1.0
    elif kind == "plus infinities":
        row[[3, 60, 61, 149]] = math.inf
    elif kind == "lowest":
        row[:] = torch.finfo(DTYPES[dtype]).min
        row[20:140] = -math.inf
    elif kind == "nothing":
        row[:] = -math.inf
    elif kind == "nan":
        row[[0, 50, 51, 149]] = math.nan
    elif kind == "nan alone":
        row[:] = math.nan
    logits = torch.stack([row, torch.randn(vocab, generator=source)] * 2).to(DTYPES[dtype])
    shape = {"batch": 1, "nodes": 4, "steps": 2, "vocab": vocab, "slack": 0, "splits": 4, "block": 32}
    inputs = {
        "rows_ptr": torch.tensor([3]),
        "logits_ptr": logits,
        "tokens_ptr": logits.float().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).argmax(-1)[None, :1]
        + torch.zeros(1, 4, dtype=torch.int64),
        "parent_ptr": torch.tensor([[-1, 0, 0, 1]]),
        "seq_lens_ptr": torch.tensor([11]),
    }
    expected = run(launcher, EVERYTHING, shape, inputs, source)
    agrees_with_reference(shape, inputs, expected)
    assert expected["accept_lens_ptr"][0] >= 2
