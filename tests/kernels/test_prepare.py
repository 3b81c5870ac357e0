"""prepare against plain indexing, request by request, for all flags; of a tree also against the reference ops."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import DTYPES, check, generator, ids, poison, quick, quicker, random_rows
from kernel_families import FAMILIES
from kernel_launcher import Launcher

from specc.runtime.reference import OPS

POOL, LONGEST = 24, 70
CONTEXT = LONGEST + 8 * 128 + 16
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 9),
        "nodes": st.integers(2, 9),
        "branches": st.integers(2, 8),
        "page": st.sampled_from([1, 2, 4, 16, 64]),
        "spare": st.integers(0, 2),
        "slots": st.integers(1, 7),
        "forwards": st.integers(1, 6),
        "draft_offset": st.integers(0, 2),
        "extend_offset": st.integers(0, 2),
        "width": st.integers(1, 200),
        "block_w": st.sampled_from([16, 64]),
    }
)


def branches(flags: dict[str, bool], shape: dict[str, int]) -> int:
    """K; a chain is one branch."""
    return shape["branches"] if flags["tree"] else 1


def random_inputs(
    flags: dict[str, bool], shape: dict[str, int], dtype: torch.dtype, source: torch.Generator
) -> dict[str, torch.Tensor | int]:
    """The relay buffers and the slot table; row 0 of each holds values that must not come out."""
    lengths = torch.randint(0, LONGEST, (POOL,), generator=source)
    rows = random_rows(source, shape["batch"], POOL)
    inputs: dict[str, torch.Tensor | int] = {
        "rows_ptr": rows,
        "req_to_token_ptr": torch.randint(1, 2**31 - 1, (POOL, CONTEXT), generator=source, dtype=torch.int32),
        "req_to_token_stride": CONTEXT,
        "relay_bonus_ptr": torch.randint(1, 999, (POOL,), generator=source, dtype=torch.int32),
        "relay_topk_index_ptr": torch.randint(1, 999, (POOL, branches(flags, shape)), generator=source),
    }
    if flags["tree"]:
        inputs["relay_topk_p_ptr"] = torch.rand(POOL, shape["branches"], generator=source)
    if flags["relay_seq_lens"]:
        inputs["relay_seq_lens_ptr"] = lengths
    else:
        inputs["seq_lens_ptr"] = lengths[rows]
    if flags["hidden"]:
        inputs["relay_hidden_ptr"] = torch.randn(POOL, shape["width"], generator=source).to(dtype)
    return inputs


def buffers(flags: dict[str, bool], shape: dict[str, int], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The output buffers, poisoned, laid out for a larger batch."""
    max_b, count = shape["batch"] + 3, branches(flags, shape)
    outputs = {
        "health_ptr": poison(max_b, dtype=torch.int32),
        "verify_slots_ptr": poison(max_b, shape["nodes"], dtype=torch.int64),
    }
    if flags["tree"]:
        outputs["bonus_ptr"] = poison(max_b, dtype=torch.int32)
        outputs["topk_p_ptr"] = poison(max_b, count, dtype=torch.float32)
        outputs["topk_index_ptr"] = poison(max_b, count, dtype=torch.int64)
    else:
        outputs["tokens_ptr"] = poison(max_b, shape["nodes"], dtype=torch.int64)
        outputs["verify_positions_ptr"] = poison(max_b, shape["nodes"], dtype=torch.int64)
    if flags["relay_seq_lens"]:
        outputs["out_seq_lens_ptr"] = poison(max_b, dtype=torch.int64)
    if flags["draft"]:
        if not flags["tree"]:
            outputs["draft_tokens_ptr"] = poison(max_b, 1, dtype=torch.int64)
        outputs["draft_positions_ptr"] = poison(max_b, count, dtype=torch.int64)
        outputs["draft_slots_ptr"] = poison(shape["forwards"], max_b, count, dtype=torch.int64)
    if flags["hidden"]:
        outputs["draft_hidden_ptr"] = poison(max_b, count, shape["width"], dtype=dtype)
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
        bonus = given_tensors["relay_bonus_ptr"][row] if row else 0
        want["health_ptr"][b] = 0
        if flags["tree"]:
            want["bonus_ptr"][b] = bonus
            for name in ("topk_p_ptr", "topk_index_ptr"):
                want[name][b] = given_tensors[f"relay_{name}"][row] if row else 0
        else:
            want["tokens_ptr"][b, 0] = bonus
            want["tokens_ptr"][b, 1] = first
        for c in range(shape["nodes"]):
            if not flags["tree"]:
                want["verify_positions_ptr"][b, c] = seq_len + c
            want["verify_slots_ptr"][b, c] = slot(seq_len + c)
        if flags["relay_seq_lens"]:
            want["out_seq_lens_ptr"][b] = seq_len
        if flags["draft"]:
            position = seq_len + shape["draft_offset"]
            if not flags["tree"]:
                want["draft_tokens_ptr"][b] = first
            want["draft_positions_ptr"][b] = position
            page = shape["page"]
            pages = -(-(position % page + shape["forwards"] + shape["spare"]) // page)
            for i, k in itertools.product(range(shape["forwards"]), range(branches(flags, shape))):
                want["draft_slots_ptr"][i, b, k] = slot(position + k * pages * page + i)
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
    values = {"N": shape["nodes"], "K": branches(flags, shape)}
    if flags["extend_window"]:
        values |= {"A": shape["slots"], "EXTEND_OFFSET": shape["extend_offset"]}
    if flags["draft"]:
        values |= {"FORWARDS": shape["forwards"], "DRAFT_OFFSET": shape["draft_offset"]}
        values |= {"PAGE": shape["page"], "ROOM": shape["forwards"] + shape["spare"], "MAX_B": shape["batch"] + 3}
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


TREE = [flags for flags in PREPARE if flags["tree"] and flags["extend_window"]]


@pytest.mark.parametrize("flags", TREE, ids=ids(TREE))
@quicker
@given(shape=shapes)
def test_a_tree_is_what_the_reference_ops_say(
    launcher: Launcher, flags: dict[str, bool], shape: dict[str, int]
) -> None:
    inputs = random_inputs(flags, shape, torch.float32, generator(shape["seed"]))
    outputs = buffers(flags, shape, torch.float32)
    grid = (shape["batch"], -(-shape["width"] // shape["block_w"]) if flags["hidden"] else 1)
    names = {"bonus": "bonus_ptr", "topk_p": "topk_p_ptr", "topk_index": "topk_index_ptr"}
    dims = {
        "B": shape["batch"],
        "K": shape["branches"],
        "D": shape["forwards"],
        "N": shape["nodes"],
        "A": shape["slots"],
    }
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    rows, table = tensors["rows_ptr"], tensors["req_to_token_ptr"]

    def load(field: str) -> torch.Tensor:
        return OPS["carry.load"]((rows, tensors[f"relay_{field}_ptr"]), {}, dims)[0]

    lens = load("seq_lens") if flags["relay_seq_lens"] else tensors["seq_lens_ptr"].masked_fill(rows == 0, 0)
    found = {"health_ptr": OPS["health.clear"]((rows,), {}, dims)[0]} | {to: load(f) for f, to in names.items()}
    verify, extend = {"axis": "N", "offset": 0}, {"axis": "A", "offset": shape["extend_offset"], "stride": 1}
    (found["verify_slots_ptr"],) = OPS["kv.slots"]((table, rows, lens), verify, dims)
    (found["extend_slots_ptr"],) = OPS["kv.slots"]((table, rows, lens), extend, dims)
    (found["extend_positions_ptr"],) = OPS["kv.positions"]((lens,), extend, dims)
    if flags["relay_seq_lens"]:
        found["out_seq_lens_ptr"] = lens
    if flags["hidden"]:
        (found["draft_hidden_ptr"],) = OPS["tree.repeat"]((load("hidden"),), {}, dims)
    expected = {name: value.clone() for name, value in outputs.items()}
    if flags["draft"]:
        room = shape["forwards"] + shape["spare"]
        attrs = {"axis": "K", "offset": shape["draft_offset"], "stride": 0, "page": shape["page"], "room": room}
        (found["draft_positions_ptr"],) = OPS["kv.positions"]((lens,), attrs, dims)
        (slots,) = OPS["kv.branch_slots"]((table, rows, lens), attrs, dims)
        expected["draft_slots_ptr"][:, : shape["batch"]] = slots
    for name, value in found.items():
        expected[name][: shape["batch"]] = value
    check(launcher, "prepare", flags, grid, inputs, {}, outputs, expected, constants(flags, shape))
