"""A server of SGLang's with one program, on the stand-ins of its modules: it prefills, decodes, gives out tokens."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.runtime.plan.plan import Plan

from . import sglang_assistants as _assistants  # noqa: F401 (its classes are in SGLang, too)
from . import sglang_blocks as _blocks  # noqa: F401 (its classes are in SGLang, too)
from . import sglang_grammars as _grammars  # noqa: F401 (its functions are in SGLang, too)
from . import sglang_modules as sglang
from . import sglang_states as _states  # noqa: F401 (see above)
from . import sglang_worker
from .drafts import Engine
from .memory import scattered
from .models import target_next, target_scores
from .plans import package_of
from .sglang_adaptive import AdaptiveController
from .sglang_disaggregated import DecodeReqToTokenPool, SpeculativeAlgorithm, send
from .sglang_look_ups import NgramVerifyInput
from .sglang_lora import LoRAManager
from .sglang_modules import SETTINGS, EagleDraftInput, ForwardMode, HookRegistry, Req, ScheduleBatch
from .sglang_multi_layer import MultiLayerEagleDraftWorker
from .sglang_parallel import MLPSyncBatchInfo
from .sglang_routed import BaseTopkCapturer
from .sglang_scheduler import Scheduler, SchedulerBatchResultProcessor
from .sglang_worker import EagleDraftWorker, IntelAMXAttnBackend, ModelRunner, MultiStepDraftBackend

PROGRAM = "specc_program_small"
WORKERS = {
    "EAGLE": "eagle_worker_v2.EAGLEWorkerV2",
    "STANDALONE": "standalone_worker_v2.StandaloneWorkerV2",
    "NGRAM": "ngram_worker.NGRAMWorker",
    "MULTI_LAYER_EAGLE": "multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2",
    "DFLASH": "dflash_worker_v2.DFlashWorkerV2",
    "DFLASH2": "dflash_worker_v2.DFlashWorkerV2",
    "DSPARK": "dspark_components.dspark_worker_v2.DSparkWorkerV2",
    "FROZEN_KV_MTP": "frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2",
}

ALGORITHMS = {"MULTI_LAYER_EAGLE": "EAGLE", "DFLASH2": "DFLASH"}
"""Algorithms of programs -> what SGLang calls them, where that is something else."""


def part(place: str) -> Any:
    """What is at a place of SGLang's now, whatever has replaced what."""
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(f"sglang.srt.{module}"), name)


def adapter(module: str) -> Any:
    """A module of the adapter, in the program's package."""
    return importlib.import_module(f"{PROGRAM}.sglang.{module}")


class Arrival:
    """The event behind copies to the host. What is read before it was waited for, is not there yet."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._coming = [(tensor, tensor.clone()) for tensor in tensors]
        for tensor in tensors:
            tensor.fill_(-1)

    def synchronize(self) -> None:
        for tensor, values in self._coming:
            tensor.copy_(values)


class SharedOutput:
    """The buffer in which forwards of a server that captures graphs leave their logits.

    Attributes:
        given: how many columns were asked for.

    """

    def __init__(self, rows: int) -> None:
        self.max_rows, self.given = rows, set[int]()
        self._memory = torch.full((rows * 256,), torch.nan)

    def get_logits_buffer(self, columns: int, *, rows: int) -> Tensor:
        assert rows <= self.max_rows
        self.given.add(columns)
        return self._memory[: rows * columns].view(rows, columns)


class Server:
    """A server that was started with a program installed.

    Attributes:
        engine: the models, which texts are judged by.
        worker: SGLang's, or the adapter's in its place.
        algorithm: what speculates, as SGLang has it.
        steps: how many of its tokens each decode step has given to a request, by pool row.

    """

    def __init__(
        self, plan: Plan, monkeypatch: pytest.MonkeyPatch, *, overlap: bool = False, others: Sequence[Plan] = (),
        attention: type[IntelAMXAttnBackend] = IntelAMXAttnBackend, scored: list[int] | None = None,
        context: int = 80, columns: int = 96, shared: SharedOutput | None = None, metrics: bool = False,
        simulated: float = -1.0, sees: Sequence[str] = (), experts: int = 1,
        routed: BaseTopkCapturer | None = None, mode: str = "null", adapters: bool = False, groups: int = 1,
        chained: bool = False, adaptive: Mapping[int, int] | None = None, **spec: Any,
    ) -> None:  # fmt: skip
        """`scored`: the tokens that the draft scores; `columns`: of the table; `spec`: what it was told otherwise.

        `others`: plans of further shapes, less deep; `sees`: which models have positions of pictures; `experts`: ranks
        that share them; `routed`: what keeps those that tokens went to, of a server that returns them. `mode`: of two
        servers that which prefills, or decodes. `adapters`: whether requests may have one.

        `chained`: whether each module of a draft reads what the one before it made.

        `groups`: ranks that have requests of their own, this one and the others of `MLPSyncBatchInfo`.

        `adaptive`: by the size of a batch how many steps it has, of a server that changes their number.

        `shared`: where logits are, of a server that captures graphs; `simulated`: how many tokens a step accepts.
        """
        self.plan, self.overlap, self._late = plan, overlap, list[tuple[ScheduleBatch, Any]]()
        self.engine = engine_of(plan, scored, columns)
        SETTINGS.begin()
        SETTINGS.disagg.disaggregation_mode, SETTINGS.overlap = mode, overlap
        vars(SETTINGS.spec).update(
            speculative_algorithm=ALGORITHMS.get(plan.algorithm, plan.algorithm), speculative_num_steps=plan.size("S"),
            speculative_eagle_topk=max(of_shape.size("K") for of_shape in (plan, *others)),
            speculative_num_draft_tokens=max(of_shape.size("N") for of_shape in (plan, *others)),
            speculative_token_map=None if scored is None else "hot.pt",
        )  # fmt: skip
        vars(SETTINGS.spec).update(spec)
        SETTINGS.parallel.moe_ep_size, BaseTopkCapturer.current = experts, routed
        SETTINGS.parallel.attn_dp_size, MLPSyncBatchInfo.sent = groups, []
        SETTINGS.schedule.page_size, SETTINGS.observability.enable_metrics = plan.kv.page_size, metrics
        monkeypatch.setattr("sglang.srt.speculative.spec_utils.SIMULATE_ACC_LEN", simulated)
        sglang.SRT.plug_in(package_of(plan, PROGRAM, *others), monkeypatch, lambda adapter: adapter.TESTED[-1])
        HookRegistry.apply_hooks(monkeypatch)
        self.worker = self._worker(attention, scored, context, sees, chained=chained)
        if adapters:
            SETTINGS.lora.enable_lora, target = True, self.worker.target_worker.model_runner
            target.lora_manager = target.model.lora_manager = LoRAManager()
        if adaptive is not None:
            self.worker.adaptive_controller = AdaptiveController(self.worker, adaptive)
        if shared is not None:
            self._capture(shared, monkeypatch)
        self.worker.init_cuda_graphs()
        self.scheduler = Scheduler(self.worker)
        self.relay = part("managers.overlap_utils.FutureMap")(self.worker.req_to_token_pool)
        self.processor = SchedulerBatchResultProcessor()
        self.algorithm: Any = SpeculativeAlgorithm(recurs=self.worker.recurs)
        self.requests, self.prompts = dict[int, Req](), dict[int, list[int]]()
        self._states, self._lengths = dict[int, Any](), dict[int, Tensor]()
        self._input: type[EagleDraftInput] = EagleDraftInput
        self.steps: dict[int, list[int]] = {}

    def _worker(
        self, attention: type[IntelAMXAttnBackend], scored: list[int] | None, context: int, sees: Sequence[str],
        *, chained: bool,
    ) -> Any:  # fmt: skip
        plan = self.plan

        def runner(role: str) -> Any:
            config = SimpleNamespace(
                vocab_size=plan.size("V"), hidden_size=plan.models[role].hidden_size, context_len=context,
                model_is_mrope=role in sees, is_local_attention_model=False, dtype=torch.float32,
            )  # fmt: skip
            kind = part("model_executor.model_runner.ModelRunner")
            return kind(self.engine, config, attention(), is_draft_worker=role == "draft")

        runners: dict[str, ModelRunner] = {role: runner(role) for role in plan.models}
        if "draft" not in runners:
            nodes = SETTINGS.spec.speculative_num_draft_tokens
            return part(f"speculative.{WORKERS[plan.algorithm]}")(self.engine, runners["target"], nodes)
        if plan.algorithm in ("DFLASH", "DFLASH2", "DSPARK"):
            return part(f"speculative.{WORKERS[plan.algorithm]}")(self.engine, *runners.values(), plan)
        backends = MultiStepDraftBackend(attention, plan.size("S") - 1)
        numbered, topk = None if scored is None else torch.tensor(scored), SETTINGS.spec.speculative_eagle_topk
        drafter: Any = EagleDraftWorker(runners["draft"], backends, numbered, topk)
        if plan.algorithm in ALGORITHMS:
            drafter = MultiLayerEagleDraftWorker(self.engine, partial(runner, "draft"), plan.size("S"), chained=chained)
        worker = part(f"speculative.{WORKERS[plan.algorithm]}")(
            self.engine, runners["target"], drafter, topk, plan.size("S")
        )
        if SETTINGS.disagg.disaggregation_mode == "decode":
            worker.req_to_token_pool = DecodeReqToTokenPool(self.engine.table)
        return worker

    def _capture(self, shared: SharedOutput, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be a server that captures graphs, on a GPU as far as the adapter asks."""
        drafter = self.worker.draft_worker
        drafts = getattr(drafter, "draft_runner_list", [drafter.draft_runner])
        for runner in (self.worker.target_worker.model_runner, *drafts):
            runner.graph_shared_output = shared
            runner.decode_cuda_graph_runner = SimpleNamespace(capture_bs=[1, 2, 4])
        for module in ("binding", "workers.program_steps"):
            monkeypatch.setattr(adapter(module), "capturing", lambda _: "graph")

    # --- requests -----------------------------------------------------------------------------------------------------

    def begin(self, prompts: dict[int, list[int]], **asked: Any) -> None:
        """Prefill requests in these rows, which all ask for the same."""
        batch = self._begun(prompts, asked)
        self._gather(batch)
        result = self._forward(batch)
        for row, token in zip(prompts, result.next_token_ids.tolist(), strict=True):
            self.requests[row].give([token])

    def receive(self, prompts: dict[int, list[int]], change: Callable[[Req], None] | None = None, **asked: Any) -> None:
        """Take in requests that another server has prefilled, whose keys and values have come; some are changed."""
        batch, kind = self._begun(prompts, asked), sglang_worker.EAGLEWorkerV2
        result = kind._prefill(self.worker, batch, lambda _: None)
        assert result.next_token_ids is not None and result.next_draft_input is not None
        for place, (req, token) in enumerate(zip(batch.reqs, result.next_token_ids.tolist(), strict=True)):
            req.give([token])
            send(req, result.next_draft_input, place, recurs=self.worker.recurs)
            if change is not None:
                change(req)
        batch.forward_mode, batch.input_ids, batch.seq_lens_cpu = ForwardMode.PREBUILT, None, batch.seq_lens.clone()
        batch.req_to_token_pool, batch.enable_overlap = self.worker.req_to_token_pool, self.overlap
        kept = self.algorithm.build_disagg_draft_input(batch, result.next_token_ids, self.relay)
        if self.overlap:
            assert kept.future_indices.tolist() == [*prompts]
        else:
            self._keep(batch.req_pool_indices, kept, batch.seq_lens)

    def _begun(self, prompts: dict[int, list[int]], asked: dict[str, Any]) -> ScheduleBatch:
        """Queue requests in these rows: the batch of their prefill."""
        for row, prompt in prompts.items():
            req = sglang.request(**asked)
            req.kv = sglang.ReqKvInfo(row)
            self.scheduler._add_request_to_queue(req)
            req.origin_input_ids = prompt
            self.requests[row], self.prompts[row], self.steps[row] = req, prompt, []
        lengths = torch.tensor([len(prompt) for prompt in prompts.values()])
        batch = self._batch([*prompts], ForwardMode.EXTEND, lengths)
        batch.input_ids = torch.tensor([token for prompt in prompts.values() for token in prompt])
        batch.seq_lens_cpu = lengths
        return batch

    def decode(self, rows: Sequence[int], *, known: bool = True) -> None:
        """One step of requests in these rows; `known`: the host knows how long their texts are."""
        self._settle(keep=1)
        if self.overlap:
            lengths = self.relay.new_seq_lens_buf[torch.tensor(rows)]
        else:
            lengths = torch.cat([self._lengths[row] for row in rows])
            assert lengths.tolist() == [self._length(row) for row in rows], "what a step left was overwritten"
        batch = self._batch(rows, ForwardMode.DECODE, lengths)
        self._gather(batch)
        batch.seq_lens_cpu = lengths.clone() if known else None
        batch.spec_info = self._state(rows)
        if self.overlap:
            self.relay.needs_cpu_seq_lens = known
            self.relay.resolve_seq_lens_cpu(batch)
            self.relay._resolve_spec_extras(batch)
        result = self._forward(batch)
        if result.routed_experts_output is not None:
            result.routed_experts_output.map_device_tensors(Tensor.clone)
        result.copy_done = Arrival([copied for copied in self._copied(result) if copied is not None])
        self._late.append((batch, result))
        self._settle(keep=int(self.overlap))

    def settle(self) -> None:
        """Read what is still on its way."""
        self._settle(keep=0)

    def own_text(self, row: int, says: Callable[[int, list[int]], int] | None = None) -> list[int]:
        """What the target alone emits, as much as the request has; its most probable tokens, or what it `says`."""
        text = list(self.prompts[row])
        for _ in self.requests[row].output_ids:
            text.append(target_next(self.engine.models["target"], text) if says is None else says(row, text))
        return text[len(self.prompts[row]) :]

    def scores(self, text: Sequence[int]) -> Tensor:
        """What the target says after a text."""
        return target_scores(self.engine.models["target"], text)

    def _length(self, row: int) -> int:
        """The committed length of a text: all but the last token."""
        return len(self.prompts[row]) + len(self.requests[row].output_ids) - 1

    # --- steps --------------------------------------------------------------------------------------------------------

    def _batch(self, rows: Sequence[int], mode: ForwardMode, lengths: Tensor) -> ScheduleBatch:
        requests = [self.requests[row] for row in rows]
        asked = [req.return_logprob for req in requests]
        batch = ScheduleBatch(requests, mode, torch.tensor(rows, dtype=torch.int64), lengths, return_logprob=any(asked))
        batch.top_logprobs_nums = [req.logprob.top_logprobs_num for req in requests] if any(asked) else None
        return batch

    def _forward(self, batch: ScheduleBatch) -> Any:
        """Run a batch, and keep what it leaves where the schedule has it."""
        rows = batch.req_pool_indices
        if self.overlap:
            result = self.worker.forward_batch_generation(batch, partial(self.relay.publish, rows), self.settle)
            self.relay.stash(rows, result.next_draft_input)
            self._input = type(result.next_draft_input)
            return result
        result = self.worker.forward_batch_generation(batch)
        self._input = type(result.next_draft_input)
        self._keep(rows, result.next_draft_input, result.new_seq_lens)
        return result

    def _gather(self, batch: ScheduleBatch | None) -> None:
        """Tell other ranks of a batch, and hear of theirs."""
        if SETTINGS.parallel.attn_dp_size > 1:
            part("managers.scheduler_components.dp_attn.SchedulerDPAttnAdapter")().prepare_mlp_sync_batch(batch)

    def idle(self) -> Any:
        """What becomes of a step that this rank has no requests for: the worker's result."""
        self._gather(None)
        batch = self._batch([], ForwardMode.IDLE, torch.empty(0, dtype=torch.int64))
        return self.worker.forward_batch_generation(batch, *[lambda _: None] * self.overlap)

    def _keep(self, rows: Tensor, left: Any, lengths: Tensor) -> None:
        """What each request of a batch takes to its next step, without the overlap schedule."""
        for place, row in enumerate(rows.tolist()):
            part = slice(place, place + 1)
            if isinstance(left, NgramVerifyInput):
                fields = copy.copy(left)
                fields.filter_batch(torch.tensor([place]))
            else:
                fields = {name: value[part] for name, value in vars(left).items() if isinstance(value, Tensor)}
            self._states[row], self._lengths[row] = fields, lengths[part]

    def _state(self, rows: Sequence[int]) -> Any:
        indices = torch.tensor(rows)
        if self.plan.algorithm == "NGRAM":
            return self._looked_up(indices)
        if self.overlap:
            return self._made(future_indices=indices)
        states, draft_input = [self._states[row] for row in rows], self._made()
        vars(draft_input).update({name: torch.cat([state[name] for state in states]) for name in states[0]})
        return draft_input

    def _made(self, **given: Any) -> EagleDraftInput:
        """Something of the class that SGLang keeps, with what its blank one has, whatever that class asks for."""
        made = self._input.__new__(self._input)
        vars(made).update(vars(EagleDraftInput(**given)))
        return made

    def _looked_up(self, rows: Tensor) -> NgramVerifyInput:
        """The same of texts, of which the relay keeps what the host does not know."""
        if self.overlap:
            made = NgramVerifyInput(SETTINGS.spec.speculative_num_draft_tokens, rows)
            made.future_indices = rows
            return made
        first, *others = (self._states[row] for row in rows.tolist())
        made = copy.copy(first)
        for other in others:
            made.merge_batch(other)
        return made

    def _settle(self, keep: int) -> None:
        """Give out the tokens of all but so many of the last steps."""
        while len(self._late) > keep:
            batch, result = self._late.pop(0)
            before = [len(req.output_ids) for req in batch.reqs]
            self.processor.process_batch_result_decode(batch, result)
            for row, req, count in zip(batch.req_pool_indices.tolist(), batch.reqs, before, strict=True):
                self.steps[row].append(len(req.output_ids) - count)

    @staticmethod
    def _copied(result: Any) -> tuple[Tensor | None, ...]:
        scores, routed = result.logits_output.next_token_logprobs, result.routed_experts_output
        experts = () if routed is None else (routed.out_cache_loc, routed.topk)
        return result.next_token_ids, result.accept_lens, getattr(result, "health", None), scores, *experts


def engine_of(plan: Plan, scored: list[int] | None = None, columns: int = 96) -> Engine:
    """The fake engine of a plan, whose draft scores these tokens in this order: most as it would score all."""
    engine = Engine.of_plan(plan, scattered(plan.size("P"), columns))
    if scored is not None:
        draft = engine.models["draft"]
        engine.models["draft"] = replace(draft, logits=draft.logits[:, [token % len(scored) for token in scored]])
    return engine
