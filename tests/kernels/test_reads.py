"""What kernels read, seen through the interpreter: logits exactly once, and nothing of a padding row."""

from typing import Any

import pytest
import torch
from kernel_cases import generator, scratch
from kernel_launcher import ON_GPU, Launcher

if not ON_GPU:
    from triton.runtime.interpreter import InterpreterBuilder


@pytest.fixture
def addresses(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every address that the kernels of this test load from, in order."""
    if launcher.device != "cpu":
        pytest.skip("loads are recorded by the interpreter")
    seen: list[int] = []
    load = InterpreterBuilder.create_masked_load

    def recording(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        seen.extend(int(address) for address in ptrs.data[mask.data.astype(bool)].ravel())
        return load(self, ptrs, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", recording)
    return seen


def inside(addresses: list[int], tensor: torch.Tensor) -> list[int]:
    """The loads from `tensor`, as element numbers in it, sorted."""
    start, size = tensor.data_ptr(), tensor.element_size()
    numbers = ((address - start) // size for address in addresses)
    return sorted(number for number in numbers if 0 <= number < tensor.numel())


def of_rows(rows: list[int], width: int) -> list[int]:
    """The element numbers of these rows of a matrix."""
    return [row * width + column for row in rows for column in range(width)]


@pytest.mark.parametrize(("vocab", "block", "splits"), [(1, 16, 4), (300, 64, 3), (512, 64, 8), (1000, 1024, 2)])
def test_argmax_reads_every_logit_once(
    launcher: Launcher, addresses: list[int], vocab: int, block: int, splits: int
) -> None:
    rows = torch.tensor([3, 0, 7, 0])
    arguments = {
        "rows_ptr": rows,
        "logits_ptr": torch.randn(4, vocab, generator=generator(0)),
        "health_ptr": torch.zeros(4, dtype=torch.int32),
        "index_ptr": torch.zeros(4, dtype=torch.int32),
        **scratch(4, 8),
    }
    constants = {"V": vocab, "STRIDE": vocab, "SPLITS": 8, "BLOCK": block, "HEALTH_BIT": 1}
    launcher.launch("row_argmax", {"clear": False}, (4, splits), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows([0, 2], vocab)
    # The partials of live rows, one per split, and no counter by a plain load.
    assert inside(addresses, arguments["partial_value_ptr"]) == [r * 8 + s for r in (0, 2) for s in range(splits)]
    assert inside(addresses, arguments["arrivals_ptr"]) == []


def test_verify_reads_nothing_of_padding(launcher: Launcher, addresses: list[int]) -> None:
    nodes, vocab = 3, 100
    arguments = {
        "rows_ptr": torch.tensor([0, 5]),
        "logits_ptr": torch.randn(2 * nodes, vocab, generator=generator(1)),
        "health_ptr": torch.zeros(2, dtype=torch.int32),
        "tokens_ptr": torch.zeros(2, nodes, dtype=torch.int64),
        "seq_lens_ptr": torch.zeros(2, dtype=torch.int64),
        "predict_ptr": torch.zeros(2, nodes, dtype=torch.int32),
        "accept_lens_ptr": torch.zeros(2, dtype=torch.int32),
        "new_seq_lens_ptr": torch.zeros(2, dtype=torch.int64),
        "bonus_ptr": torch.zeros(2, dtype=torch.int32),
        "extend_ids_ptr": torch.zeros(2, nodes, dtype=torch.int64),
        "select_ptr": torch.zeros(2, dtype=torch.int64),
        **scratch(2, nodes, 4),
    }
    constants = {"N": nodes, "V": vocab, "STRIDE": vocab, "SPLITS": 4, "BLOCK": 32, "HEALTH_BIT": 2}
    flags = {"accept_index": False, "publish": False}
    launcher.launch("verify_commit", flags, (2, nodes * 2), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows([3, 4, 5], vocab)
    assert inside(addresses, arguments["tokens_ptr"]) == [4, 5]  # the drafts, not the root
    assert inside(addresses, arguments["seq_lens_ptr"]) == [1]


def test_prepare_reads_nothing_of_padding(launcher: Launcher, addresses: list[int]) -> None:
    pool, context, nodes, width = 4, 10, 2, 6
    arguments = {
        "rows_ptr": torch.tensor([0, 2]),
        "relay_seq_lens_ptr": torch.full((pool,), 3),
        "req_to_token_ptr": torch.ones(pool, context, dtype=torch.int32),
        "req_to_token_stride": context,
        "relay_bonus_ptr": torch.ones(pool, dtype=torch.int32),
        "relay_topk_index_ptr": torch.ones(pool, 1, dtype=torch.int64),
        "relay_hidden_ptr": torch.ones(pool, width),
        "out_seq_lens_ptr": torch.zeros(2, dtype=torch.int64),
        "health_ptr": torch.zeros(2, dtype=torch.int32),
        "tokens_ptr": torch.zeros(2, nodes, dtype=torch.int64),
        "draft_hidden_ptr": torch.zeros(2, 1, width),
        "verify_positions_ptr": torch.zeros(2, nodes, dtype=torch.int64),
        "verify_slots_ptr": torch.zeros(2, nodes, dtype=torch.int64),
    }
    flags = {"hidden": True, "relay_seq_lens": True, "draft": False, "extend_window": False}
    launcher.launch("prepare", flags, (2, 2), arguments, {"N": nodes, "W": width, "BLOCK_W": 4})
    assert inside(addresses, arguments["relay_hidden_ptr"]) == of_rows([2], width)
    assert inside(addresses, arguments["req_to_token_ptr"]) == [2 * context + 3, 2 * context + 4]
    for name in ("relay_seq_lens_ptr", "relay_bonus_ptr", "relay_topk_index_ptr"):
        assert inside(addresses, arguments[name]) == [2]


def test_stash_reads_nothing_of_padding(launcher: Launcher, addresses: list[int]) -> None:
    pool, vocab, width = 4, 50, 6
    arguments = {
        "rows_ptr": torch.tensor([0, 2, 0]),
        "logits_ptr": torch.randn(3, vocab, generator=generator(2)),
        "health_ptr": torch.zeros(3, dtype=torch.int32),
        "bonus_ptr": torch.ones(3, dtype=torch.int32),
        "hidden_ptr": torch.ones(3, width),
        "seq_lens_ptr": torch.ones(3, dtype=torch.int64),
        "relay_bonus_ptr": torch.zeros(pool, dtype=torch.int32),
        "relay_topk_index_ptr": torch.zeros(pool, 1, dtype=torch.int64),
        "relay_hidden_ptr": torch.zeros(pool, width),
        "relay_seq_lens_ptr": torch.zeros(pool, dtype=torch.int64),
        **scratch(3, 4),
    }
    constants = {
        "V": vocab,
        "STRIDE": vocab,
        "SPLITS": 4,
        "BLOCK": 32,
        "HEALTH_BIT": 4,
        "W": width,
        "BLOCK_W": 4,
    }
    launcher.launch("extend_stash", {"hidden": True, "seq_lens": True}, (3, 2), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows([1], vocab)
    assert inside(addresses, arguments["hidden_ptr"]) == of_rows([1], width)
    assert inside(addresses, arguments["bonus_ptr"]) == [1]
    assert inside(addresses, arguments["seq_lens_ptr"]) == [1]
