"""prepare against plain indexing, request by request, for all flags."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import DTYPES, check, generator, ids, poison, quick, random_rows
from kernel_families import FAMILIES
from kernel_launcher import Launcher

POOL, CONTEXT = 24, 40
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 9),
        "nodes": st.integers(2, 7),
        "slots": st.integers(1, 7),
        "forwards": st.integers(1, 6),
        "draft_offset": st.integers(0, 2),
        "extend_offset": st.integers(0, 2),
        "width": st.integers(1, 200),
        "block_w": st.sampled_from([16, 64]),
    }
)


def random_inputs(
    flags: dict[str, bool], shape: dict[str, int], dtype: torch.dtype, source: torch.Generator
) -> dict[str, torch.Tensor | int]:
    """The relay buffers and the slot table; row 0 of each holds values that must not come out."""
    lengths = torch.randint(0, CONTEXT - 12, (POOL,), generator=source)
    rows = random_rows(source, shape["batch"], POOL)
    inputs: dict[str, torch.Tensor | int] = {
        "rows_ptr": rows,
        "req_to_token_ptr": torch.randint(1, 2**31 - 1, (POOL, CONTEXT), generator=source, dtype=torch.int32),
        "req_to_token_stride": CONTEXT,
        "relay_bonus_ptr": torch.randint(1, 999, (POOL,), generator=source, dtype=torch.int32),
        "relay_topk_index_ptr": torch.randint(1, 999, (POOL, 1), generator=source),
    }
    if flags["relay_seq_lens"]:
        inputs["relay_seq_lens_ptr"] = lengths
    else:
        inputs["seq_lens_ptr"] = lengths[rows]
    if flags["hidden"]:
        inputs["relay_hidden_ptr"] = torch.randn(POOL, shape["width"], generator=source).to(dtype)
    return inputs


def buffers(flags: dict[str, bool], shape: dict[str, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The output buffers, poisoned, laid out for a larger batch."""
    max_b = shape["batch"] + 3
    outputs = {
        "health_ptr": poison(max_b, dtype=torch.int32),
        "tokens_ptr": poison(max_b, shape["nodes"], dtype=torch.int64),
        "verify_positions_ptr": poison(max_b, shape["nodes"], dtype=torch.int64),
        "verify_slots_ptr": poison(max_b, shape["nodes"], dtype=torch.int64),
    }
    if flags["relay_seq_lens"]:
        outputs["out_seq_lens_ptr"] = poison(max_b, dtype=torch.int64)
    if flags["draft"]:
        outputs["draft_tokens_ptr"] = poison(max_b, 1, dtype=torch.int64)
        outputs["draft_positions_ptr"] = poison(max_b, 1, dtype=torch.int64)
        outputs["draft_slots_ptr"] = poison(shape["forwards"], max_b, 1, dtype=torch.int64)
    if flags["hidden"]:
        outputs["draft_hidden_ptr"] = poison(max_b, 1, shape["width"], dtype=dtype)
    if flags["extend_window"]:
        outputs["extend_positions_ptr"] = poison(max_b, shape["slots"], dtype=torch.int64)
        outputs["extend_slots_ptr"] = poison(max_b, shape["slots"], dtype=torch.int64)
    return outputs


def expect(
    flags: dict[str, bool],
    shape: dict[str, int],
    inputs: dict[str, torch.Tensor | int],
    outputs: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """What the buffers hold after the kernel."""
    given_tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    want = {name: value.clone() for name, value in outputs.items()}
    for b, row in enumerate(given_tensors["rows_ptr"].tolist()):
        seq_len = 0
        if row:
            relayed = flags["relay_seq_lens"]
            length = given_tensors["relay_seq_lens_ptr"][row] if relayed else given_tensors["seq_lens_ptr"][b]
            seq_len = int(length)

        def slot(position: int, row: int = row) -> int:
            return int(given_tensors["req_to_token_ptr"][row, position]) if row else 0

        first = int(given_tensors["relay_topk_index_ptr"][row, 0]) if row else 0
        want["health_ptr"][b] = 0
        want["tokens_ptr"][b, 0] = given_tensors["relay_bonus_ptr"][row] if row else 0
        want["tokens_ptr"][b, 1] = first
        for c in range(shape["nodes"]):
            want["verify_positions_ptr"][b, c] = seq_len + c
            want["verify_slots_ptr"][b, c] = slot(seq_len + c)
        if flags["relay_seq_lens"]:
            want["out_seq_lens_ptr"][b] = seq_len
        if flags["draft"]:
            position = seq_len + shape["draft_offset"]
            want["draft_tokens_ptr"][b] = first
            want["draft_positions_ptr"][b] = position
            for i in range(shape["forwards"]):
                want["draft_slots_ptr"][i, b] = slot(position + i)
        if flags["hidden"]:
            want["draft_hidden_ptr"][b] = given_tensors["relay_hidden_ptr"][row] if row else 0.0
        if flags["extend_window"]:
            for i in range(shape["slots"]):
                position = seq_len + shape["extend_offset"] + i
                want["extend_positions_ptr"][b, i] = position
                want["extend_slots_ptr"][b, i] = slot(position)
    return want


def constants(flags: dict[str, bool], shape: dict[str, int]) -> dict[str, int]:
    """The constexprs that exist under `flags`."""
    values = {"N": shape["nodes"]}
    if flags["extend_window"]:
        values |= {"A": shape["slots"], "EXTEND_OFFSET": shape["extend_offset"]}
    if flags["draft"]:
        values |= {"FORWARDS": shape["forwards"], "DRAFT_OFFSET": shape["draft_offset"]}
        values["MAX_B"] = shape["batch"] + 3
    if flags["hidden"]:
        values |= {"W": shape["width"], "BLOCK_W": shape["block_w"]}
    return values


PREPARE = list(FAMILIES["prepare"].combinations())


@pytest.mark.parametrize("flags", PREPARE, ids=ids(PREPARE))
@quick
@given(shape=shapes, dtype=st.sampled_from(sorted(DTYPES)))
def test_prepare(launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str) -> None:
    inputs = random_inputs(flags, shape, DTYPES[dtype], generator(shape["seed"]))
    outputs = buffers(flags, shape, DTYPES[dtype])
    grid = (shape["batch"], -(-shape["width"] // shape["block_w"]) if flags["hidden"] else 1)
    expected = expect(flags, shape, inputs, outputs)
    check(launcher, "prepare", flags, grid, inputs, {}, outputs, expected, constants(flags, shape))
