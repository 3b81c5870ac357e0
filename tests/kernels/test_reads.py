"""What kernels read, seen through the interpreter: logits exactly once, and nothing of a padding row."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from cluster_cases import POOL, Scan, TypedBuilder, carry, prepared, small_module
from kernel_cases import generator
from kernel_launcher import ON_GPU, Launcher
from ngram_cases import PLAIN, completed, look_up, start
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.compiler.kernels.writing.vocabulary import widest_group

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


def inside(addresses: list[int], tensor: Tensor) -> list[int]:
    """The loads from `tensor`, as element numbers in it, sorted."""
    start_, size = tensor.data_ptr(), tensor.element_size()
    numbers = ((address - start_) // size for address in addresses)
    return sorted(number for number in numbers if 0 <= number < tensor.numel())


def of_rows(rows: list[int], width: int) -> list[int]:
    """The element numbers of these rows of a matrix."""
    return [row * width + column for row in rows for column in range(width)]


def launched(
    launcher: Launcher, module: Module, rows: list[int], scan: Scan | None = None, **given: Tensor
) -> Mapping[str, Tensor]:
    """The memory of the only kernel of a module, which has been launched."""
    drawn = {"req_pool_indices": torch.tensor(rows), **given}
    memory, launch = prepared(module, drawn, generator(0), scan or Scan())
    launch.run(launcher, memory)
    return memory.tensors


CUTS = [(1, 16, 4), (300, 64, 3), (512, 64, 8), (1000, 1024, 2)]


@pytest.mark.parametrize(("vocab", "block", "splits"), CUTS)
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("each", [1, 3])
def test_argmax_reads_every_logit_once(
    launcher: Launcher, addresses: list[int], each: int, vocab: int, block: int, splits: int, sums: bool
) -> None:
    """Of a padding row not one; with log-probabilities too, and when a health word may have to be raised."""
    module = small_module(N=each, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    logits, earlier = b.given("logits", "f32", "N", "V"), b.given("earlier", "i32")
    with b.phase("verify"):
        index, bad = b.many("vocab.argmax", logits, rows, dtype="i32", keep="")
        b.hand_out(index, b("health.raise", earlier, bad, names=("health",), bit=1))
        if sums:
            b.hand_out(b("vocab.logprob", logits, rows, index))
    memory = launched(launcher, module, [3, 0, 7, 0], Scan(splits, block))
    live = [b * each + i for b in (0, 2) for i in range(each)]
    assert inside(addresses, memory["logits"]) == of_rows(live, vocab)
    # The partials of live rows, one per split, and no counter by a plain load.
    most = memory["argmax.partial_value"].shape[-1]
    partials = sorted([row * most + split for row in live for split in range(splits)] * (1 + sums))
    assert inside(addresses, memory["argmax.partial_value"]) == partials
    assert inside(addresses, memory["argmax.arrivals"]) == []
    assert inside(addresses, memory["earlier"]) == []


@pytest.mark.parametrize(("vocab", "block", "splits"), [(40, 16, 1), (300, 64, 3), (512, 64, 8), (1000, 256, 2)])
def test_topk_reads_logits_once_and_the_columns_of_winners_again(
    launcher: Launcher, addresses: list[int], vocab: int, block: int, splits: int
) -> None:
    k, width = 3, 5
    module = small_module(K=k, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("draft"):
        p, index, _ = b.many("vocab.topk", b.given("logits", "f32", "K", "V"), rows)
        *grown, kept, candidates = b.many("tree.grow", b.given("parents", "f32", "K"), p, index)
        moved = b("tree.gather", b.given("hidden", "f32", "K", width), kept)
        b.hand_out(index, *grown, kept, candidates, moved, b("kv.advance", b.given("at", "i64", "K")))
    parents = torch.tensor([[0.0] * k, [1.0] * k])
    memory = launched(launcher, module, [0, 7], Scan(splits, block), parents=parents)
    loads = inside(addresses, memory["logits"])
    assert sorted(set(loads)) == of_rows([3, 4, 5], vocab)
    again = [number for number in set(loads) if loads.count(number) > 1]
    # Every chunk reads again what the groups of its winners have seen, and nothing a third time.
    blocks, programs, group = -(-vocab // block), min(splits, -(-vocab // block)), widest_group(vocab, block, k, 8)
    assert len(loads) == 3 * vocab + len(again)
    assert 0 < len(again) <= 3 * k * programs * -(-blocks // splits) * group
    # What a padding row inherits is the hidden row of its first branch, once per branch.
    of_padding = [number for number in inside(addresses, memory["hidden"]) if number < k * width]
    assert of_padding == sorted(list(range(width)) * k)


@pytest.mark.parametrize(("vocab", "block", "splits"), [(300, 64, 3), (512, 64, 8), (1000, 256, 1)])
def test_topk_of_one_row_reads_groups_again_once_for_all_chunks(
    launcher: Launcher, addresses: list[int], vocab: int, block: int, splits: int
) -> None:
    k = 3
    module = small_module(K=k, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("extend"):
        b.hand_out(*b.many("vocab.topk", b.given("logits", "f32", "V"), rows)[:2])
    memory = launched(launcher, module, [0, 7], Scan(splits, block))
    loads = inside(addresses, memory["logits"])
    assert sorted(set(loads)) == of_rows([1], vocab)
    blocks, again, group = -(-vocab // block), len(loads) - vocab, widest_group(vocab, block, k, 8)
    assert 0 < again <= k * -(-blocks // splits) * group


def test_drafting_reads_what_it_moves_once(launcher: Launcher, addresses: list[int]) -> None:
    """Logits of live requests, hidden rows of all, and the tokens that move."""
    vocab, width, path = 100, 3000, 5
    module = small_module(K=1, A=path, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("extend"):
        token, _ = b.many("vocab.argmax", b.given("logits", "f32", "V"), rows, dtype="i64", keep="K")
        b.hand_out(b("chain.shift", b.given("tokens", "i64", "A"), b.given("lens", "i32"), token))
        b.hand_out(b("tree.repeat", b.given("hidden", "f32", width)))
    memory = launched(launcher, module, [0, 5], Scan(3, 32), lens=torch.tensor([0, 4], dtype=torch.int32))
    assert inside(addresses, memory["logits"]) == of_rows([1], vocab)
    assert inside(addresses, memory["hidden"]) == of_rows([0, 1], width)
    assert inside(addresses, memory["tokens"]) == of_rows([0, 1], path)


@pytest.mark.parametrize("tree", [False, True])
def test_verify_reads_no_logits_of_padding(launcher: Launcher, addresses: list[int], tree: bool) -> None:
    """Logits once, the log-probabilities of the tree included; nothing behind the tokens of the batch either."""
    nodes, vocab = 3, 100
    module = small_module(N=nodes, A=nodes, V=vocab)
    rows, lens, b = module.inputs["req_pool_indices"], module.inputs["seq_lens"], TypedBuilder(module)
    axis = "N" if tree else "A"
    logits, tokens = b.given("logits", "f32", axis, "V"), b.given("tokens", "i64", axis)
    parents = [b.given("parent", "i64", "N")] if tree else []
    with b.phase("verify"):
        targets, _ = b.many("vocab.argmax", logits, rows, dtype="i32", keep="")
        path, index, count = b.many("verify.greedy", tokens, targets, rows, *parents)
        if tree:
            sums = b("vocab.logprob", logits, rows, targets)
            path = b("commit.compact", targets, index)
            b.hand_out(b("commit.compact", sums, index, names=("logprobs",)))
        b.hand_out(path, count, *b.many("commit.lengths", lens, count, path))
    memory = launched(launcher, module, [0, 5], Scan(2, 32))
    assert inside(addresses, memory["logits"]) == of_rows([3, 4, 5], vocab)
    assert inside(addresses, memory["tokens"]) == of_rows([0, 1], nodes)
    assert inside(addresses, memory["seq_lens"]) == [0, 1]
    most = memory["argmax.partial_value"].shape[-1]
    assert {number // most for number in inside(addresses, memory["argmax.partial_value"])} == {3, 4, 5}
    if tree:
        assert inside(addresses, memory["parent"]) == of_rows([0, 1], nodes)


def test_a_step_reads_nothing_of_padding(launcher: Launcher, addresses: list[int]) -> None:
    """Nor of the slots of a request without room, whose row ends within its window."""
    context, nodes, drafts, width = 10, 2, 3, 300
    module = small_module(K=1, S=drafts, A=drafts + 1, N=nodes)
    rows, table, b = module.inputs["req_pool_indices"], module.inputs["req_to_token"], TypedBuilder(module)
    carry(module, "seq_lens", "i64")
    carry(module, "bonus", "i32")
    carry(module, "drafts", "i64", "S")
    carry(module, "hidden", "f32", width)
    with b.phase("prepare"):
        lens = b("carry.load", rows, field="seq_lens", names=("lens",))
        root, first = b("carry.load", rows, field="bonus"), b("carry.load", rows, field="drafts")
        hidden = b("carry.load", rows, field="hidden")
        b.hand_out(lens, b("chain.join", root, first), b("tree.repeat", hidden))
        names = ("rows", "admitted", "full")
        admitted, lens, full = b.many("kv.admit", table, rows, lens, names=names, window=nodes, longest=-1)
        b.hand_out(b("kv.slots", table, admitted, lens, axis="N", offset=0))
        b.hand_out(b("health.raise", b("health.clear", rows), full, names=("told",), bit=5))
    lengths = torch.tensor([3, 3, 3, 9, *[0] * (POOL - 4)])
    table_ = torch.ones(POOL, context, dtype=torch.int32)
    given = {"relay.seq_lens": lengths, "req_to_token": table_}
    memory = launched(launcher, module, [0, 2, 3], **given)
    assert inside(addresses, memory["relay.hidden"]) == of_rows([2, 3], width)
    assert inside(addresses, memory["relay.drafts"]) == of_rows([2, 3], drafts)
    assert inside(addresses, memory["req_to_token"]) == [2 * context + 3, 2 * context + 4]
    assert memory["health"][:3].tolist() == [0, 0, 32]
    for name in ("relay.seq_lens", "relay.bonus"):
        assert inside(addresses, memory[name]) == [2, 3]


def verified(width: int, nodes: int, vocab: int) -> Module:
    """What follows a target's forward, and the slots and the carried rows that a step begins with."""
    module = small_module(K=2, N=nodes, A=nodes, V=vocab)
    rows, lens, table = (module.inputs[name] for name in ("req_pool_indices", "seq_lens", "req_to_token"))
    b = TypedBuilder(module)
    carry(module, "short", "f32")
    carry(module, "long", "f32", width)
    carry(module, "kept", "f32", width)
    with b.phase("verify"):
        short, long = b("carry.load", rows, field="short"), b("carry.load", rows, field="long")
        b.hand_out(short, b("tree.repeat", long), b("kv.slots", table, rows, lens, axis="N", offset=0))
        targets, bad = b.many("vocab.argmax", b.given("logits", "f32", "N", "V"), rows, dtype="i32", keep="")
        b.hand_out(b("health.raise", b("health.clear", rows), bad, names=("told",), bit=1))
        predict, path, count = b.many("verify.greedy", b.given("tokens", "i64", "N"), targets, rows)
        b.hand_out(predict, path, count, *b.many("commit.lengths", lens, count, b("commit.compact", predict, path)))
        b.many("carry.store", rows, b.given("hidden", "f32", width), field="kept")
    return module


def test_padding_rows_may_hold_anything(launcher: Launcher, addresses: list[int]) -> None:
    """In the engine's table, in pools, and of what forwards gave: none of it is read, nothing depends on it."""
    width, nodes, vocab, columns, rows = 1500, 3, 40, 9, torch.tensor([0, 5, 0, 2])
    source = generator(11)
    given = {
        "logits": torch.randn(4, nodes, vocab, generator=source),
        "hidden": torch.randn(4, width, generator=source),
        "tokens": torch.randint(0, vocab, (4, nodes), generator=source),
        "relay.short": torch.randn(POOL, generator=source),
        "relay.long": torch.randn(POOL, width, generator=source),
        "relay.kept": torch.randn(POOL, width, generator=source),
        "req_to_token": torch.randint(1, 99, (POOL, columns), generator=source, dtype=torch.int32),
    }
    poisoned = {name: tensor.clone() for name, tensor in given.items()}
    for tensor in poisoned.values():
        padding = rows == 0 if len(tensor) == len(rows) else torch.arange(POOL) == 0
        tensor[padding] = torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    lengths = torch.tensor([0, 4, 0, 1])
    memory, poisoned_memory = (
        launched(launcher, verified(width, nodes, vocab), rows.tolist(), seq_lens=lengths, **tensors)
        for tensors in (given, poisoned)
    )
    assert inside(addresses, poisoned_memory["logits"]) == of_rows([3, 4, 5, 9, 10, 11], vocab)
    assert inside(addresses, poisoned_memory["hidden"]) == of_rows([1, 3], width)
    assert inside(addresses, poisoned_memory["relay.short"]) == [2, 5]
    assert set(inside(addresses, poisoned_memory["relay.long"])) == set(of_rows([2, 5], width))
    assert {number // columns for number in inside(addresses, poisoned_memory["req_to_token"])} == {2, 5}
    assert torch.equal(memory["relay.kept"][1:], poisoned_memory["relay.kept"][1:])
    assert poisoned_memory["relay.kept"][0].isnan().all()
    made = [name for name in memory.keys() - given.keys() if ".partial_" not in name]
    assert len(made) > 10
    for name in made:
        torch.testing.assert_close(memory[name], poisoned_memory[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_what_is_carried_after_a_reduction_is_read_once(launcher: Launcher, addresses: list[int]) -> None:
    """Logits of live requests, short rows by one program of each request, long ones by all of them."""
    vocab, short, width = 50, 2, 3000
    module = small_module(K=1, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    for name, dtype, shape in (("token", "i64", ("K",)), ("bonus", "i32", (short,)), ("hidden", "f32", (width,))):
        carry(module, name, dtype, *shape)
    with b.phase("extend"):
        token, _ = b.many("vocab.argmax", b.given("logits", "f32", "V"), rows, dtype="i64", keep="K")
        b.many("carry.store", rows, token, field="token")
        b.many("carry.store", rows, b.given("new_bonus", "i32", short), field="bonus")
        b.many("carry.store", rows, b.given("new_hidden", "f32", width), field="hidden")
    memory = launched(launcher, module, [0, 2, 0], Scan(2, 32))
    assert inside(addresses, memory["logits"]) == of_rows([1], vocab)
    assert inside(addresses, memory["new_hidden"]) == of_rows([1], width)
    assert inside(addresses, memory["new_bonus"]) == of_rows([0, 1, 2], short)


def test_the_last_rows_of_live_requests_are_read(launcher: Launcher, addresses: list[int]) -> None:
    nodes, width = 3, 600
    module = small_module(N=nodes, A=2)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    index, lens = b.given("accept_index", "i32", "A"), b.given("accept_lens", "i32")
    carry(module, "hidden", "f32", width)
    with b.phase("commit"):
        last = b("commit.last", b.given("nodes", "f32", "N", width), index, lens)
        b.many("carry.store", rows, last, field="hidden")
    given = {
        "accept_index": torch.tensor([[-1, -1], [3, 5], [8, -1]], dtype=torch.int32),
        "accept_lens": torch.tensor([0, 2, 1], dtype=torch.int32),
    }
    memory = launched(launcher, module, [0, 2, 3], **given)
    halves = [number for row in (5, 8) for number in range(row * width, (row + 1) * width, 2)]
    assert [number * 2 for number in inside(addresses, memory["nodes"].view(torch.int64))] == halves


def test_a_selection_reads_every_candidate_once(launcher: Launcher, addresses: list[int]) -> None:
    """Scores and tokens of all steps, and of kept, the low words, one for each candidate of the step after."""
    k, nodes = 2, 4
    module = small_module(K=k, N=nodes, A=4)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    shapes = [("K",), ("K", "K"), ("K", "K")]
    scores = [b.given(f"scores{i}", "f32", *shape) for i, shape in enumerate(shapes)]
    tokens = [b.given(f"tokens{i}", "i64", *shape) for i, shape in enumerate(shapes)]
    with b.phase("tree"):
        parts = (*scores, *tokens, b.given("kept1", "i64", "K"))
        b.hand_out(*b.many("tree.select", rows, b.given("bonus", "i32"), *parts, steps=3))
    memory = launched(launcher, module, [0, 5], kept1=torch.zeros(2, k, dtype=torch.int64))
    for name in ("scores0", "tokens0", "bonus", "scores1", "scores2", "tokens1", "tokens2"):
        assert inside(addresses, memory[name]) == of_rows([0, 1], memory[name][0].numel()), name
    low = [number // 2 for number in inside(addresses, memory["kept1"].view(torch.int32)) if number % 2 == 0]
    assert sorted(low) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_look_up_reads_nothing_of_padding_and_nothing_outside(launcher: Launcher, addresses: list[int]) -> None:
    """A text and a corpus of one token that match everywhere, so that all lengths are counted back past their start."""
    window, branches = 16, 2
    shape = completed(PLAIN | {"k": branches, "longest": 32, "block": 4})
    arguments: dict[str, Any] = {
        "rows_ptr": torch.tensor([0, 2]),
        "seq_lens_ptr": torch.tensor([40, 9]),
        "text_ptr": torch.ones(3, window, dtype=torch.int32),
        "corpus_ptr": torch.ones(21, dtype=torch.int32),
        "corpus_size": 21,
        "partial_key_ptr": torch.zeros(2, 8, branches, dtype=torch.int64),
        "partial_token_ptr": torch.zeros(2, 8, branches, dtype=torch.int32),
        "arrivals_ptr": torch.zeros(2, dtype=torch.int32),
        "tokens_ptr": torch.zeros(2, 7, dtype=torch.int64),
    }
    launcher.launch(look_up(shape, corpus=True, width=0), (2, 2), arguments)
    tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
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
    launcher.launch(start(8, 4), (3, 2), arguments)
    assert inside(addresses, arguments["prompt_ptr"]) == [0, 1, 2, *range(12, 19)]
    assert len(addresses) == sum(len(inside(addresses, tensor)) for tensor in arguments.values())
