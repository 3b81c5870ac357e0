"""Trees over the paged pool against plain sequences: every node and every branch sees the path it stands on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.program import make_plan
from torch import Tensor

from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.memory.tree_attention import Branches, seen_columns, visible_keys
from specc.lab.engine.models.causal_models import CausalModel, TargetModel
from specc.lab.engine.models.drafts import StandaloneDraft
from specc.lab.engine.serving.callbacks import EngineMemory
from specc.lab.engine.serving.draft_callbacks import make_callbacks as bind_callbacks
from specc.lab.engine.serving.prompts import Span

from .models_for_tests import VOCAB, make_drafts, make_target

LENGTHS = (19, 1, 64, 31)
FAMILIES = ["llama", "qwen3", "mistral", "gemma2", "gemma3_text"]
COLUMNS = 768

torch.set_num_threads(1)


def random_tree(nodes: int, generator: torch.Generator) -> list[int]:
    """Parents of a random tree; node 0 is the root, whose parent is -1."""
    return [-1, *(int(torch.randint(node, (1,), generator=generator)) for node in range(1, nodes))]


def path_of(parents: list[int], node: int) -> list[int]:
    """The nodes from the root to a node."""
    return [*path_of(parents, parents[node]), node] if node else [0]


def mask_of(trees: list[list[int]], mode: str, lengths: list[int]) -> Tensor:
    """The mask of all trees in a mode, entry by entry, with noise in what is unspecified."""
    nodes = len(trees[0])
    tree = torch.zeros(len(trees), nodes, nodes, dtype=torch.bool)
    for b, parents in enumerate(trees):
        for node in range(nodes):
            tree[b, node, path_of(parents, node)] = True
    if mode == "qlen":
        return tree
    if mode == "bitpacked":
        width = next(size for size in (1, 2, 4, 8) if 8 * size >= nodes)
        words = [[sum(1 << c for c in range(nodes) if row[c]) for row in rows] for rows in tree.tolist()]
        return torch.tensor([[list(w.to_bytes(width, "little")) for w in row] for row in words], dtype=torch.uint8)
    flat = [entry for b, n in enumerate(lengths) for row in tree[b].tolist() for entry in [True] * n + row]
    out = torch.randint(2, (len(trees), nodes * (max(lengths) + nodes))).bool()
    out.view(-1)[: len(flat)] = torch.tensor(flat)
    return out


def make_callbacks(target: TargetModel, draft: Any, page_size: int = 1, **facts: Any) -> Any:
    """Callbacks over scattered slots of pools full of large numbers."""
    plan = make_plan(target, draft, page_size=page_size, **facts)
    generator = torch.Generator().manual_seed(11)
    pages = torch.randperm(5 * COLUMNS // page_size, generator=generator) + 1
    table = (pages[:, None] * page_size + torch.arange(page_size)).view(5, COLUMNS).to(torch.int32)
    table[0] = 0
    models = {"target": target, "draft": draft}
    pools = {owner: KVPool(model.facts.pool, 5 * COLUMNS + page_size) for owner, model in models.items()}
    for buffer in pools["target"].buffers + pools["draft"].buffers:
        buffer.copy_(30 * torch.randn(buffer.shape, generator=generator))
    return bind_callbacks(target, draft, EngineMemory(pools, table, {}), plan)


def fill(model: CausalModel, memory: EngineMemory, owner: str, texts: list[list[int]]) -> None:
    """Run texts through a model so that their keys and values are in rows 1, 2, ..."""
    for batch in memory.batches(owner, [Span(row, 0, len(text)) for row, text in enumerate(texts, start=1)]):
        model.forward(batch.padded([torch.tensor(text) for text in texts]), batch.positions, batch.paged)


def last_scores(model: CausalModel, texts: list[list[int]]) -> list[Tensor]:
    """Transformers' own scores after each text, run as plain sequences."""
    scores: dict[int, Tensor] = {}
    for length in {len(text) for text in texts}:
        which = [index for index, text in enumerate(texts) if len(text) == length]
        with plain_attention(model.model, "eager"):
            out = model.model(input_ids=torch.tensor([texts[i] for i in which]), use_cache=False)
        scores.update(zip(which, out.logits[:, -1], strict=True))
    return [scores[index] for index in range(len(texts))]


def slots_of(trees: list[list[int]], slots: Tensor) -> dict[str, Tensor]:
    """The mask `slots` of all trees, node by node, with slots of the window in what is unspecified, and its counts."""
    nodes = len(trees[0])
    paths = [[path_of(parents, node) for node in range(nodes)] for parents in trees]
    mask = [
        [[own[c] for c in (path + [nodes - 1] * nodes)[:nodes]] for path in rows]
        for own, rows in zip(slots.tolist(), paths, strict=True)
    ]
    counts = [[len(path) for path in rows] for rows in paths]
    return {"mask": torch.tensor(mask, dtype=torch.int32), "counts": torch.tensor(counts, dtype=torch.int32)}


@torch.no_grad()
@pytest.mark.parametrize("mode", ["qlen", "bitpacked", "full", "slots"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_sees_its_path(family: str, mode: str) -> None:
    more = {} if family in ("llama", "qwen3") else {"sliding_window": 6}
    target = make_target(family, **more)
    nodes, generator = 11, torch.Generator().manual_seed(3)
    callbacks = make_callbacks(target, make_drafts(make_target())["stranger"])
    callbacks.mask_mode = mode
    callbacks.memory.width = max(LENGTHS) + nodes + 5
    texts = [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]
    fill(target, callbacks.memory, "target", texts)
    trees = [random_tree(nodes, generator) for _ in LENGTHS]
    # a padding row in the middle, whose root is its own parent's absence
    batch = [1, 2, 0, 3, 4]
    trees.insert(2, [-1] + [0] * (nodes - 1))
    lengths = [LENGTHS[row - 1] if row else 0 for row in batch]
    tokens = torch.randint(VOCAB, (len(batch), nodes), generator=generator)
    depth = torch.tensor([[len(path_of(parents, node)) - 1 for node in range(nodes)] for parents in trees])
    rows, seq_lens = torch.tensor(batch), torch.tensor(lengths)
    window = seq_lens[:, None] + torch.arange(nodes)
    slots = callbacks.memory.req_to_token[rows[:, None], window].long()
    result = callbacks.target(
        tokens=tokens,
        positions=seq_lens[:, None] + depth,
        slots=slots,
        rows=rows,
        seq_lens=seq_lens,
        capture="full",
        **(slots_of(trees, slots) if mode == "slots" else {"mask": mask_of(trees, mode, lengths)}),
    )
    for b, row in enumerate(batch):
        if row:
            paths = [tokens[b, path_of(trees[b], node)].tolist() for node in range(nodes)]
            wanted = last_scores(target, [texts[row - 1] + path for path in paths])
            torch.testing.assert_close(result.logits[b], torch.stack(wanted), rtol=2e-4, atol=2e-4)


@torch.no_grad()
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("branches", [1, 2, 8])
def test_every_branch_sees_the_text_and_what_it_wrote_itself(branches: int, page_size: int, shifted: bool) -> None:
    steps, generator = 4, torch.Generator().manual_seed(page_size + branches)
    target = make_target("mistral", sliding_window=9)
    draft = StandaloneDraft(target.model)
    callbacks = make_callbacks(target, draft, page_size, shifted=shifted)
    callbacks.branches = Branches(int(not shifted), page_size, steps)
    offset = callbacks.branches.offset
    known = [length + offset for length in LENGTHS]
    callbacks.memory.width = max(known) + steps
    texts = [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in known]
    fill(draft, callbacks.memory, "draft", texts)
    table = callbacks.memory.req_to_token
    for row, base in enumerate(known, start=1):
        copy_tail(callbacks, row, base, branches, page_size, steps)
    rows, seq_lens = torch.arange(1, 5), torch.tensor(LENGTHS)
    written = [[[] for _ in range(branches)] for _ in LENGTHS]
    for step in range(steps):
        tokens = torch.randint(VOCAB, (len(LENGTHS), branches), generator=generator)
        positions = (seq_lens + offset + step)[:, None].expand(-1, branches)
        places = [[base + k * run_of(base, page_size, steps) + step for k in range(branches)] for base in known]
        result = callbacks.draft(
            step=step,
            tokens=tokens,
            positions=positions,
            slots=table[rows[:, None], torch.tensor(places)].long(),
            rows=rows,
            seq_lens=seq_lens,
            capture="null",
        )
        assert result.logits.shape == (len(LENGTHS), branches, VOCAB)
        assert result.logits.is_contiguous()
        for b, text in enumerate(texts):
            for k in range(branches):
                written[b][k].append(int(tokens[b, k]))
            wanted = last_scores(target, [text + own for own in written[b]])
            torch.testing.assert_close(result.logits[b], torch.stack(wanted), rtol=2e-4, atol=2e-4)


def run_of(base: int, page_size: int, room: int) -> int:
    """Tokens of one branch's pages."""
    pages = 1
    while pages * page_size < base % page_size + room:
        pages += 1
    return pages * page_size


def copy_tail(callbacks: Any, row: int, base: int, branches: int, page_size: int, room: int) -> None:
    """Copy the partly filled page of branch 0 to the other branches, position by position."""
    table = callbacks.memory.req_to_token[row].long()
    tail = torch.arange(base - base % page_size, base)
    for buffer in callbacks.memory.pools["draft"].buffers:
        for k in range(1, branches):
            buffer[table[tail + k * run_of(base, page_size, room)]] = buffer[table[tail]]


def test_only_the_first_branch_reads_the_first_tail() -> None:
    branches = Branches(offset=1, page=4, room=3)
    places = branches.places(torch.tensor([5, 7]), 2, 12)
    assert places[0, 0].tolist() == list(range(12))
    assert places[0, 1].tolist() == [0, 1, 2, 3, *range(12, 20)]  # tail 2, run 8
    assert places[1, 1].tolist() == [*range(8), *range(12, 16)]  # no tail, run 4


@pytest.mark.parametrize("nodes", [2, 8, 9, 33, 64])
def test_all_modes_say_the_same(nodes: int) -> None:
    generator = torch.Generator().manual_seed(nodes)
    lengths = [0, 7, 1, 30]
    trees = [random_tree(nodes, generator) for _ in lengths]
    width = 30 + nodes + 3
    seen = [
        visible_keys(mask_of(trees, mode, lengths), mode, torch.tensor(lengths), nodes, width)
        for mode in ("qlen", "bitpacked", "full")
    ]
    wanted = torch.zeros(len(lengths), nodes, width, dtype=torch.bool)
    for b, parents in enumerate(trees):
        wanted[b, :, : lengths[b]] = True
        for node in range(nodes):
            wanted[b, node, [lengths[b] + column for column in path_of(parents, node)]] = True
    slots = torch.randperm(len(lengths) * nodes, generator=generator).view(-1, nodes)
    square = seen_columns(slots=slots, **slots_of(trees, slots))
    for visible in (*seen, visible_keys(square, "qlen", torch.tensor(lengths), nodes, width)):
        assert torch.equal(visible, wanted)
