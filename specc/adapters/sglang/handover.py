"""Requests that another server of SGLang has prefilled: what came of each becomes its row of the program's carry.

A server that decodes gets the keys and values of a prompt, its first token and, with a draft that goes on from hidden
states, what the draft left behind the prompt. The carry says what is needed. A program that carries no hidden states
drafts from tokens alone, of which SGLang sends no drafts: SGLang's own draft makes them here, of the last token and the
keys and values that came.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput
from torch import Tensor

from . import relay
from .models.around import drafting
from .requests.state import State
from .steps import Steps

HIDDEN = "hidden"
"""The field of a carry that only a prefill can fill."""
ERROR = "SpeccHandoverError"
"""What the requests end with of which not all came that a program carries."""


def take_over(
    original: Callable[..., Any], algorithm: Any, batch: Any, last_tokens_tensor: Tensor, future_map: Any
) -> Any:
    """SGLang's `build_disagg_draft_input`, of built-in algorithms and of others, for pool rows of a program.

    `batch` is of requests whose prompts came, `last_tokens_tensor` i64[b] the last token of each. Requests that lack
    something end with an error of their own, and the others go on. Returns what SGLang keeps of the batch.
    """
    steps = relay.offered()
    if steps is None:
        return original(algorithm, batch, last_tokens_tensor, future_map)
    rows = batch.req_pool_indices
    if not batch.reqs:
        return steps.state.blank(0)
    assert isinstance(steps.state, State)  # look-ups are refused on such a server
    steps.admit(batch, here=False)
    make = came if HIDDEN in steps.step.pools else drafted
    kept = steps.state.adopt(rows, make(steps, batch, last_tokens_tensor), batch.seq_lens)
    if batch.enable_overlap:  # the tables have all of it: what is left is to say so
        kept.future_indices = rows
        future_map.publish(rows, batch.seq_lens)
    return kept


def came(steps: Steps, batch: Any, last_tokens: Tensor) -> EagleDraftInput:
    """What SGLang's prefill has left of each request, checked; zeros for those that lack something, which end."""
    pools, device = steps.step.pools, last_tokens.device
    width, topk = pools[HIDDEN].shape[1], pools["topk_index"].shape[1]
    numbers, chances, states = list[Tensor](), list[Tensor](), list[Tensor]()
    for request in batch.reqs:
        given = request.output_topk_index, request.output_topk_p, request.hidden_states_tensor
        lacks = lacking(*given, topk=topk, width=width, scored=steps.numbers.count)
        if lacks is not None:
            _end(request, lacks)
            given = torch.zeros(topk, dtype=torch.int64), torch.ones(topk), torch.zeros(width)
        numbers.append(given[0][:topk].long())
        chances.append(given[1][:topk].float())
        states.append(given[2].to(pools[HIDDEN].dtype))
    index, p, hidden = (torch.stack(rows).to(device, non_blocking=True) for rows in (numbers, chances, states))
    return EagleDraftInput(
        bonus_tokens=last_tokens, topk_p=p, topk_index=steps.numbers.tokens(index), hidden_states=hidden
    )


def lacking(
    numbers: Tensor | None, chances: Tensor | None, hidden: Tensor | None, *, topk: int, width: int, scored: int
) -> str | None:
    """Name what is wrong with what came of a request; None if nothing is.

    `numbers` are the `topk` drafts i64[K or more] as the draft numbers the `scored` tokens of its head, `chances` f32
    theirs, `hidden` T[width].
    """
    if numbers is None or chances is None or min(len(numbers), len(chances)) < topk:
        return f"no {topk} drafts came from the server that prefilled"
    if hidden is None:
        return "no hidden states came from the server that prefilled"
    if hidden.shape != (width,):
        return f"hidden states of the shape {tuple(hidden.shape)} came from the server that prefilled, not ({width},)"
    least, most = int(numbers[:topk].min()), int(numbers[:topk].max())
    if least < 0 or most >= scored:
        return f"a draft came from the server that prefilled which is none of {scored} tokens: {least}, {most}"
    return None


def drafted(steps: Steps, batch: Any, last_tokens: Tensor) -> EagleDraftInput:
    """What SGLang's draft says behind the last token of each request, whose keys and values it writes once more."""
    rows, lengths = batch.req_pool_indices, batch.seq_lens_cpu.tolist()
    last = copy.copy(batch)
    last.forward_mode, last.input_ids, last.return_logprob = ForwardMode.EXTEND, last_tokens, False
    last.out_cache_loc = batch.req_to_token_pool.req_to_token[rows, batch.seq_lens - 1].long()
    last.prefix_lens, last.extend_lens = [length - 1 for length in lengths], [1] * len(lengths)
    last.extend_num_tokens, last.extend_logprob_start_lens = len(lengths), [0] * len(lengths)
    with drafting(steps.draft_worker):
        return steps.draft_worker._draft_extend_for_prefill(last, None, last_tokens)


def _end(request: Any, lacks: str) -> None:
    """End a request, unless something else did."""
    if request.to_finish is None:
        request.to_finish = FINISH_ABORT(lacks, HTTPStatus.INTERNAL_SERVER_ERROR, ERROR)
