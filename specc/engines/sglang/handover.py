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
from typing import Any, TypeGuard

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
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SENT = "from the server that prefilled"


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
    left = make(steps, batch, last_tokens_tensor)
    steps.state.proposals.take(rows, left)
    kept = steps.state.adopt(rows, left, batch.seq_lens)
    if batch.enable_overlap:  # the tables have all of it: what is left is to say so
        kept.future_indices = rows
        future_map.publish(rows, batch.seq_lens)
    return kept


def came(steps: Steps, batch: Any, last_tokens: Tensor) -> EagleDraftInput:
    """What SGLang's prefill has left of each request, checked; zeros for those that lack something, which end."""
    pools, device = steps.step.pools, last_tokens.device
    width, topk, dtype = pools[HIDDEN].shape[1], pools["topk_index"].shape[1], pools[HIDDEN].dtype
    numbers, chances, states = list[Tensor](), list[Tensor](), list[Tensor]()
    for request in batch.reqs:
        given = request.output_topk_index, request.output_topk_p, request.hidden_states_tensor
        lacks = lacking(*given, topk=topk, width=width, dtype=dtype, scored=steps.numbers.count)
        if lacks is not None:
            _end(request, lacks)
            given = torch.zeros(topk, dtype=torch.int64), torch.ones(topk), torch.zeros(width)
        numbers.append(given[0][:topk].long())
        chances.append(given[1][:topk].float())
        states.append(given[2].to(dtype))
    index, p, hidden = (torch.stack(rows).to(device, non_blocking=True) for rows in (numbers, chances, states))
    return EagleDraftInput(
        bonus_tokens=last_tokens, topk_p=p, topk_index=steps.numbers.tokens(index), hidden_states=hidden
    )


def lacking(
    numbers: object, chances: object, hidden: object, *, topk: int, width: int, dtype: torch.dtype, scored: int
) -> str | None:
    """Name what is wrong with what came of a request, which may be anything; None if nothing is.

    `numbers` are the `topk` drafts i64[K or more] as the draft numbers the `scored` tokens of its head, `chances` f32
    theirs, `hidden` T[width], which are kept as `dtype`.
    """
    if numbers is None or chances is None:
        return f"no {topk} drafts came {SENT}"
    if hidden is None:
        return f"no hidden states came {SENT}"
    if not (_is_row(numbers, WHOLE) and _is_row(chances, REAL) and _is_row(hidden, REAL)):
        forms = ", ".join(map(_form, (numbers, chances, hidden)))
        return f"drafts, chances and hidden states came {SENT} as {forms}"
    if min(len(numbers), len(chances)) < topk:
        return f"no {topk} drafts came {SENT}"
    if hidden.shape != (width,):
        return f"hidden states of the shape {tuple(hidden.shape)} came {SENT}, not ({width},)"
    least, most = int(numbers[:topk].min()), int(numbers[:topk].max())
    if least < 0 or most >= scored:
        return f"a draft came {SENT} which is none of {scored} tokens: {least}, {most}"
    if not bool(((chances[:topk] >= 0) & (chances[:topk] <= 1)).all()):
        return f"a draft came {SENT} with a chance that is none: {chances[:topk].tolist()}"
    if not bool(hidden.to(dtype).isfinite().all()):
        return f"hidden states came {SENT} which are not finite in {dtype}"
    return None


def _is_row(value: object, dtypes: tuple[torch.dtype, ...]) -> TypeGuard[Tensor]:
    """Whether it is a tensor of one axis that has values of these types."""
    if not _has_shape(value) or value.layout != torch.strided or value.is_meta:
        return False
    return value.dtype in dtypes and value.dim() == 1


def _form(value: object) -> str:
    """What something is, in a word."""
    return f"{value.dtype}{list(value.shape)}" if _has_shape(value) else type(value).__name__


def _has_shape(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor of a shape, as one of several tensors is not."""
    return isinstance(value, Tensor) and not value.is_nested


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
