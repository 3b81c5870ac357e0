"""The draft heads of the examples: how they are trained to draft, and how well the stored ones do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoTokenizer, DynamicCache, LlamaForCausalLM

EXAMPLES = Path(__file__).parents[4] / "examples" / "models"
PROMPTS = (
    "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n        self.path",
    "for index in ",
)
pytestmark = pytest.mark.skipif(not (EXAMPLES / "target").is_dir(), reason="the examples have no models")


def load_module() -> Any:
    """Import the script that says what the heads are; it is no part of the package."""
    spec = importlib.util.spec_from_file_location("example_heads", EXAMPLES / "heads.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


heads = load_module()


@pytest.fixture(scope="module")
def reader() -> Any:
    """Return the trained target, frozen."""
    return heads.Reader(LlamaForCausalLM.from_pretrained(EXAMPLES / "target").eval().requires_grad_(False))


def continued(head: Any, hidden: Tensor, known: Tensor, ahead: Tensor) -> list[Tensor]:
    """Rows of a head that goes on from its own: all pairs of the text from scratch for every draft."""
    rows = []
    for token in ahead.unbind(1):
        known = torch.cat((known, token[:, None]), dim=1)
        rows.append(head(known[:, 1:], hidden, torch.arange(hidden.shape[1])[None])[:, -1:])
        hidden = torch.cat((hidden, rows[-1]), dim=1)
    return rows


def modules_in_turn(head: Any, hidden: Tensor, known: Tensor, ahead: Tensor) -> list[Tensor]:
    """Rows of modules that each read the target's hidden states: one module for every token more."""
    text, count = torch.cat((known, ahead), dim=1), known.shape[1]
    places = torch.arange(count)[None]
    return [
        head(module, text[:, 1 + module : 1 + module + count], hidden, places)[:, -1:]
        for module in range(ahead.shape[1])
    ]


def one_query(head: Any, reading: Any, ahead: Tensor) -> list[Tensor]:
    """Rows of a head that asks from the last position over all that the target keeps."""

    def attend(layer: int, query: Tensor) -> Tensor:
        kept: Any = reading.cache.layers[layer]
        return scaled_dot_product_attention(query, kept.keys, kept.values, enable_gqa=True).transpose(1, 2)

    row, place, rows = reading.hidden[:, -1:], torch.tensor([[reading.hidden.shape[1] - 1]]), []
    for token in ahead.unbind(1):
        row = head(token[:, None], row, place, attend)
        rows.append(row)
    return rows


def one_block(head: Any, reading: Any, ahead: Tensor) -> list[Tensor]:
    """Rows of one block over everything that the target has read, with no mask."""
    count, cache = reading.aux.shape[1], DynamicCache()
    for layer, pair in enumerate(head.keys_and_values(reading.aux, torch.arange(count)[None])):
        cache.update(*pair, layer)
    places = torch.arange(count, count + head.block_size)[None]
    everything = torch.ones(1, 1, head.block_size, count + head.block_size, dtype=torch.bool)
    rows = head(ahead[:, 0], places, attention_mask=everything, past_key_values=cache)
    return list(rows[:, 1:].split(1, dim=1))


STEP_BY_STEP: dict[str, Callable[[Any, Any, Tensor, Tensor], list[Tensor]]] = {
    "eagle": lambda head, reading, known, ahead: continued(head, reading.hidden, known, ahead),
    "eagle3": lambda head, reading, known, ahead: continued(head, head.project(reading.aux), known, ahead),
    "mtp": lambda head, reading, known, ahead: modules_in_turn(head, reading.hidden, known, ahead),
    "frozen_kv": lambda head, reading, known, ahead: one_query(head, reading, ahead),
    "dflash": lambda head, reading, known, ahead: one_block(head, reading, ahead),
    "dflash2": lambda head, reading, known, ahead: one_block(head, reading, ahead),
}


@torch.no_grad()
@pytest.mark.parametrize("name", STEP_BY_STEP)
def test_a_chain_is_drafting_step_by_step(reader: Any, name: str) -> None:
    """After every position: with a target that has read no further, and no more tokens than are drafted."""
    torch.manual_seed(1)
    kind = heads.HEADS[name]
    head = kind.head(kind.config()).eval().share_with(reader.target)
    length = 9
    text = torch.randint(heads.VOCAB, (1, length + heads.DEPTH))
    chain = list(kind.chain(head, reader(text), text))
    assert [rows.shape[1] for rows in chain] == [text.shape[1] - draft for draft in range(1, heads.DEPTH + 1)]
    for read in range(1, length):
        known, ahead = text[:, :read], text[:, read : read + heads.DEPTH]
        expected = STEP_BY_STEP[name](head, reader(known), known, ahead)
        drafted = [rows[:, read - 1 : read] for rows in chain]
        torch.testing.assert_close(drafted, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_selector_chooses_among_candidates_behind_the_token_before(reader: Any) -> None:
    """Candidate by candidate: its score and the products of three rows, behind the text's own token; no other token."""
    torch.manual_seed(2)
    kind, count = heads.HEADS["dflash2"], 5
    head = kind.head(kind.config()).eval().share_with(reader.target)
    for table in head.candidate_selector.parameters():
        table.normal_()
    text = torch.randint(heads.VOCAB, (2, count + heads.DEPTH))
    reading, (before, after) = reader(text), head.selector_tables
    drafted = list(heads.drafts_of(kind, head)(reading, text))
    moved = 0
    for draft, rows in enumerate(kind.chain(head, reading, text), start=1):
        for batch, place in product(range(2), range(count)):
            row, token = rows[batch, place], int(text[batch, place + draft])
            scores = head.logits(row).tolist()
            best = sorted(range(heads.VOCAB), key=scores.__getitem__)[-heads.SELECTOR["selector_top_k"] :]
            state = head.selector_rows(row)
            wanted = {entry: scores[entry] + float((before[token] * state * after[entry]).sum()) for entry in best}
            found = drafted[draft - 1][batch, place]
            assert set(torch.isfinite(found).nonzero().flatten().tolist()) == set(best)
            torch.testing.assert_close(found[list(wanted)], torch.tensor([*wanted.values()]), rtol=1e-4, atol=1e-3)
            moved += int(found.argmax()) != best[-1]
    assert moved  # the selector has a say


def walked(drafts: Tensor, text: list[int], prompt: int) -> float:
    """Tokens per step, decided draft by draft; drafts [n, DEPTH] after every position of the text."""
    at, steps = prompt, 0
    while at < len(text) - heads.DEPTH:
        accepted = 0
        while accepted < heads.DEPTH and drafts[at - 2][accepted] == text[at + accepted]:
            accepted += 1
        at, steps = at + accepted + 1, steps + 1
    return (at - prompt) / steps


def test_accepted_length_of_drafts_that_are_right_now_and_then() -> None:
    generator = torch.Generator().manual_seed(4)
    prompt, text = 5, torch.randint(heads.VOCAB, (1, 60), generator=generator)
    following = text[0].unfold(0, heads.DEPTH, 1)[2:]
    wrong = torch.rand(following.shape, generator=generator) < 0.3
    drafts = torch.where(wrong, (following + 1) % heads.VOCAB, following)
    scores = torch.nn.functional.one_hot(drafts, heads.VOCAB)

    def guess(reading: Any, tokens: Tensor) -> Any:
        return (scores[None, :, draft] for draft in range(heads.DEPTH))

    mean_length = heads.accepted_length(guess, None, text, prompt)
    assert mean_length == walked(drafts, text[0].tolist(), prompt)
    assert 1 < mean_length < 1 + heads.DEPTH


@torch.no_grad()
@pytest.mark.parametrize("name", [*STEP_BY_STEP, "dspark"])
def test_the_stored_heads_draft(reader: Any, name: str) -> None:
    tokenizer, kind = AutoTokenizer.from_pretrained(EXAMPLES / "target"), heads.HEADS[name]
    drafts = heads.drafts_of(kind, kind.head.from_directory(EXAMPLES / name, reader.target))
    lengths = []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt, return_tensors="pt").input_ids
        text = heads.greedy(reader.target, tokens, 48 + heads.DEPTH)
        lengths.append(heads.accepted_length(drafts, reader(text), text, tokens.shape[1]))
    assert sum(lengths) / len(lengths) > 1.3


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "without"),
    [("dspark", {"scores": heads.own_scores}), ("dflash2", {"chooses": None})],
    ids=["dspark", "dflash2"],
)
def test_stored_heads_gain_by_the_token_before(reader: Any, name: str, without: dict[str, Any]) -> None:
    """On source text the second and third drafts are the target's choice in ten places more of a hundred, at least."""
    kind, source = heads.HEADS[name], (EXAMPLES.parent / "minimal_engine.py").read_text()[:1500]
    text = AutoTokenizer.from_pretrained(EXAMPLES / "target")(source, return_tensors="pt").input_ids
    head, reading = kind.head.from_directory(EXAMPLES / name, reader.target), reader(text)
    shares = [
        torch.stack(
            [
                (scores.argmax(-1) == reading.logits[:, draft:].argmax(-1)).float().mean()
                for draft, scores in enumerate(heads.drafts_of(whose, head)(reading, text), start=1)
            ]
        )
        for whose in (kind, kind._replace(**without))
    ]
    assert ((shares[0] - shares[1])[1:] > 0.1).all()
