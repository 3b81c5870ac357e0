"""tree_build against the reference ops: shapes of trees, masks, lengths, hostile scores; with and without a top-k."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, assert_same, check, generator, poison, quick, quicker, random_rows
from kernel_launcher import Launcher
from topk_cases import assert_probabilities, hostile_logits, reference_topk, topk_scratch

from specc.runtime.reference import OPS

SPLITS, POOL, BAD_BIT, ORPHAN_BIT = 4, 24, 1, 16
MODES = {"none": -1, "qlen": 0, "bitpacked": 1, "full": 2}
NEVER_SEEN = 1 << 40
PLAIN = {"seed": 3, "batch": 2, "share": 1.0}
trees = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "k": st.integers(2, 8),
        "steps": st.integers(1, 6),
        "share": st.sampled_from([0.0, 1.0]) | st.floats(0, 1) | st.floats(0, 0.3),
    }
)
scans = st.fixed_dictionaries(
    {
        "vocab": st.integers(8, 250) | st.sampled_from([64, 256]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, 2),
        "block": st.sampled_from([64, 256]),
    }
)


def most(k: int, steps: int) -> int:
    """Candidates of all steps."""
    return k + (steps - 1) * k * k


def nodes_of(shape: dict[str, Any], mode: str) -> int:
    """N: between 2 and the most there can be, or that the mask can hold."""
    largest = 1 + most(shape["k"], shape["steps"])
    largest = min(largest, 64) if mode == "bitpacked" else largest
    return 2 + round(shape["share"] * (largest - 2))


def hostile_scores(source: torch.Generator, count: int) -> torch.Tensor:
    """f32[count]: path scores of one request as any step could leave them."""
    kind = int(torch.randint(0, 9, (), generator=source))
    scores = torch.rand(count, generator=source)
    some = torch.rand(count, generator=source) < 0.4
    if kind == 1:  # few values, so many ties
        scores = torch.randint(0, 3, (count,), generator=source) / 2
    elif kind == 2:
        scores[some] = math.nan
    elif kind == 3:
        scores[:] = math.nan
    elif kind == 4:
        scores[some] = torch.randint(-1, 2, (count,), generator=source)[some] * math.inf  # NaN, too
    elif kind == 5:  # negative, and zeros of both signs
        scores = torch.where(some, torch.copysign(torch.zeros(count), scores - 0.5), scores - 0.5)
    elif kind == 6:  # far apart, subnormal at one end
        scores = torch.exp2(-150 * scores)
    elif kind == 7:  # neighbours: only the last bits differ
        scores = (torch.randint(0, 40, (count,), generator=source, dtype=torch.int32) + 0x3F000000).view(torch.float32)
    elif kind == 8:
        scores[:] = torch.tensor([0.0, -0.0, math.inf, -math.inf])[torch.randint(0, 4, (), generator=source)]
    return scores


def drafted(source: torch.Generator, shape: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What S draft steps leave: scores and tokens of every step, the kept of those in between.

    Half of the requests are grown by the reference, so that their trees hang together; of the others every number is
    random, and few of their nodes have a parent.
    """
    batch, k, steps = shape["batch"], shape["k"], shape["steps"]
    left: dict[str, torch.Tensor] = {}
    frontier = torch.rand(batch, k, generator=source).sort(descending=True).values
    left["scores0_ptr"] = frontier
    for step in range(1, steps):
        p = torch.rand(batch, k, k, generator=source).sort(descending=True).values
        _, frontier, kept, scores = OPS["tree.grow"](
            (frontier, p, torch.zeros(batch, k, k, dtype=torch.int64)), {}, {"K": k}
        )
        left |= {f"scores{step}_ptr": scores, f"kept{step}_ptr": kept}
    left.pop(f"kept{steps - 1}_ptr", None)
    for b in range(batch):
        if torch.rand((), generator=source) < 0.5:
            for name, value in left.items():
                random = torch.randint(0, k * k, (k,), generator=source) if "kept" in name else None
                value[b] = hostile_scores(source, value[b].numel()).view(value[b].shape) if random is None else random
    for step in range(steps):
        left[f"tokens{step}_ptr"] = torch.randint(0, NEVER_SEEN, left[f"scores{step}_ptr"].shape, generator=source)
    return left


def random_case(shape: dict[str, Any]) -> tuple[torch.Generator, dict[str, torch.Tensor]]:
    """(randomness, the inputs of a kernel that reads all steps from memory)."""
    source = generator(shape["seed"])
    batch = shape["batch"]
    rows = random_rows(source, batch, max(POOL, batch + 1))
    inputs = {
        "rows_ptr": rows,
        "bonus_ptr": torch.randint(0, 999, (batch,), generator=source, dtype=torch.int32),
        "seq_lens_ptr": torch.randint(0, 99, (batch,), generator=source).masked_fill(rows == 0, 0),
        **drafted(source, shape),
    }
    return source, inputs


def buffers(
    source: torch.Generator, shape: dict[str, Any], nodes: int, mode: str, longest: int
) -> dict[str, torch.Tensor]:
    """The output buffers: poison where there is a value that no result has, otherwise noise."""
    max_b = shape["batch"] + 2
    outputs = {
        "health_ptr": torch.randint(0, 16, (max_b,), generator=source, dtype=torch.int32) & ~BAD_BIT,
        **{name: poison(max_b, nodes, dtype=torch.int64) for name in ("tokens_ptr", "parent_ptr", "positions_ptr")},
    }
    if mode == "bitpacked":
        outputs["mask_ptr"] = torch.randint(0, 256, (max_b, nodes, width_of(nodes)), generator=source).to(torch.uint8)
    elif mode != "none":
        width = nodes if mode == "qlen" else longest + nodes
        outputs["mask_ptr"] = torch.rand(max_b, nodes, width, generator=source) < 0.5
    return outputs


def width_of(nodes: int) -> int:
    """Bytes of a bitpacked row."""
    return next(size for size in (1, 2, 4, 8) if 8 * size >= nodes)


def expect(
    shape: dict[str, Any], nodes: int, mode: str, inputs: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What the buffers hold after the kernel, by the reference ops."""
    batch, steps = shape["batch"], shape["steps"]
    want = {name: value.clone() for name, value in outputs.items()}
    names = [f"scores{i}_ptr" for i in range(steps)] + [f"tokens{i}_ptr" for i in range(steps)]
    names += [f"kept{i}_ptr" for i in range(1, steps - 1)]
    operands = tuple(inputs[name] for name in ("rows_ptr", "bonus_ptr", *names))
    dims = {"K": shape["k"], "N": nodes}
    tokens, parent, depth, orphan = OPS["tree.select"](operands, {"steps": steps}, dims)
    (health,) = OPS["health.raise"]((want["health_ptr"][:batch], orphan), {"bit": 4}, dims)
    (positions,) = OPS["tree.positions"]((inputs["seq_lens_ptr"], depth), {}, dims)
    results = {"health_ptr": health, "tokens_ptr": tokens, "parent_ptr": parent, "positions_ptr": positions}
    for name, result in results.items():
        want[name][:batch] = result
    if mode == "none":
        return want
    lens = inputs["seq_lens_ptr"]
    attrs = {"mode": mode, "width": nodes * (int(lens.max()) + nodes) if mode == "full" else width_of_mode(mode, nodes)}
    (mask,) = OPS["tree.mask"]((lens, parent), attrs, dims)
    used = int(lens.sum() + batch * nodes) * nodes if mode == "full" else mask.numel()
    want["mask_ptr"].view(-1)[:used] = mask.reshape(-1)[:used]
    return want


def width_of_mode(mode: str, nodes: int) -> int:
    """The attribute of a mask whose rows hold no prefix."""
    return width_of(nodes) if mode == "bitpacked" else 0


def constants_of(shape: dict[str, Any], nodes: int, mode: str) -> dict[str, int]:
    """The constexpr arguments of a case without top-k."""
    constants = {"K": shape["k"], "S": shape["steps"], "N": nodes, "ORPHAN_BIT": ORPHAN_BIT}
    return constants if mode == "none" else constants | {"MODE": MODES[mode], "WIDTH": width_of_mode(mode, nodes)}


def run(
    launcher: Launcher,
    shape: dict[str, Any],
    mode: str,
    inputs: dict[str, torch.Tensor],
    source: torch.Generator,
    nodes: int | None = None,
) -> dict[str, torch.Tensor]:
    """Check one case without top-k; gives what was expected."""
    nodes = nodes or nodes_of(shape, mode)
    outputs = buffers(source, shape, nodes, mode, int(inputs["seq_lens_ptr"].max()))
    expected = expect(shape, nodes, mode, inputs, outputs)
    flags = {"fused": False, "mask": mode != "none", "steps": shape["steps"]}
    grid = (shape["batch"], 1 + shape["seed"] % 3 if mode == "full" else 1)
    check(launcher, "tree_build", flags, grid, inputs, {}, outputs, expected, constants_of(shape, nodes, mode))
    return expected


@pytest.mark.parametrize("mode", MODES)
@settings(quick, max_examples=16)
@given(shape=trees)
def test_tree_build(launcher: Launcher, mode: str, shape: dict[str, Any]) -> None:
    source, inputs = random_case(shape)
    run(launcher, shape, mode, inputs, source)


def last_step(launcher: Launcher, shape: dict[str, Any], scan: dict[str, int], inputs: dict[str, torch.Tensor]) -> Any:
    """(p f32[B, K, K], index, bad) of the last draft step: p is tree_step's own, as its candidates of parents of 1."""
    batch, k = shape["batch"], shape["k"]
    rows, logits = inputs["rows_ptr"], inputs["logits_ptr"]
    exact, index, bad = reference_topk(logits[:, : scan["vocab"]].view(batch, k, -1), rows, k)
    given_ = {
        "rows_ptr": rows,
        "logits_ptr": logits,
        "parent_scores_ptr": torch.ones(batch, k),
        "health_ptr": torch.zeros(batch, dtype=torch.int32),
        "index_ptr": torch.zeros(batch, k, k, dtype=torch.int64),
        "candidates_ptr": torch.zeros(batch, k, k),
        **topk_scratch(batch, k, SPLITS, k),
    }
    given_ = {name: value.to(launcher.device) for name, value in given_.items()}
    flags = {"frontier": False, "gather": False, "advance": False}
    launcher.launch("tree_step", flags, (batch, k * scan["splits"]), given_, {"K": k, **scanned(scan)})
    p = given_["candidates_ptr"].cpu()
    assert_probabilities(p, exact)
    return p, index, bad


def scanned(scan: dict[str, int]) -> dict[str, int]:
    """The constexpr arguments of the top-k."""
    sizes = {"V": scan["vocab"], "STRIDE": scan["vocab"] + scan["slack"], "BLOCK": scan["block"]}
    return {**sizes, "SPLITS": SPLITS, "HEALTH_BIT": BAD_BIT}


@pytest.mark.parametrize("mode", MODES)
@settings(quicker, max_examples=4)
@given(shape=trees, scan=scans, dtype=st.sampled_from(sorted(DTYPES)))
def test_with_the_last_draft_step(
    launcher: Launcher, mode: str, shape: dict[str, Any], scan: dict[str, int], dtype: str
) -> None:
    """The tree is that of the reference's grow and select, on the kernel's own probabilities."""
    shape = shape | {"steps": max(2, shape["steps"]), "batch": min(2, shape["batch"])}
    run_fused(launcher, shape, scan, mode, dtype)


def run_fused(launcher: Launcher, shape: dict[str, Any], scan: dict[str, int], mode: str, dtype: str) -> None:
    """Check one case with the top-k of the last step."""
    source, inputs = random_case(shape)
    batch, k, last = shape["batch"], shape["k"], shape["steps"] - 1
    del inputs[f"scores{last}_ptr"], inputs[f"tokens{last}_ptr"]
    stride = scan["vocab"] + scan["slack"]
    inputs["logits_ptr"] = hostile_logits(source, batch * k, scan["vocab"], stride, DTYPES[dtype])
    inputs["frontier_ptr"] = torch.stack([hostile_scores(source, k) for _ in range(batch)])
    nodes = nodes_of(shape, mode)
    outputs = buffers(source, shape, nodes, mode, int(inputs["seq_lens_ptr"].max()))
    p, index, bad = last_step(launcher, shape, scan, inputs)
    *_, candidates = OPS["tree.grow"]((inputs["frontier_ptr"], p, index), {}, {"K": k})
    grown = inputs | {f"scores{last}_ptr": candidates, f"tokens{last}_ptr": index}
    expected = expect(shape, nodes, mode, grown, outputs)
    expected["health_ptr"][:batch] |= bad.any(1) * BAD_BIT
    flags = {"fused": True, "mask": mode != "none", "steps": last}
    constants = constants_of(shape, nodes, mode) | scanned(scan)
    grid, scratch = (batch, k * scan["splits"]), topk_scratch(batch + 2, k, SPLITS, k)
    check(launcher, "tree_build", flags, grid, inputs, scratch, outputs, expected, constants)


def test_flat_masks_of_many_requests(launcher: Launcher) -> None:
    """A request's part begins behind those of all before it, which are counted 128 at a time."""
    shape = PLAIN | {"k": 2, "steps": 1, "batch": 140}
    source, inputs = random_case(shape)
    run(launcher, shape, "full", inputs, source, 2)


SIZES = [(8, 5, 64, "qlen"), (8, 5, 64, "bitpacked"), (16, 3, 9, "none"), (2, 16, 63, "none"), (16, 1, 17, "qlen")]


@pytest.mark.parametrize(("k", "steps", "nodes", "mode"), SIZES)
def test_usual_and_extreme_sizes(launcher: Launcher, k: int, steps: int, nodes: int, mode: str) -> None:
    shape = PLAIN | {"k": k, "steps": steps}
    source, inputs = random_case(shape)
    run(launcher, shape, mode, inputs | {"rows_ptr": torch.tensor([1, 2])}, source, nodes)


def test_the_largest_tree(launcher: Launcher) -> None:
    """4096 lanes; most scores tie, so that all rounds of the search run."""
    shape = PLAIN | {"k": 16, "steps": 16, "batch": 1}
    source, inputs = random_case(shape)
    inputs["rows_ptr"] = torch.tensor([7])
    for step in range(16):
        inputs[f"scores{step}_ptr"] = inputs[f"scores{step}_ptr"].mul(4).round()
    expected = run(launcher, shape, "none", inputs, source, 512)
    assert (expected["parent_ptr"][0, 1:] >= 0).any()


def test_an_orphan_is_reported_and_unreachable(launcher: Launcher) -> None:
    """The parent of the best candidate of step 1 has a NaN score, as its request's other step 0 candidates have."""
    shape = PLAIN | {"k": 2, "steps": 2, "batch": 3}
    source, inputs = random_case(shape)
    inputs["rows_ptr"] = torch.tensor([4, 5, 0])
    inputs["scores0_ptr"] = torch.tensor([[math.nan, math.nan], [0.6, 0.4], [math.nan, math.nan]])
    inputs["scores1_ptr"] = torch.tensor([[[0.4, 0.1], [0.3, 0.2]]]).repeat(3, 1, 1)
    expected = run(launcher, shape, "qlen", inputs, source, 4)
    assert expected["parent_ptr"][:3].tolist() == [[-1, -1, -1, -1], [-1, 0, 0, 1], [-1, -1, -1, -1]]
    assert [bool(word & ORPHAN_BIT) for word in expected["health_ptr"][:3].tolist()] == [True, False, False]


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.0, -0.0, 1.0, math.inf])
def test_equal_scores_keep_the_first(launcher: Launcher, value: float) -> None:
    shape = PLAIN | {"k": 3, "steps": 3, "batch": 1}
    source, inputs = random_case(shape)
    inputs["rows_ptr"] = torch.tensor([4])
    for step in range(3):
        inputs[f"scores{step}_ptr"].fill_(value)
    expected = run(launcher, shape, "none", inputs, source, 8)
    tokens = torch.cat([inputs["tokens0_ptr"].view(-1), inputs["tokens1_ptr"].view(-1)])[:7]
    assert torch.equal(expected["tokens_ptr"][0, 1:], tokens)


def test_zeros_of_both_signs_tie(launcher: Launcher) -> None:
    shape = PLAIN | {"k": 3, "steps": 3, "batch": 1}
    source, inputs = random_case(shape)
    inputs["rows_ptr"] = torch.tensor([4])
    for step in range(3):
        scores = inputs[f"scores{step}_ptr"].view(-1)
        scores.copy_(torch.copysign(torch.zeros(len(scores)), torch.arange(len(scores)) % 2 - 0.5))
    expected = run(launcher, shape, "none", inputs, source, 8)
    assert torch.equal(expected["tokens_ptr"][0, 1:4], inputs["tokens0_ptr"][0])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scale", [1e-40, 1e-12, 2e-9, 2.0, 7.0, 1e30, -1e-12, -1.0])
def test_scores_that_are_no_usual_probabilities(launcher: Launcher, scale: float, share: float) -> None:
    """Wherever the scores lie the best are found: what the search guesses first may be wrong on either side."""
    shape = PLAIN | {"k": 4, "steps": 3, "batch": 1, "share": share}
    source, inputs = random_case(shape)
    inputs["rows_ptr"] = torch.tensor([4])
    for step in range(3):
        inputs[f"scores{step}_ptr"] = scale * torch.rand(inputs[f"scores{step}_ptr"].shape, generator=source)
    run(launcher, shape, "none", inputs, source)


@pytest.mark.parametrize("wild", [-1, 16, 2**31, -(2**40), 2**62])
def test_kept_out_of_range_reads_nothing_else(launcher: Launcher, wild: int) -> None:
    """No draft kernel writes such a thing; if memory holds it, the tree is some tree with clamped parents."""
    shape = PLAIN | {"k": 4, "steps": 4, "batch": 1}
    source, inputs = random_case(shape)
    inputs["rows_ptr"] = torch.tensor([4])
    inputs["kept1_ptr"].fill_(wild)
    nodes = 30
    outputs = buffers(source, shape, nodes, "qlen", 0)
    flags = {"fused": False, "mask": True, "steps": 4}
    clamped = inputs["kept1_ptr"].to(torch.int32).clamp(0, 15).to(torch.int64)  # of the low word
    expected = expect(shape, nodes, "qlen", inputs | {"kept1_ptr": clamped}, outputs)
    check(launcher, "tree_build", flags, (1, 1), inputs, {}, outputs, expected, constants_of(shape, nodes, "qlen"))


@pytest.mark.parametrize("short", [0, 1, 7])
def test_a_mask_of_the_longest_texts_ends_where_its_buffer_does(launcher: Launcher, short: int) -> None:
    """N * (longest + N) elements for each of MAX_B requests are enough: noise around them stays as it is."""
    longest, nodes, batch, band = 33, 6, 3, 4096
    shape = PLAIN | {"k": 2, "steps": 3, "batch": batch}
    source, inputs = random_case(shape)
    inputs |= {"rows_ptr": torch.tensor([4, 1, 2]), "seq_lens_ptr": torch.tensor([longest, longest - short, longest])}
    outputs = buffers(source, shape, nodes, "none", 0)
    size = batch * nodes * (longest + nodes)
    noise = torch.rand(size + 2 * band, generator=source) < 0.5
    expected = expect(shape, nodes, "full", inputs, outputs | {"mask_ptr": noise[band : band + size]})
    whole = noise.clone().to(launcher.device)
    given_ = {name: value.to(launcher.device) for name, value in (inputs | outputs).items()}
    given_["mask_ptr"] = whole[band : band + size]
    flags = {"fused": False, "mask": True, "steps": 3}
    launcher.launch("tree_build", flags, (batch, 2), given_, constants_of(shape, nodes, "full"))
    assert_same(whole[band : band + size].cpu(), expected["mask_ptr"], "the mask")
    assert_same(whole[:band].cpu(), noise[:band], "before the mask")
    assert_same(whole[band + size :].cpu(), noise[band + size :], "behind the mask")
