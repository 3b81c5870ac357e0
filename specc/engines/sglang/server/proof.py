"""A dry step before the first request, compared with SGLang's own forward.

Signatures do not show that something means another thing than it did. So once a program is bound, made-up texts of two
requests are prefilled by SGLang, and the program makes a step of them. The target's scores in the step must be SGLang's
after the same texts, and what the step emits must be what SGLang scores highest. Where steps are captured, a captured
one follows, of which the latter must hold, too. Slots are free ones, and rows of tables are put back, so nothing
is left but values in free slots.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._plugin import word
from ..parts import shards
from ..parts.gathered import Gathered
from ..parts.lora import none_asked
from ..parts.mrope import text_positions
from ..parts.states import clear, is_recurrent, looks_up, own_states
from ..windows import same_slots, slots_of

logger = logging.getLogger(__name__)

PROOF = "SPECC_PROOF"
"""The environment variable that says whether there is a dry step: `on`, the default, or `off`."""
ROWS = "target_rows"
"""The callback of a program whose requests share the target's rows out."""
TEXT = "text"
"""The field of a carry in which drafts are looked up."""
LENGTHS = (7, 12)
"""Tokens of the made-up texts."""
FAR = 0.05
"""Scores of a node are others if their distance is more than this part of their norm.

Of the example models bf16 makes 0.005 of it, a position that is off by one 0.1.
"""
WORSE = 0.5
"""A token is not the best if its score is lower by more than so many standard deviations of all scores."""


def proving() -> bool:
    """Whether the server is to make a dry step. ServerError on another word."""
    return word(PROOF, ("on", "off"), "on") == "on"


class Heard:
    """A program's callback of the target, and a copy of its logits behind the texts in the dry step.

    Forwards of SGLang's leave their logits in one buffer, where extend's lie over the target's at the end of a step. So
    they are copied behind the forward, which takes a step that is not captured.

    Attributes:
        name: the callback's, `target` or `target_rows`.
        rows: how many requests the dry step has.
        logits: T[b, V] or, of a program with sharded logits, the rank's columns of them; None before the step.

    """

    def __init__(self, forwards: Any, plan: Any, table: Tensor) -> None:
        """Listen to a callback among the forwards of a program, in a server with this table of KV slots."""
        self.rows = min(len(LENGTHS), plan.buckets[-1], len(table) - 1)
        self.name = ROWS if ROWS in plan.callbacks("step") else "target"
        self._target, self._listening = getattr(forwards, self.name), True
        self.logits: Tensor | None = None

    def __call__(self, **given: Any) -> Any:
        """Call it."""
        result = self._target(**given)
        if self._listening and len(given["rows"]) == self.rows:
            packed = given.get("starts")
            roots = result.logits[:, 0] if packed is None else result.logits.flatten(0, 1)[packed.long()]
            self.logits = roots.clone()
        return result

    def forget(self) -> None:
        """Hold nothing from now on."""
        self.logits, self._listening = None, False


def prove(
    package: Any, sizes: Any, step: Any, worker: Any, heard: Heard, rank: int, begin: Callable[[Sequence[int]], object]
) -> None:
    """Make the dry step of a program that is bound to a worker. RuntimeError with all that differs from SGLang's own.

    `step` is of one shape, and `sizes` its plan. Once it is captured `heard` has no logits, and what it emits is
    compared alone. `begin` is called with the lengths of the texts before the step. Every rank calls this, with its
    number.
    """
    table = worker.req_to_token_pool.req_to_token
    rows = torch.arange(1, heard.rows + 1, device=table.device)
    lengths = torch.tensor(LENGTHS[: len(rows)])
    texts = _made_up(len(rows), max(LENGTHS) + 2, sizes.size("V"))
    own = _Own(worker, rows)
    with (
        torch.no_grad(),
        _put_back(rows, table, *step.pools.values()),
        _slots(own.pool, table, rows, sizes.kv),
        own_states(worker, rows),
    ):
        before = own.scores(texts, lengths + 1)
        if is_recurrent(worker) or looks_up(worker):  # the step reads the last token itself
            own.scores(texts, lengths)
        carried = step.pools["topk_index"].shape[1] if "topk_index" in step.pools else 1
        best = (before.argmax(-1)[:, None] + torch.arange(carried)) % sizes.size("V")
        _begin(package, step, rows, lengths, texts.gather(1, lengths[:, None])[:, 0], best)
        begin(lengths.tolist())
        emitted = step.decode(package.Batch(rows)).to_host()
        mine = None if heard.logits is None else heard.logits.float().cpu()
        tokens = [emitted.tokens(place) for place in range(len(rows))]
        behind = texts.scatter(1, lengths[:, None] + 1, torch.tensor([[*text[:1], 0][:1] for text in tokens]))
        after = own.scores(behind, lengths + 2)
    apart = [] if mine is None else _apart(mine, _columns(before, sizes, rank))
    drafts = sizes.shape.num_steps > 0 and "topk_index" in step.pools  # others are made in the step, of little
    faults = [f"the target's scores of text {row} are off by {part:.0%}" for row, part in apart if not part <= FAR]
    if faults := [*faults, *_tokens_differ(tokens, before, after, drafted=drafts)]:
        name = f"the dry step ({PROOF}) of the shape {sizes.shape}"
        raise RuntimeError(f"{name} is not SGLang's own: {'; '.join(faults)}")
    if apart:
        most = max(part for _, part in apart)
        logger.info("specc: the dry step is SGLang's own: the target's scores are off by %.1g of their norm", most)


def _made_up(rows: int, length: int, vocabulary: int) -> Tensor:
    """Texts i64[rows, length] of the first tokens of a vocabulary, which no two share."""
    return (torch.arange(1, rows * length + 1) * 7919 % min(997, vocabulary)).view(rows, -1)


class _Own:
    """SGLang's own forward of the target, as it prefills."""

    def __init__(self, worker: Any, rows: Tensor) -> None:
        self._runner, self._rows, self._worker = worker.target_worker.model_runner, rows, worker
        self._table = worker.req_to_token_pool.req_to_token
        self.pool, self._gathered = self._runner.token_to_kv_pool, Gathered(rows.device)

    def scores(self, texts: Tensor, lengths: Tensor) -> Tensor:
        """The logits f32[b, V] after the first lengths i64[b] of texts i64[b, T], on the host as they are."""
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

        clear(self._worker, self._rows)
        device, counts = self._rows.device, lengths.tolist()
        places = [torch.arange(count) for count in counts]
        tokens = torch.cat([text[:count] for text, count in zip(texts, counts, strict=True)])
        slots = torch.cat([self._table[row, :count] for row, count in zip(self._rows, counts, strict=True)])
        count = lengths.to(device=device, dtype=torch.int32)
        positions = torch.cat(places).to(device)
        batch = ForwardBatch(
            forward_mode=ForwardMode.EXTEND,
            batch_size=len(counts),
            input_ids=tokens.to(device),
            req_pool_indices=self._rows,
            seq_lens=lengths.to(device),
            seq_lens_cpu=lengths,
            seq_lens_sum=sum(counts),
            out_cache_loc=slots.to(torch.int64),
            positions=positions,
            mrope_positions=text_positions(self._runner, positions),
            extend_num_tokens=sum(counts),
            extend_seq_lens=count,
            extend_seq_lens_cpu=counts,
            extend_prefix_lens=torch.zeros_like(count),
            extend_prefix_lens_cpu=[0] * len(counts),
            extend_start_loc=count.cumsum(0, dtype=torch.int32) - count,
            spec_algorithm=self._runner.spec_algorithm,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        self._runner.kv_index_translator.bind_runner_slots(batch)
        none_asked(self._runner, batch)
        self._gathered.give(batch, len(counts), prefills=True)
        return self._runner.forward(batch).logits_output.next_token_logits.float().cpu()


@contextlib.contextmanager
def _put_back(rows: Tensor, *tables: Tensor) -> Iterator[None]:
    """Leave rows i64[b] of tables as they are."""
    kept = [table[rows] for table in tables]
    try:
        yield
    finally:
        for table, values in zip(tables, kept, strict=True):
            table[rows] = values


@contextlib.contextmanager
def _slots(pool: Any, table: Tensor, rows: Tensor, kv: Any) -> Iterator[None]:
    """Write slots for a text and a step into each row, on pages of its own; the first page is that of padding rows."""
    width, page, slots = max(LENGTHS) + kv.reserve, kv.page_size, slots_of(pool)
    pages = -(-width // page)
    if (len(rows) * pages + 1) * page > slots or width > table.shape[1]:
        raise RuntimeError(f"the dry step ({PROOF}) needs {len(rows)} texts of {width} slots, there are {slots} in all")
    given = page + torch.arange(len(rows) * pages * page, dtype=table.dtype, device=table.device)
    table[rows, :width] = given.view(len(rows), -1)[:, :width]
    with same_slots(pool, given):
        yield


def _begin(package: Any, step: Any, rows: Tensor, lengths: Tensor, bonus: Tensor, drafts: Tensor) -> None:
    """Put greedy requests into pool rows i64[b]: lengths and bonus tokens i64[b], drafts i64[b, K], the best first.

    The text in which drafts are looked up says that the best one has followed the bonus token all the time.
    """
    pools = step.pools
    if any(field.startswith("sampling_") for field in pools):
        step.set_sampling(rows.tolist(), [package.Sampling(temperature=0.0, seed=0)] * len(rows))
    chances = torch.zeros_like(drafts, dtype=torch.float32)
    chances[:, 0] = 1
    for field, values in {"seq_lens": lengths, "bonus": bonus, "topk_index": drafts, "topk_p": chances}.items():
        if field in pools:
            pools[field][rows] = values.to(device=rows.device, dtype=pools[field].dtype)
    if "hidden" in pools:
        pools["hidden"][rows] = 0
    if TEXT in pools:
        back = lengths[:, None] - torch.arange(pools[TEXT].shape[1])
        text = torch.where(back % 2 == 0, bonus[:, None], drafts[:, :1])
        pools[TEXT][rows] = text.to(device=rows.device, dtype=pools[TEXT].dtype)


def _columns(scores: Tensor, plan: Any, rank: int) -> Tensor:
    """Of scores [b, V] the columns that a rank has: all, unless logits are sharded."""
    own = shards.columns(plan).get("target")
    return scores if own is None else scores[:, rank * own : (rank + 1) * own]


def _apart(mine: Tensor, own: Tensor) -> list[tuple[int, float]]:
    """The rows of scores [b, n], and how far from SGLang's they are, of whose norm; columns of padding are left out."""
    norms = (own - own.mean(1, keepdim=True)).norm(dim=1)
    return [*enumerate(((mine[:, : own.shape[1]] - own).norm(dim=1) / norms).tolist())]


def _tokens_differ(tokens: list[list[int]], before: Tensor, after: Tensor, *, drafted: bool) -> Iterator[str]:
    """Emitted tokens that SGLang does not score highest, and drafts that were right and not accepted."""
    for row, row_tokens in enumerate(tokens):
        if not row_tokens:
            yield f"text {row} had no room for a step"
        for place, (token, scores) in enumerate(zip(row_tokens, (before[row], after[row]), strict=False)):
            if not scores.max() - scores[token] <= WORSE * scores.std():
                yield f"token {place} of text {row} is {token}, not {int(scores.argmax())}"
        if drafted and len(row_tokens) == 1 and row_tokens[0] == int(before[row].argmax()):
            yield f"the draft of text {row} was right, and was not accepted"
