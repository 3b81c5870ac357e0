"""Forwards of a draft in vLLM, as a program calls them: attention is over the tokens and slots that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

from ..tables import AHEAD, Blocks, draft_groups
from .heads import Head
from .target import Target

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import DraftCall, ExtendCall


class NoForwards(Target):
    """A program without a draft calls the target's head alone."""

    def begin(self, batch: Any | None) -> None:
        """See `Forwards`."""


class Forwards(Target):
    """The callbacks `extend` and `draft` of a program, by the draft of one of vLLM's speculators.

    Before a step `begin` says which requests it is of.
    """

    def __init__(self, speculator: Any, requests: int, result: Any, head: Head | None, blocks: Blocks) -> None:
        """speculator: with its attention in place; result: the program's `Forward`; head: if the program has it.

        `blocks` are those of the draft's keys and values.
        """
        super().__init__(speculator.runner, requests)
        self._speculator, self._result, self._head, self._blocks = speculator, result, head, blocks
        self._layers = draft_groups(speculator)
        most = len(speculator.arange_np)
        self._starts = torch.arange(most, dtype=torch.int32, device=speculator.device)
        self._longest = torch.full((most,), speculator.max_model_len, dtype=torch.int32)
        self._lengths = self._longest
        self._estimates = getattr(speculator, "acceptance_estimator", None) is not None
        self._places = torch.arange(speculator.num_speculative_steps, device=speculator.device)
        self._rows = self._places[:0]

    def begin(self, batch: Any | None) -> None:
        """Serve the requests of an InputBatch, whose block tables vLLM has gathered; None: any, for graphs."""
        self._lengths = self._longest if batch is None else batch.seq_lens_cpu_upper_bound[: batch.num_reqs]
        if batch is not None and self._share is not None:  # drafts run over all places of a path, whatever has a row
            missing = 1 + self._speculator.num_speculative_steps - batch.num_scheduled_tokens
            self._lengths = self._lengths + torch.from_numpy(missing)
        if self._estimates and batch is not None:
            self._speculator.temperature.copy_(self._runner.sampler.sampling_states.temperature.gpu)
        # vLLM's heads say it at the beginning of each of their own steps; what is longer than the text may, is cut.
        self._speculator.draft_max_seq_len = int(self._lengths.max()) + self._speculator.num_speculative_steps + 1

    def extend(self, **call: Unpack[ExtendCall]) -> Any:
        """See `ExtendCall`."""
        last, fed = self._run(call, ahead=call["tokens"].shape[1])
        return self._returned(last[call["select"]], fed[call["select"]], 0)

    def draft(self, **call: Unpack[DraftCall]) -> Any:
        """See `DraftCall`; of one branch."""
        step = call["step"]
        return self._returned(*self._run(call, ahead=step + 2), step + 1, 1)

    def _returned(self, last: Tensor, fed: Tensor, step: int, *branches: int) -> Any:
        """What draft number `step` returns, of hidden states T[b, W] for logits, and for the next forward."""
        rows = (len(last), *branches)
        return self._scored(last, rows, step, fed.view(*rows, fed.shape[-1]))

    def _scored(self, last: Tensor, rows: tuple[int, ...], step: int, hidden: Tensor | None = None) -> Any:
        """The same, of logits in such `rows`, beside the hidden states that are returned."""
        if self._head is not None:
            states = self._head.states(last, step).contiguous()
            return self._result(hidden=hidden, states=states.view(*rows, states.shape[-1]))
        logits = self._speculator.compute_draft_logits(last, step).contiguous()
        if self._estimates:
            self._speculator._maybe_predict_acceptance(logits, self._rows - AHEAD, self._places[step])
        return self._result(logits.view(*rows, logits.shape[-1]), hidden)

    def _run(self, call: ExtendCall | DraftCall, ahead: int) -> tuple[Tensor, Tensor]:
        """Hidden states T[b * n, W] for logits, and for the next forward, of what a callback is given.

        ahead: how many tokens more than behind the target's forward the longest text may have.
        """
        attention = self._attend(call["rows"], call["positions"], call["slots"], ahead)
        return self._over(call["tokens"], call.get("hidden"), attention)

    def _over(self, tokens: Tensor, hidden: Any, attention: tuple[Any, dict[str, Tensor]], **module: int) -> Any:
        """The draft over tokens i64[b, n], or a `module` of it, with the `attention` that `_attend` has made."""
        read = tokens.flatten()
        self._speculator.input_buffers.input_ids[: len(read)].copy_(read)
        return self._speculator.run_draft(len(read), hidden, *attention, **module)

    def _attend(
        self, rows: Tensor, positions: Tensor, slots: Tensor, ahead: int, **more: Any
    ) -> tuple[Any, dict[str, Tensor]]:
        """The metadata of attention at positions i64[b, n], after they are in the input buffers, and slots by layer.

        rows: i64[b], of the program's tables; slots: i64[b, n], in the program's group; ahead: as of `_run`;
        more: what else vLLM is told.
        """
        self._rows = rows
        speculator, buffers = self._speculator, self._speculator.input_buffers
        requests, width = positions.shape
        count = requests * width
        buffers.positions[:count].copy_(positions.reshape(-1))
        torch.mul(self._starts[: requests + 1], width, out=buffers.query_start_loc[: requests + 1])
        buffers.seq_lens[:requests].copy_(positions[:, -1] + 1)
        by_group = self._blocks.slots_by_group(rows, positions, slots)
        metadata = speculator._build_attn_metadata(
            num_reqs=requests,
            batch_desc=BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=count, num_reqs=requests),
            query_start_loc_np=speculator.arange_np[: requests + 1] * width,
            seq_lens_cpu_upper_bound=self._lengths,
            step=ahead,
            slot_mappings=by_group,
            **more,
        )
        return metadata, {name: by_group[group] for group, names in self._layers.items() for name in names}


class HeadForwards(Forwards):
    """Those of a head, before and behind which vLLM has its speculators say how layers attend.

    Modules of multi-token prediction may have all forwards attend to the tokens that the first one has picked
    (`index_share_for_mtp_iteration`).
    """

    def extend(self, **call: Unpack[ExtendCall]) -> Any:
        """See `Forwards`; what was picked for the last accepted token stays for the forwards behind."""
        speculator, select = self._speculator, call["select"]
        speculator.on_prefill_begin(len(select))
        result = super().extend(**call)
        speculator.last_token_indices[: len(select)].copy_(select)
        speculator.on_prefill_end(len(select))
        return result

    def draft(self, **call: Unpack[DraftCall]) -> Any:
        """See `Forwards`."""
        requests = len(call["rows"])
        self._speculator.on_multi_step_decode_begin(requests)
        result = super().draft(**call)
        self._speculator.on_multi_step_decode_end(requests)
        return result
