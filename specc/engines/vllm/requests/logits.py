"""What vLLM does with the target's scores around a verification: masks before, log-probabilities behind.

Both are by vLLM's own kernels, over the scores that the program verifies by. So they are what vLLM's step would have
given, and cost nothing where nobody asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.structured_outputs import grammar_invalid_drafts

from ..tables import AHEAD

NO_TOKEN = -1
"""A draft that a program never accepts."""


def unserved(sampler: Any, rows: Any) -> str | None:
    """Why the log-probabilities that requests in these rows ask for are not those of scores that exist here, if so.

    Those of the target do, and with tokens forbidden in them; with penalties, temperature and cuts they do not.
    """
    dims = sampler.get_logprobs_dims(rows)
    if dims is None:
        return None
    if dims[1]:
        return "log-probabilities of given tokens"
    states = sampler.sampling_states
    asked = states.num_logprobs[rows] != NO_LOGPROBS
    changed = (states.temperature.np[rows] > 0) | sampler.penalties_state.use_penalty[rows]
    processed = asked & changed & sampler.needs_logits_processing[rows]
    if sampler.logprobs_mode in PROCESSED_LOGPROBS_MODES and processed.any():
        return "log-probabilities of processed scores"
    return None


def logprobs(logits: Tensor, tokens: Tensor, lengths: Tensor, batch: Any, sampler: Any) -> Any:
    """The LogprobsTensors of the first lengths i32[b] of tokens i32[b, A], by logits T[b * A, V]; None if unasked."""
    dims = sampler.get_logprobs_dims(batch.idx_mapping_np)
    if dims is None:
        return None
    places, starts = torch.arange(tokens.shape[1], device=tokens.device), batch.cu_num_logits_np.tolist()
    emitted = torch.where(places < lengths[:, None], tokens, 0)
    if len(logits) == tokens.numel():
        emitted = emitted.flatten()
    else:  # requests have different numbers of rows, which the device knows
        starts = batch.cu_num_logits.clone()
        rows = torch.arange(len(logits), device=tokens.device, dtype=starts.dtype)
        emitted = emitted[torch.bucketize(rows, starts[1:], right=True), batch.expanded_local_pos.long()]
    raw = sampler.logprobs_mode in ("raw_logits", "processed_logits")
    return compute_topk_scores(logits, dims[0], emitted.to(torch.int64), starts, logits_mode=raw)


def forbid(logits: Tensor, batch: Any, masks: Sequence[Any], sampler: Any) -> Tensor:
    """Have processors of vLLM's that do nothing else forbid tokens in logits T[b * A, V], in place.

    What log-probabilities are of comes back. Masks change it where it is processed; otherwise it is a copy, if somebody
    asks for any.
    """
    processed = sampler.logprobs_mode in PROCESSED_LOGPROBS_MODES
    unasked = processed or sampler.get_logprobs_dims(batch.idx_mapping_np) is None
    kept = logits if unasked else logits.clone()
    rows = batch.logits_indices
    context = LogitsContext(
        expanded_idx_mapping=batch.expanded_idx_mapping,
        idx_mapping=batch.idx_mapping,
        idx_mapping_np=batch.idx_mapping_np,
        expanded_local_pos=batch.expanded_local_pos,
        input_ids=batch.input_ids[rows],
        pos=batch.positions[rows],
        seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy(),
    )
    for mask in masks:
        mask.apply(logits, context)
    return kept


def restrict(logits: Tensor, batch: Any, grammar: Any, worker: Any, drafts: Tensor) -> None:
    """Lay the masks of grammars over logits T[b * A, V], in place, and take back drafts that they do not reach.

    `grammar` is vLLM's GrammarOutput and `worker` its StructuredOutputsWorker; `drafts` are the program's rows
    i64[P, S]. Masks allow everything behind a draft that a grammar does not know, so that draft must not be accepted.
    """
    names = grammar.structured_output_request_ids
    worker.apply_grammar_bitmask(logits, batch, names, grammar.grammar_bitmask)
    invalid = grammar_invalid_drafts(batch, names, grammar.num_acceptable_drafts)
    if invalid is not None:
        place = batch.expanded_local_pos.long()
        root = place == 0  # which is no draft: those of nobody stand for it
        rows = (batch.expanded_idx_mapping.long() + AHEAD).masked_fill(root, 0)
        place = (place - 1).clamp(min=0)
        drafts[rows, place] = drafts[rows, place].masked_fill(invalid & ~root, NO_TOKEN)
