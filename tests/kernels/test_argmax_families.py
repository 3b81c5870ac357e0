"""draft_step and row_argmax against a plain scan: shapes, dtypes, flags, hostile rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES,
    affordable,
    argmax,
    check,
    generator,
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


def setup(
    shape: dict[str, int], dtype: str, each: int = 1
) -> tuple[torch.Generator, dict[str, torch.Tensor], dict[str, int]]:
    """(randomness, the inputs rows and logits, the constants) that the families share; `each` rows a request."""
    source = generator(shape["seed"])
    stride = shape["vocab"] + shape["slack"]
    inputs = {
        "rows_ptr": random_rows(source, shape["batch"], POOL),
        "logits_ptr": random_logits(source, shape["batch"] * each, shape["vocab"], stride, DTYPES[dtype]),
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
    found: list[tuple[int, int, int, bool]] = []
    for b, row in enumerate(inputs["rows_ptr"].tolist()):
        index, bad = argmax(inputs["logits_ptr"][b, :vocab]) if row else (0, False)
        found.append((b, row, index, bad))
    return found


DRAFT = list(FAMILIES["draft_step"].combinations())


def shifted(tokens: list[int], accept_len: int, token: int) -> list[int]:
    """The accepted tokens one further in the text: the first one leaves, `token` follows them."""
    return tokens[1:accept_len] + [token] * (accept_len > 0) + tokens[accept_len:]


def draft_step(
    launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], dtype: str, inputs: dict[str, torch.Tensor]
) -> None:
    """Check one case; what a kernel reads besides rows and logits is drawn here unless given."""
    source, drawn, constants = setup(shape, dtype)
    batch, path, width = shape["batch"], shape["path"], shape["width"]
    nodes = shape["nodes"] + flags["start"]
    max_b, ints = batch + 3, torch.iinfo(torch.int32).max
    column = 1 if flags["start"] else int(torch.randint(0, nodes, (), generator=source))
    constants["N"] = nodes
    outputs = {
        "health_ptr": torch.randint(0, 4, (max_b,), generator=source, dtype=torch.int32),
        "tokens_ptr": poison(max_b, nodes, dtype=torch.int64),
    }
    if flags["start"]:
        drawn["bonus_ptr"] = torch.randint(0, ints, (batch,), generator=source, dtype=torch.int32)
    if flags["token"]:
        outputs["draft_tokens_ptr"] = poison(max_b, dtype=torch.int64)
    if flags["advance"]:
        outputs["draft_positions_ptr"] = torch.randint(0, 2**40, (max_b,), generator=source)
    if flags["shift"]:
        outputs["shifted_ptr"] = torch.randint(0, 2**40, (max_b, path), generator=source)
        drawn["accept_lens_ptr"] = torch.randint(0, path + 1, (batch,), generator=source, dtype=torch.int32)
        constants["A"] = path
    if flags["repeat"]:
        drawn["hidden_ptr"] = torch.randn(batch, width, generator=source).to(DTYPES[dtype])
        outputs["draft_hidden_ptr"] = poison(max_b, 1, width, dtype=DTYPES[dtype])
        constants |= {"W": width, "BLOCK_W": shape["block_w"]}
    drawn |= inputs
    expected = {name: value.clone() for name, value in outputs.items()}
    for b, _, index, bad in winners(drawn, shape["vocab"]):
        expected["health_ptr"][b] |= 4 * bad
        expected["tokens_ptr"][b, column] = index
        if flags["start"]:
            expected["tokens_ptr"][b, 0] = drawn["bonus_ptr"][b]
        if flags["token"]:
            expected["draft_tokens_ptr"][b] = index
        if flags["advance"]:
            expected["draft_positions_ptr"][b] += 1
        if flags["shift"]:
            before, accept_len = outputs["shifted_ptr"][b].tolist(), int(drawn["accept_lens_ptr"][b])
            expected["shifted_ptr"][b] = torch.tensor(shifted(before, accept_len, index))
        if flags["repeat"]:
            expected["draft_hidden_ptr"][b, 0] = drawn["hidden_ptr"][b]
    grid, given_ = (batch, shape["splits"]), {**drawn, "column": column}
    check(launcher, "draft_step", flags, grid, given_, scratch(max_b, SPLITS), outputs, expected, constants)


rests = st.fixed_dictionaries(
    {
        "nodes": st.integers(1, 6),
        "path": st.integers(2, 6) | st.integers(2, 40),
        "width": st.integers(1, 300),
        "block_w": st.sampled_from([16, 128]),
    }
)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@settings(quick, max_examples=25)
@given(shape=shapes, rest=rests, flags=st.sampled_from(DRAFT))
def test_draft_step(
    launcher: Launcher, flags: dict[str, bool], shape: dict[str, int], rest: dict[str, int], dtype: str
) -> None:
    draft_step(launcher, flags, shape | rest, dtype, {})


@pytest.mark.parametrize("flag", ["", *FAMILIES["draft_step"].flags])
def test_draft_step_does_what_each_flag_says(launcher: Launcher, flag: str) -> None:
    """One flag at a time, padding and live rows, over several chunks of logits and of the hidden row."""
    shape = {"seed": 5, "batch": 3, "vocab": 300, "slack": 1, "splits": 3, "block": 64}
    rest = {"nodes": 4, "path": 5, "width": 70, "block_w": 16}
    flags = FAMILIES["draft_step"].flagged(*flag.split())
    draft_step(launcher, flags, shape | rest, "fp32", {"rows_ptr": torch.tensor([4, 0, 9])})


@pytest.mark.parametrize("path", [2, 3, 8, 9])
def test_shifting_by_every_accepted_length(launcher: Launcher, path: int) -> None:
    """Tokens past what is accepted stay, and those of a padding row, which accepts nothing, do all."""
    lens = torch.arange(path + 1, dtype=torch.int32)
    shape = {"seed": path, "batch": path + 1, "vocab": 40, "slack": 0, "splits": 2, "block": 16}
    rest = {"nodes": 3, "path": path, "width": 1, "block_w": 16}
    inputs = {"rows_ptr": torch.arange(path + 1), "accept_lens_ptr": lens}
    draft_step(launcher, FAMILIES["draft_step"].flagged("shift"), shape | rest, "bf16", inputs)


ROW = list(FAMILIES["row_argmax"].combinations())


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@settings(quick, max_examples=20)
@given(
    shape=shapes,
    flags=st.sampled_from(ROW),
    each=st.just(1) | st.integers(1, 5),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_row_argmax(
    launcher: Launcher,
    flags: dict[str, bool],
    shape: dict[str, int],
    dtype: str,
    each: int,
    index_dtype: torch.dtype,
) -> None:
    """One row per request, or several with fewer requests."""
    shape = {**shape, "batch": 1 + shape["batch"] // each}
    source, inputs, constants = setup(shape, dtype, each)
    batch, max_b = shape["batch"], shape["batch"] + 3
    outputs: dict[str, torch.Tensor] = {}
    if flags["health"]:
        outputs["health_ptr"] = torch.randint(0, 4, (max_b,), generator=source, dtype=torch.int32)
    else:
        del constants["HEALTH_BIT"]
    if not flags["unread"]:
        outputs["index_ptr"] = poison(max_b, each, dtype=index_dtype)
    if flags["join"]:
        inputs["bonus_ptr"] = torch.randint(0, 2**31 - 1, (batch,), generator=source, dtype=torch.int32)
        outputs["tokens_ptr"] = poison(max_b, each + 1, dtype=torch.int64)
    expected = {name: value.clone() for name, value in outputs.items()}
    for b, row in enumerate(inputs["rows_ptr"].tolist()):
        logits = inputs["logits_ptr"][b * each : (b + 1) * each, : shape["vocab"]]
        found = [argmax(line) if row else (0, False) for line in logits]
        if flags["health"]:
            earlier = 0 if flags["clear"] else expected["health_ptr"][b]
            expected["health_ptr"][b] = earlier | 4 * any(bad for _, bad in found)
        drafts = [index for index, _ in found]
        if not flags["unread"]:
            expected["index_ptr"][b] = torch.tensor(drafts)
        if flags["join"]:
            expected["tokens_ptr"][b] = torch.tensor([int(inputs["bonus_ptr"][b]), *drafts])
    grid, kept = (batch, each * shape["splits"]), scratch(max_b, each, SPLITS)
    check(launcher, "row_argmax", flags, grid, inputs, kept, outputs, expected, {"ROWS": each, **constants})


@pytest.mark.parametrize(("vocab", "splits"), [(70, 3), (64, 3), (63, 2), (5, 3)])
def test_every_chunk_holds_its_own_blocks(launcher: Launcher, vocab: int, splits: int) -> None:
    """Of 16 logits each, the last one partial; the largest is the last logit, so that who reads on is seen."""
    logits = torch.arange(vocab, dtype=torch.float32).view(1, vocab)
    word = torch.zeros(2, 1, dtype=torch.int32)
    arguments = {"rows_ptr": torch.ones(1, dtype=torch.int64), "logits_ptr": logits, **scratch(1, 1, SPLITS)}
    arguments |= {"index_ptr": word[0], "health_ptr": word[1]}
    arguments = {name: value.to(launcher.device) for name, value in arguments.items()}
    constants = {"ROWS": 1, "V": vocab, "STRIDE": vocab, "SPLITS": SPLITS, "BLOCK": 16, "HEALTH_BIT": 4}
    launcher.launch("row_argmax", FAMILIES["row_argmax"].flagged("health"), (1, splits), arguments, constants)
    blocks = logits[0].split(16)
    each = -(-len(blocks) // splits)
    own = [blocks[chunk * each : (chunk + 1) * each] for chunk in range(splits)]
    best = [(max(part[-1]), int(max(part[-1]))) if part else (-math.inf, 0) for part in own]
    assert arguments["partial_value_ptr"][0, 0, :splits].tolist() == [value for value, _ in best]
    assert arguments["partial_index_ptr"][0, 0, :splits].tolist() == [place for _, place in best]
    assert arguments["index_ptr"].tolist() == [vocab - 1]


@pytest.mark.parametrize("each", [1, 2, 3, 5])
def test_good_rows_raise_no_health(launcher: Launcher, each: int) -> None:
    """Whatever number of rows a request has: lanes past them are not bad."""
    logits = torch.randn(each, 40, generator=generator(each))
    index, health = torch.zeros(each, dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    outputs = {"index_ptr": index, "health_ptr": health}
    inputs = {"rows_ptr": torch.ones(1, dtype=torch.int64), "logits_ptr": logits}
    constants = {"ROWS": each, "V": 40, "STRIDE": 40, "SPLITS": SPLITS, "BLOCK": 16, "HEALTH_BIT": 4}
    expected = {"index_ptr": logits.argmax(-1).int(), "health_ptr": health}
    flags, kept = FAMILIES["row_argmax"].flagged("health"), scratch(1, each, SPLITS)
    check(launcher, "row_argmax", flags, (1, 2 * each), inputs, kept, outputs, expected, constants)
