"""draft_step, row_argmax and extend_stash against a plain scan: shapes, dtypes, flags, hostile rows."""

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
    quick,
    random_logits,
    random_rows,
    scratch,
)
from kernel_families import FAMILIES
from kernel_launcher import Launcher

SPLITS, POOL = 8, 24
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4) | st.integers(1, 9),
        "vocab": st.integers(1, 300) | st.integers(301, 5000) | st.sampled_from([64, 512, 2048, 4096]),
        "slack": st.sampled_from([0, 0, 1, 8]),
        "splits": st.integers(1, SPLITS),
        "block": st.sampled_from([16, 64, 512, 1024]),
    }
)
dtypes = st.sampled_from(sorted(DTYPES))


def setup(shape: dict[str, int], dtype: str) -> tuple[torch.Generator, dict[str, torch.Tensor], dict[str, int]]:
    """(randomness, the inputs rows and logits, the constants) that the three families share."""
    source = generator(shape["seed"])
    stride = shape["vocab"] + shape["slack"]
    inputs = {
        "rows_ptr": random_rows(source, shape["batch"], POOL),
        "logits_ptr": random_logits(source, shape["batch"], shape["vocab"], stride, DTYPES[dtype]),
    }
    constants = {
        "V": shape["vocab"],
        "STRIDE": stride,
        "SPLITS": SPLITS,
        "BLOCK": affordable(shape),
        "HEALTH_BIT": 4,
    }
    return source, inputs, constants


def winners(inputs: dict[str, torch.Tensor], vocab: int) -> list[tuple[int, int, int, bool]]:
    """(batch row, pool row, index, bad) of every request; (b, 0, 0, False) for padding."""
    return [
        (b, row, *(argmax(inputs["logits_ptr"][b, :vocab]) if row else (0, False)))
        for b, row in enumerate(inputs["rows_ptr"].tolist())
    ]


DRAFT = list(FAMILIES["draft_step"].combinations())


@pytest.mark.parametrize("flags", DRAFT, ids=ids(DRAFT))
@quick
@given(shape=shapes, dtype=dtypes, nodes=st.integers(2, 7), data=st.data())
def test_draft_step(
    launcher: Launcher,
    flags: dict[str, bool],
    shape: dict[str, int],
    dtype: str,
    nodes: int,
    data: st.DataObject,
) -> None:
    source, inputs, constants = setup(shape, dtype)
    column = data.draw(st.integers(1, nodes - 1))
    max_b = shape["batch"] + 3
    outputs = {
        "health_ptr": torch.randint(0, 4, (max_b,), generator=source, dtype=torch.int32),
        "tokens_ptr": poison(max_b, nodes, dtype=torch.int64),
    }
    if flags["advance"]:
        outputs["draft_tokens_ptr"] = poison(max_b, dtype=torch.int64)
        outputs["draft_positions_ptr"] = torch.randint(0, 99, (max_b,), generator=source)
    expected = {name: value.clone() for name, value in outputs.items()}
    for b, _, index, bad in winners(inputs, shape["vocab"]):
        expected["health_ptr"][b] |= 4 * bad
        expected["tokens_ptr"][b, column] = index
        if flags["advance"]:
            expected["draft_tokens_ptr"][b] = index
            expected["draft_positions_ptr"][b] += 1
    grid = (shape["batch"], shape["splits"])
    constants["N"] = nodes
    check(
        launcher,
        "draft_step",
        flags,
        grid,
        {**inputs, "column": column},
        scratch(max_b, SPLITS),
        outputs,
        expected,
        constants,
    )


ROW = list(FAMILIES["row_argmax"].combinations())


@pytest.mark.parametrize("flags", ROW, ids=ids(ROW))
@quick
@given(shape=shapes, dtype=dtypes)
def test_row_argmax(launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str) -> None:
    source, inputs, constants = setup(shape, dtype)
    max_b = shape["batch"] + 3
    outputs = {
        "health_ptr": torch.randint(0, 4, (max_b,), generator=source, dtype=torch.int32),
        "index_ptr": poison(max_b, dtype=torch.int32),
    }
    expected = {name: value.clone() for name, value in outputs.items()}
    for b, _, index, bad in winners(inputs, shape["vocab"]):
        expected["health_ptr"][b] = (0 if flags["clear"] else expected["health_ptr"][b]) | 4 * bad
        expected["index_ptr"][b] = index
    grid = (shape["batch"], shape["splits"])
    check(launcher, "row_argmax", flags, grid, inputs, scratch(max_b, SPLITS), outputs, expected, constants)


EXTEND = [flags for flags in FAMILIES["extend_stash"].combinations() if not flags["topk"]]


@pytest.mark.parametrize("flags", EXTEND, ids=ids(EXTEND))
@quick
@given(shape=shapes, dtype=dtypes, width=st.integers(1, 300), block_w=st.sampled_from([16, 128]))
def test_extend_stash(
    launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str, width: int, block_w: int
) -> None:
    source, inputs, constants = setup(shape, dtype)
    batch, max_b = shape["batch"], shape["batch"] + 3
    inputs["bonus_ptr"] = torch.randint(0, 999, (batch,), generator=source, dtype=torch.int32)
    outputs = {
        "health_ptr": torch.randint(0, 4, (max_b,), generator=source, dtype=torch.int32),
        "relay_bonus_ptr": poison(POOL, dtype=torch.int32),
        "relay_topk_index_ptr": poison(POOL, 1, dtype=torch.int64),
    }
    if flags["hidden"]:
        inputs["hidden_ptr"] = torch.randn(batch, width, generator=source).to(DTYPES[dtype])
        outputs["relay_hidden_ptr"] = poison(POOL, width, dtype=DTYPES[dtype])
        constants |= {"W": width, "BLOCK_W": block_w}
    if flags["seq_lens"]:
        inputs["seq_lens_ptr"] = torch.randint(1, 2**40, (batch,), generator=source)
        outputs["relay_seq_lens_ptr"] = poison(POOL, dtype=torch.int64)
    expected = {name: value.clone() for name, value in outputs.items()}
    for b, row, index, bad in winners(inputs, shape["vocab"]):
        expected["health_ptr"][b] |= 4 * bad
        if row:
            expected["relay_bonus_ptr"][row] = inputs["bonus_ptr"][b]
            expected["relay_topk_index_ptr"][row] = index
            if flags["hidden"]:
                expected["relay_hidden_ptr"][row] = inputs["hidden_ptr"][b]
            if flags["seq_lens"]:
                expected["relay_seq_lens_ptr"][row] = inputs["seq_lens_ptr"][b]
    grid = (batch, shape["splits"])
    check(launcher, "extend_stash", flags, grid, inputs, scratch(max_b, SPLITS), outputs, expected, constants)
