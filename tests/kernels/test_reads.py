"""What kernels read, seen through the interpreter: logits exactly once, and nothing of a padding row."""

from typing import Any

import pytest
import torch
from kernel_cases import generator, scratch
from kernel_families import FAMILIES, PREPARED
from kernel_launcher import ON_GPU, Launcher
from topk_cases import topk_scratch

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
    constants = {"ROWS": 1, "V": vocab, "STRIDE": vocab, "SPLITS": 8, "BLOCK": block, "HEALTH_BIT": 1}
    launcher.launch("row_argmax", FAMILIES["row_argmax"].flagged("health"), (4, splits), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows([0, 2], vocab)
    # The partials of live rows, one per split, and no counter by a plain load.
    assert inside(addresses, arguments["partial_value_ptr"]) == [r * 8 + s for r in (0, 2) for s in range(splits)]
    assert inside(addresses, arguments["arrivals_ptr"]) == []


@pytest.mark.parametrize(("each", "splits"), [(1, 3), (3, 2)])
def test_blocks_read_every_logit_once(launcher: Launcher, addresses: list[int], each: int, splits: int) -> None:
    """Of a padding row not one."""
    vocab = 300
    arguments = {
        "rows_ptr": torch.tensor([3, 0]),
        "logits_ptr": torch.randn(2 * each, vocab, generator=generator(0)),
        "bonus_ptr": torch.ones(2, dtype=torch.int32),
        "tokens_ptr": torch.zeros(2, each + 1, dtype=torch.int64),
        **scratch(2, each, 4),
    }
    constants = {"ROWS": each, "V": vocab, "STRIDE": vocab, "SPLITS": 4, "BLOCK": 64}
    flags = FAMILIES["row_argmax"].flagged("join", "unread")
    launcher.launch("row_argmax", flags, (2, each * splits), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows(list(range(each)), vocab)
    partials = [r * 4 + s for r in range(each) for s in range(splits)]
    assert inside(addresses, arguments["partial_value_ptr"]) == partials


def test_drafting_reads_what_it_moves_once(launcher: Launcher, addresses: list[int]) -> None:
    """Logits of live requests, hidden rows of all, and the tokens that move."""
    vocab, width, path = 100, 70, 5
    arguments = {
        "rows_ptr": torch.tensor([0, 5]),
        "logits_ptr": torch.randn(2, vocab, generator=generator(1)),
        "health_ptr": torch.zeros(2, dtype=torch.int32),
        "tokens_ptr": torch.zeros(2, 3, dtype=torch.int64),
        "column": 1,
        "shifted_ptr": torch.arange(2 * path),
        "accept_lens_ptr": torch.tensor([0, 4], dtype=torch.int32),
        "hidden_ptr": torch.ones(2, width),
        "draft_hidden_ptr": torch.zeros(2, 1, width),
        **scratch(2, 4),
    }
    constants = {"V": vocab, "STRIDE": vocab, "N": 3, "SPLITS": 4, "BLOCK": 32, "HEALTH_BIT": 1}
    constants |= {"A": path, "W": width, "BLOCK_W": 16}
    flags = FAMILIES["draft_step"].flagged("shift", "repeat")
    launcher.launch("draft_step", flags, (2, 3), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows([1], vocab)
    assert inside(addresses, arguments["hidden_ptr"]) == of_rows([0, 1], width)
    assert inside(addresses, arguments["shifted_ptr"]) == [path + 1, path + 2, path + 3]


@pytest.mark.parametrize("tree", [False, True])
def test_verify_reads_nothing_of_padding(launcher: Launcher, addresses: list[int], tree: bool) -> None:
    """Logits once, the log-probabilities of the tree included; nothing behind the tokens of a request either."""
    nodes, vocab = 3, 100
    arguments = {
        "rows_ptr": torch.tensor([0, 5]),
        "logits_ptr": torch.randn(2 * nodes, vocab, generator=generator(1)),
        "health_ptr": torch.zeros(2, dtype=torch.int32),
        "tokens_ptr": torch.zeros(3, nodes, dtype=torch.int64),
        "seq_lens_ptr": torch.zeros(2, dtype=torch.int64),
        "predict_ptr": torch.zeros(2, nodes, dtype=torch.int32),
        "accept_lens_ptr": torch.zeros(2, dtype=torch.int32),
        "new_seq_lens_ptr": torch.zeros(2, dtype=torch.int64),
        "bonus_ptr": torch.zeros(2, dtype=torch.int32),
        "extend_ids_ptr": torch.zeros(2, nodes, dtype=torch.int64),
        "select_ptr": torch.zeros(2, dtype=torch.int64),
        **scratch(2, nodes, 4),
    }
    if tree:
        arguments["parent_ptr"] = torch.tensor([[-1, 0, 1]] * 2)
        arguments["logprobs_ptr"] = torch.zeros(2, nodes)
        arguments["partial_sum_ptr"] = torch.zeros(2, nodes, 4)
    constants = {"N": nodes, "A": nodes, "V": vocab, "STRIDE": vocab, "SPLITS": 4, "BLOCK": 32, "HEALTH_BIT": 2}
    flags = {"tree": tree, "accept_index": False, "logprobs": tree, "extend_ids": True, "select": True}
    flags |= {"lengths": (), "bonuses": (), "rings": ()}
    launcher.launch("verify_commit", flags, (2, nodes * 2), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows([3, 4, 5], vocab)
    assert inside(addresses, arguments["tokens_ptr"]) == [4, 5]  # the drafts, not the root
    assert inside(addresses, arguments["seq_lens_ptr"]) == [1]
    partials = inside(addresses, arguments["partial_value_ptr"])
    assert {number // 4 for number in partials} == {3, 4, 5}  # nor of what lies past the path
    if tree:
        assert inside(addresses, arguments["parent_ptr"]) == [4, 5]


def test_prepare_reads_nothing_of_padding(launcher: Launcher, addresses: list[int]) -> None:
    """Nor of the slots of a request without room, whose row ends within its window."""
    pool, context, nodes, drafts, width = 4, 10, 2, 3, 6
    arguments = {
        "rows_ptr": torch.tensor([0, 2, 3]),
        "req_to_token_ptr": torch.ones(pool, context, dtype=torch.int32),
        "req_to_token_stride": context,
        "columns": context,
        "relay_seq_lens_ptr": torch.tensor([3, 3, 3, 9]),
        "relay_bonus_ptr": torch.ones(pool, dtype=torch.int32),
        "relay_topk_index_ptr": torch.ones(pool, drafts, dtype=torch.int64),
        "relay_hidden_ptr": torch.ones(pool, width),
        "health_ptr": torch.zeros(3, dtype=torch.int32),
        "out_seq_lens_ptr": torch.zeros(3, dtype=torch.int64),
        "tokens_ptr": torch.zeros(3, drafts + 1, dtype=torch.int64),
        "kv_verify_slots_ptr": torch.zeros(3, nodes, dtype=torch.int64),
        "copies_hidden_ptr": torch.zeros(3, 1, width),
    }
    flags = {name: () if isinstance(value, tuple) else False for name, value in PREPARED[0].items()}
    flags |= {"scalars": ("seq_lens", "bonus"), "kept_scalars": ("seq_lens",), "length": ("seq_lens",), "health": True}
    flags |= {"vectors": ("topk_index",), "chain_root": ("bonus",), "chain_drafts": ("topk_index",)}
    flags |= {"admit": True, "windows": ("verify_slots",), "wide": ("hidden",), "repeated": ("hidden",)}
    sizes = {"OFFSET_verify_slots": 0, "SIZE_verify_slots": nodes, "W_topk_index": drafts, "W_hidden": width}
    constants = {"A": drafts + 1, "K": 1, "BLOCK_W": 4, "WINDOW": nodes, "LONGEST": -1, "HEALTH_BIT": 32, **sizes}
    launcher.launch("prepare", flags, (3, 3), arguments, constants)
    assert inside(addresses, arguments["relay_hidden_ptr"]) == of_rows([2, 3], width)
    assert inside(addresses, arguments["relay_topk_index_ptr"]) == of_rows([2, 3], drafts)
    assert inside(addresses, arguments["req_to_token_ptr"]) == [2 * context + 3, 2 * context + 4]
    assert arguments["health_ptr"].tolist() == [0, 0, 32]
    for name in ("relay_seq_lens_ptr", "relay_bonus_ptr"):
        assert inside(addresses, arguments[name]) == [2, 3]


def test_extend_stash_reads_nothing_of_padding(launcher: Launcher, addresses: list[int]) -> None:
    pool, vocab, short, width = 4, 50, 2, 6
    arguments = {
        "rows_ptr": torch.tensor([0, 2, 0]),
        "logits_ptr": torch.randn(3, vocab, generator=generator(2)),
        "health_ptr": torch.zeros(3, dtype=torch.int32),
        "new_bonus_ptr": torch.ones(3, short, dtype=torch.int32),
        "new_hidden_ptr": torch.ones(3, width),
        "relay_bonus_ptr": torch.zeros(pool, short, dtype=torch.int32),
        "relay_topk_index_ptr": torch.zeros(pool, 1, dtype=torch.int64),
        "relay_hidden_ptr": torch.zeros(pool, width),
        **scratch(3, 4),
    }
    constants = {"V": vocab, "STRIDE": vocab, "SPLITS": 4, "BLOCK": 32, "HEALTH_BIT": 4, "BLOCK_W": 4}
    constants |= {"W_bonus": short, "W_hidden": width}
    flags = {"topk": False, "index": ("topk_index",), "p": (), "narrow": ("bonus",), "wide": ("hidden",)}
    launcher.launch("extend_stash", flags, (3, 2), arguments, constants)
    assert inside(addresses, arguments["logits_ptr"]) == of_rows([1], vocab)
    assert inside(addresses, arguments["new_hidden_ptr"]) == of_rows([1], width)
    assert inside(addresses, arguments["new_bonus_ptr"]) == of_rows([1], short)


def test_stash_reads_the_last_rows_of_live_requests(launcher: Launcher, addresses: list[int]) -> None:
    pool, nodes, width = 4, 3, 6
    arguments = {
        "rows_ptr": torch.tensor([0, 2, 3]),
        "accept_index_ptr": torch.tensor([[-1, -1], [3, 5], [8, -1]], dtype=torch.int32),
        "accept_lens_ptr": torch.tensor([0, 2, 1], dtype=torch.int32),
        "new_bonus_ptr": torch.ones(3, dtype=torch.int32),
        "relay_bonus_ptr": torch.zeros(pool, dtype=torch.int32),
        "new_hidden_ptr": torch.ones(3, nodes, width),
        "relay_hidden_ptr": torch.zeros(pool, width),
    }
    constants = {"A": 2, "BLOCK": 4, "ROW_bonus": 4, "UNIT_bonus": 4, "ROW_hidden": 4 * width, "UNIT_hidden": 4}
    flags = {"copied": ("bonus",), "last": ("hidden",), "kept": ()}
    launcher.launch("stash", flags, (3, 3), arguments, constants)
    assert inside(addresses, arguments["new_bonus_ptr"]) == [1, 2]
    assert inside(addresses, arguments["new_hidden_ptr"]) == of_rows([5, 8], width)


@pytest.mark.parametrize(("vocab", "block", "splits"), [(40, 16, 1), (300, 64, 3), (512, 64, 8), (1000, 256, 2)])
def test_topk_reads_logits_once_and_the_columns_of_winners_again(
    launcher: Launcher, addresses: list[int], vocab: int, block: int, splits: int
) -> None:
    k, width = 3, 5
    arguments = {
        "rows_ptr": torch.tensor([0, 7]),
        "logits_ptr": torch.randn(2 * k, vocab, generator=generator(3)),
        "health_ptr": torch.zeros(2, dtype=torch.int32),
        "parent_scores_ptr": torch.ones(2, k),
        "index_ptr": torch.zeros(2, k, k, dtype=torch.int64),
        "candidates_ptr": torch.zeros(2, k, k),
        "tokens_ptr": torch.zeros(2, k, dtype=torch.int64),
        "scores_ptr": torch.zeros(2, k),
        "kept_ptr": torch.zeros(2, k, dtype=torch.int64),
        "hidden_ptr": torch.ones(2, k, width),
        "next_hidden_ptr": torch.ones(2, k, width),
        "positions_ptr": torch.zeros(2, k, dtype=torch.int64),
        **topk_scratch(2, k, 8, k),
    }
    constants = {"K": k, "V": vocab, "STRIDE": vocab, "SPLITS": 8, "BLOCK": block, "HEALTH_BIT": 1}
    flags = {"frontier": True, "gather": True, "advance": True}
    launcher.launch("tree_step", flags, (2, k * splits), arguments, {**constants, "W": width, "BLOCK_W": 8})
    loads = inside(addresses, arguments["logits_ptr"])
    assert sorted(set(loads)) == of_rows([3, 4, 5], vocab)
    again = [number for number in set(loads) if loads.count(number) > 1]
    # Every chunk reads the columns of its winners again, and nothing a third time.
    blocks, programs = -(-vocab // block), min(splits, -(-vocab // block))
    assert len(loads) == 3 * vocab + len(again)
    assert 0 < len(again) <= 3 * k * programs * -(-blocks // splits)
    assert inside(addresses, arguments["parent_scores_ptr"]) == [3, 4, 5]
    # What a padding row inherits is the hidden row of its first branch, once per branch.
    of_padding = [number for number in inside(addresses, arguments["hidden_ptr"]) if number < k * width]
    assert of_padding == sorted(list(range(width)) * k)


def test_tree_build_reads_nothing_of_padding(launcher: Launcher, addresses: list[int]) -> None:
    k, nodes = 2, 4
    arguments: dict[str, torch.Tensor] = {
        "rows_ptr": torch.tensor([0, 5]),
        "health_ptr": torch.zeros(2, dtype=torch.int32),
        "bonus_ptr": torch.ones(2, dtype=torch.int32),
        "seq_lens_ptr": torch.tensor([0, 7]),
        "scores0_ptr": torch.tensor([[0.5, 0.5], [0.6, 0.4]]),
        "tokens0_ptr": torch.ones(2, k, dtype=torch.int64),
        "kept1_ptr": torch.zeros(2, k, dtype=torch.int64),
        **{f"scores{step}_ptr": torch.full((2, k, k), 0.1 / step) for step in (1, 2)},
        **{f"tokens{step}_ptr": torch.ones(2, k, k, dtype=torch.int64) for step in (1, 2)},
        **{name: torch.zeros(2, nodes, dtype=torch.int64) for name in ("tokens_ptr", "parent_ptr", "positions_ptr")},
    }
    constants = {"K": k, "S": 3, "N": nodes, "ORPHAN_BIT": 16}
    launcher.launch("tree_build", {"fused": False, "mask": False, "steps": 3}, (2, 1), arguments, constants)
    for name in ("scores0_ptr", "tokens0_ptr", "bonus_ptr"):
        assert inside(addresses, arguments[name]) == of_rows([1], arguments[name][0].numel())
    for name in ("scores1_ptr", "scores2_ptr", "tokens1_ptr", "tokens2_ptr"):
        assert inside(addresses, arguments[name]) == of_rows([1], k * k)
    # The low words of kept, one per candidate of the last step.
    assert inside(addresses, arguments["kept1_ptr"]) == [2, 2, 3, 3]


def test_a_look_up_reads_nothing_of_padding_and_nothing_outside(launcher: Launcher, addresses: list[int]) -> None:
    """A text and a corpus of one token that match everywhere, so that all lengths are counted back past their start."""
    window, branches = 16, 2
    arguments = {
        "rows_ptr": torch.tensor([0, 2]),
        "seq_lens_ptr": torch.tensor([40, 9]),
        "text_ptr": torch.ones(3, window, dtype=torch.int32),
        "corpus_ptr": torch.ones(21, dtype=torch.int32),
        "corpus_size": 21,
        "partial_key_ptr": torch.zeros(2, 4, branches, dtype=torch.int64),
        "partial_token_ptr": torch.zeros(2, 4, branches, dtype=torch.int32),
        "arrivals_ptr": torch.zeros(2, dtype=torch.int32),
        "tokens_ptr": torch.zeros(2, 7, dtype=torch.int64),
    }
    constants = {"WINDOW": window, "LONGEST": 32, "SHORTEST": 1, "K": branches, "S": 3, "N": 7, "BLOCK": 4, "SPLITS": 4}
    flags = {"corpus": True, "tree": False, "mask": False}
    launcher.launch("ngram_propose", flags, (2, 2), arguments, constants)
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    assert len(addresses) == sum(len(inside(addresses, tensor)) for tensor in tensors)
    assert set(inside(addresses, arguments["text_ptr"])) == set(of_rows([2], window))
    assert set(inside(addresses, arguments["corpus_ptr"])) == set(range(21))


def test_a_prefill_reads_its_own_prompt_only(launcher: Launcher, addresses: list[int]) -> None:
    """And of that what the ring has room for."""
    arguments = {
        "rows_ptr": torch.tensor([1, 0, 2]),
        "seq_lens_ptr": torch.tensor([3, 4, 12]),
        "first_ptr": torch.zeros(3, dtype=torch.int32),
        "prompt_ptr": torch.arange(19),
        "text_ptr": torch.zeros(3, 8, dtype=torch.int32),
    }
    launcher.launch("ngram_start", {}, (3, 2), arguments, {"WINDOW": 8, "BLOCK": 4})
    assert inside(addresses, arguments["prompt_ptr"]) == [0, 1, 2, *range(12, 19)]
    assert len(addresses) == sum(len(inside(addresses, tensor)) for tensor in arguments.values())
