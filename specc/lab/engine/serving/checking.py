"""Whether a model over paged memory gives its own scores: compared before it is served, once per model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig

from specc.lab.engine.errors import HINT, UnsupportedModelError, first_line
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.memory.probing import CACHE
from specc.lab.engine.memory.state_pool import StatePool, state_pools
from specc.lab.engine.memory.tree_attention import node_by_node
from specc.lab.engine.models.causal_models import CausalModel
from specc.lab.engine.serving.callbacks import EngineMemory
from specc.lab.engine.serving.prompts import Span

PREFILL, WINDOW, SINGLES = 3, 4, 3
"""Scores that are compared of each text: the last of its prefill, those of a window, and of forwards of one token."""

READ = WINDOW + SINGLES
TAIL = PREFILL + READ
PARTS = ("a prefill", f"a window of {WINDOW} tokens", "forwards of one token")

SHORTEST, USUAL = 12, 24
"""Tokens of the shortest text, and of the longest if nothing in the model changes with the length."""

BOUNDARY = re.compile(r"window|chunk|local|original_max_position|floor_scale")
"""Keys of a config whose value is a number of tokens at which something changes: windows, chunks, rotary scaling."""

FLOOR = {"f32": 2e-4, "f16": 2e-3, "bf16": 1.6e-2}
"""Differences that rounding explains by itself, in parts of a position's spread of scores."""

NOISE = 4
"""How many times as far from a model's own scores as those are from themselves, when computed in another order."""

MOST = {"f32": 1e-2, "f16": 0.1, "bf16": 0.3}
"""Differences that no rounding explains."""

OWNER = "model"
"""Whose memory it is."""

STALE = 5.0
"""What is in slots that nobody has written: large enough to show where somebody reads them."""


@torch.no_grad()
def check_scores(model: CausalModel, max_context: int) -> None:
    """Compare a batch of unequal texts, prefilled and then read in windows, with the model's own forward of each.

    One text is longer than any boundary of the model below max_context, the most tokens that are to be served.

    Raises:
        UnsupportedModelError: the scores differ, or some layer's keys and values do not go through the paged memory.

    """
    length = _length(model, max_context)
    if length <= model.compared:
        return
    try:
        _compare(model, length)
    except (UnsupportedModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a model's own code raises
        raise UnsupportedModelError(f"its forward over paged memory fails: {first_line(error)}", HINT) from error
    model.compared = length


def boundaries(config: PretrainedConfig) -> set[int]:
    """Numbers of tokens at which a model may start to compute something else."""
    return set(_numbers(config.get_text_config().to_dict()))


def _numbers(record: Mapping[str, Any]) -> Iterator[int]:
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif BOUNDARY.search(str(key)):
            yield from (n for n in (value if isinstance(value, list) else [value]) if type(n) is int and n > 0)


def _length(model: CausalModel, max_context: int) -> int:
    """Tokens of the longest text."""
    beyond = [number + TAIL + 2 for number in boundaries(model.model.config) if number < max_context]
    longest = max([USUAL, *(min(max_context, length) for length in beyond)])
    return min(longest, model.facts.max_context or longest)


def _compare(model: CausalModel, length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = (length, max(SHORTEST, length // 2), SHORTEST)
    texts = [torch.randint(model.facts.vocab_size, (n,), generator=generator).to(model.device) for n in lengths]
    floor, most = FLOOR[model.facts.dtype], MOST[model.facts.dtype]
    owns = [_plain(model, text) for text in texts]
    for text, own, scores in zip(texts, owns, _paged(model, texts), strict=True):
        errors = _by_part(model, scores, own)
        limits = dict.fromkeys(PARTS, floor)
        if not _within(errors, limits):
            noise = _by_part(model, _in_parts(model, text, "eager"), own)
            limits = {part: max(floor, min(NOISE * noise[part], most)) for part in PARTS}
        if not _within(errors, limits):
            raise UnsupportedModelError(_difference(model, len(text), errors), HINT)
    if not _within(_by_part(model, _in_parts(model, texts[0]), owns[0]), dict.fromkeys(PARTS, most)):
        raise UnsupportedModelError("its own scores over a cache of transformers are not those without one", HINT)


def _paged(model: CausalModel, texts: Sequence[Tensor]) -> list[Tensor]:
    """The last scores T[TAIL, V] of every text over paged memory, which is full of other numbers before."""
    width = max(map(len, texts)) + 2
    table = torch.arange(1, len(texts) * width + 1, dtype=torch.int32, device=model.device).flip(0).view(-1, width)
    pool = KVPool(model.facts.pool, table.numel() + 1, model.device)
    states = state_pools({OWNER: model.facts.states}, len(texts), model.device)
    for buffer in (*pool.buffers, *(tensor for kept in states.values() for tensor in kept.tensors)):
        buffer.fill_(STALE)
    memory = EngineMemory({OWNER: pool}, table, {}, states)
    prompts = [text[:-READ] for text in texts]
    parts: dict[int, list[Tensor]] = {}
    for batch in memory.batches(OWNER, [Span(row, 0, len(prompt)) for row, prompt in enumerate(prompts)]):
        hidden = _forward(model, batch.paged, batch.padded(prompts), batch.positions)
        parts.update((row, [model.scores(own_hidden[-PREFILL:])]) for row, own_hidden in batch.rows_of(hidden))
    rows, tails = torch.arange(len(texts), device=model.device), torch.stack([text[-READ:] for text in texts])
    begin = torch.tensor([len(prompt) for prompt in prompts], device=model.device)[:, None]
    for tokens in tails.split([WINDOW, *[1] * SINGLES], dim=1):
        positions = begin + torch.arange(tokens.shape[1], device=model.device)
        slots = table[rows[:, None], positions].long()
        window = PagedContext(pool, table, rows, positions, slots, width)
        hidden = _read(model, states.get(OWNER), window, rows, begin[:, 0], tokens)
        for row, own_scores in enumerate(model.scores(hidden)):
            parts[row].append(own_scores)
        begin = begin + tokens.shape[1]
    return [torch.cat(parts[row]) for row in range(len(texts))]


def _read(
    model: CausalModel, states: StatePool | None, window: PagedContext, rows: Tensor, begin: Tensor, tokens: Tensor
) -> Tensor:
    """Hidden states T[b, n, H] of windows as a step runs them; all of their tokens are accepted."""
    if states is None:
        return _forward(model, window, tokens, window.positions)

    def run(tokens: Tensor, paged: PagedContext) -> tuple[Tensor]:
        return (_forward(model, paged, tokens, paged.positions),)

    (hidden,) = node_by_node(run, window, tokens, states, rows, begin)
    numbers = torch.arange(tokens.numel(), device=rows.device).view(tokens.shape)
    states.commit(rows, numbers, torch.full_like(rows, tokens.shape[1]))
    return hidden


def _forward(model: CausalModel, paged: PagedContext, tokens: Tensor, positions: Tensor) -> Tensor:
    """Hidden states T[b, n, H] of tokens at positions i64[b, n]; every layer hands over its own, once."""
    states = model.forward(tokens, positions, paged)
    if tuple(sorted(paged.reached)) != model.facts.kv_layers:
        reached = ", ".join(map(str, paged.reached)) or "none"
        reason = f"of its {model.facts.num_layers} layers these use the memory, in order: {reached}"
        raise UnsupportedModelError(reason, HINT)
    return states


def _plain(model: CausalModel, text: Tensor) -> Tensor:
    """The last scores T[TAIL, V] of a text by the model's own forward."""
    with plain_attention(model.model):
        return _last(model, text, use_cache=False)


def _in_parts(model: CausalModel, text: Tensor, attention: str | None = None) -> Tensor:
    """The same in another order: over a cache of transformers, in parts, with one of its attentions."""
    cache, parts = DynamicCache(config=model.model.config), []
    positions = torch.arange(len(text), device=text.device)[None]
    window = [1] * WINDOW if model.facts.states else [WINDOW]  # recurrent layers run no windows here
    sizes = [len(text) - READ, *window, *[1] * SINGLES]
    with plain_attention(model.model, attention):
        for part, places in zip(text.split(sizes), positions.split(sizes, dim=1), strict=True):
            where = {"position_ids": places} if model.takes_positions else {}  # as `generate` says it
            parts.append(_last(model, part, **{CACHE: cache}, use_cache=True, **where))
    return torch.cat(parts)[-TAIL:]


def _last(model: CausalModel, tokens: Tensor, **given: object) -> Tensor:
    """The last scores T[at most TAIL, V] of a forward of tokens i64[n] by the model's own code."""
    keep = {"logits_to_keep": TAIL} if "logits_to_keep" in signature(model.model.forward).parameters else {}
    return model.model(input_ids=tokens[None], **given, **keep).logits[0, -TAIL:]


def _by_part(model: CausalModel, scores: Tensor, own: Tensor) -> dict[str, float]:
    """How far scores are from a model's own, in parts of the spread of those.

    The worst position counts. In 16 bits it is the middle one, since rounding may send a token to another expert.
    """
    own = own.float()
    spread = (own - own.mean(-1, keepdim=True)).norm(dim=-1)
    distance = (scores.float() - own).norm(dim=-1) / spread
    parts = zip(PARTS, distance.split((PREFILL, WINDOW, SINGLES)), strict=True)
    return {part: float(d.max() if model.facts.dtype == "f32" else d.median()) for part, d in parts}


def _within(errors: Mapping[str, float], limits: Mapping[str, float]) -> bool:
    """Whether no error is above its limit; one that is no number is."""
    return all(errors[part] <= limits[part] for part in errors)


def _difference(model: CausalModel, length: int, errors: Mapping[str, float]) -> str:
    """What to say of scores that are not the model's own, and why that may be."""
    spread = ", ".join(f"{error:.2g} of their spread in {part}" for part, error in errors.items())
    why = "" if model.has_usual_attention else "; its attention is code of its own"
    why = why if model.takes_positions else "; it counts positions itself, and takes none"
    return f"its scores over paged memory differ from its own{why}: after {length} tokens by {spread}"
