"""A server of vLLM's with one program, on the stand-ins of its modules: it schedules, and runs the target."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specc.runtime.plan.plan import Plan

from .models import target_next
from .plans import package_of
from .vllm_core import EngineCore, Executor
from .vllm_models import DRAFT, TARGET, Assistant, Blocks, Draft, Looked, Modules, Qwen3DSparkForCausalLM, Target
from .vllm_modules import (
    GPUModelRunner,
    ModelRunnerOutput,
    Scheduler,
    SchedulerOutput,
    Stream,
    Worker,
)
from .vllm_sampling import (
    BadWordsState,
    GrammarOutput,
    LogitBiasState,
    PenaltiesState,
    Sampler,
    SamplerOutput,
    StructuredOutputsWorker,
)
from .vllm_tables import UNSET, VLLM, BlockTables, InputBatch, KVCacheSpec, RequestState

PROGRAM = "specc_program_small"
METHODS = {
    "STANDALONE": "draft_model", "EAGLE": "eagle", "EAGLE3": "eagle3", "MULTI_LAYER_EAGLE": "mtp",
    "FROZEN_KV_MTP": "mtp", "NGRAM": "ngram",
    "DFLASH": "dflash", "DSPARK": "dspark",
}  # fmt: skip
KINDS = {
    "MULTI_LAYER_EAGLE": Modules, "FROZEN_KV_MTP": Assistant, "DFLASH": Blocks, "DSPARK": Qwen3DSparkForCausalLM,
}  # fmt: skip
"""What drafts, where it is none that drafts as a language model does."""


def adapter(module: str) -> Any:
    """A module of the adapter, in the program's package."""
    return importlib.import_module(f"{PROGRAM}.vllm.{module}")


class Server:
    """A server that was started with a program installed.

    Attributes:
        states, tables: vLLM's tables of requests, whose rows begin at 0.
        runner, worker: its model runner, and the worker that has it.
        longest: tokens that a text may have.
        steps: of each decode step how many drafts a request had, and how many tokens it was given, by row.
        prompts: how many tokens the prompt of a row has.
        grammars: by row which tokens may follow a text.
        known: whether the scheduler says how many drafts grammars know; otherwise none of theirs is accepted.
        output: what was sampled last.

    """

    output: SamplerOutput

    def __init__(
        self, plan: Plan, monkeypatch: pytest.MonkeyPatch, *, longest: int = 64, requests: int = 6, ahead: int = 3,
        cuda: bool = False, max_graph: int = 512, profile: bool = False, release: str = "",
        others: Sequence[Plan] = (), scheduled: Any = None, lora: Any = None,
        most_tokens: int = 64, graphs: int = 0, layers: int = 0, new: Sequence[str] = (), **spec: Any,
    ) -> None:  # fmt: skip
        """`longest`: `max_model_len`; `ahead`: slots that a request has behind those of a step, a block one more.

        `others` are the plans of a program's other shapes.
        `max_graph`: tokens of its largest graph; with `profile` it has measured what graphs take before it starts.
        `release`: the version of vLLM, where it is not one that is tested; `scheduled`: the VllmConfig of a scheduler
        that is in a process of its own. `lora`: adapters; `most_tokens`: `max_num_batched_tokens`.
        `graphs`: how many tokens the largest of its target's graphs has; `layers`: of how many layers its target
        hands hidden states over beside the last one's, which together are these.
        `new`: places of functions that are not known of this vLLM.
        """
        self.plan, self._ahead, self.longest = plan, ahead + (plan.algorithm in ("DFLASH", "DSPARK")), longest
        runner = GPUModelRunner
        for kind, name in ((runner, "sample"), (runner, "add_requests"), (runner, "postprocess_sampled"),
                           (runner, "profile_cudagraph_memory"), (Worker, "load_model"),
                           (EngineCore, "_initialize_kv_caches"), (Scheduler, "__init__")):  # fmt: skip
            monkeypatch.setattr(kind, name, getattr(kind, name))  # they are as they were when the test ends
        VLLM.plug_in(package_of(plan, PROGRAM, *others), monkeypatch, lambda adapter: release or adapter.TESTED[-1])
        monkeypatch.setattr(adapter("server.digests"), "installed", lambda: dict.fromkeys(new, "new"))
        width, page = -(-longest // plan.kv.page_size), plan.kv.page_size
        self.states = RequestState(requests, plan.size("S"), longest)
        assists = plan.algorithm == "FROZEN_KV_MTP"
        widths = -(-longest // (2 * page)) if assists else 3, width
        self.tables, self.target = BlockTables(requests, widths, (2 * page, page)), Target(plan)
        self._groups = (TARGET, DRAFT) if assists else (DRAFT,)
        self.tables.block_tables[DRAFT].gpu.fill_(UNSET)
        penalties = PenaltiesState(requests, plan.size("V"))
        processors = penalties, LogitBiasState(requests), BadWordsState(requests)
        device = SimpleNamespace(type="cuda") if cuda else torch.device("cpu")
        module = importlib.import_module("vllm.v1.worker.gpu.model_runner")
        self.runner = GPUModelRunner(self.target, Sampler(requests, plan.size("V"), *processors), device)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream())
        self.config = config_of(plan, requests, longest, max_graph, **spec)
        self.runner.speculator = module.init_speculator(self.config, torch.device("cpu"), self.states)
        self.runner.req_states = self.states
        self.target.place = torch.zeros(graphs, plan.models["target"].hidden_size) if graphs else None
        self._layers = layers
        left = [] if self.target.place is None else self._of_layers(self.target.place)
        self.runner.cudagraph_manager = SimpleNamespace(hidden_states=self.target.place, aux_hidden_states=left)
        self.runner.lora_config, self.runner.max_num_tokens = lora, most_tokens
        self.runner.vllm_config, self.worker = self.config, Worker(self.runner)
        self.worker.load_model(load_dummy_weights=False)
        blocks = 1 + requests * sum(widths[group] for group in self._groups)
        kind = KINDS.get(plan.algorithm, Draft)
        self.draft = kind(plan, blocks, self) if "draft" in plan.models else Looked(plan, self)
        named = (["t.0", "d.0"], ["t.1", "d.1"]) if assists else (["t.0", "t.1"], ["d.0", "d.1"])
        groups = [SimpleNamespace(layer_names=names, kv_cache_spec=KVCacheSpec()) for names in named]
        cache = SimpleNamespace(kv_cache_groups=groups)
        if profile:
            at = BlockTables(requests, widths, (2 * page, page))
            self.runner.speculator.set_attn(self.draft, cache, at, {"d.0", "d.1"})
            self.runner.profile_cudagraph_memory()
        self.runner.speculator.set_attn(self.draft, cache, self.tables, {"d.0", "d.1"})
        self.runner.speculator.init_cudagraph_manager()
        self.runner.speculator.capture()
        self.scheduler = EngineCore(scheduled or self.config, Executor([self.worker])).scheduler
        self._free = list(range(blocks - 1, 0, -1))
        self.runner.structured_outputs_worker = StructuredOutputsWorker(plan.size("A"))
        self.grammars, self.known = dict[int, Callable[[list[int]], set[int]]](), True
        self._sent = list[tuple[Tensor, Tensor]]()
        self._texts, self.prompts = dict[int, list[int]](), dict[int, int]()
        self.steps, self._late = dict[int, list[tuple[int, int]]](), list[tuple[Any, ...]]()

    @property
    def program(self) -> Any:
        """The program's steps; None where vLLM's own run."""
        return getattr(self.runner.speculator, "steps", None)

    def text(self, row: int) -> list[int]:
        """All tokens of a request, as vLLM's tables have them."""
        length = int(self.states.num_computed_tokens.gpu[row]) + 1
        return self.states.all_token_ids.gpu[row, :length].tolist()

    def judge(
        self, says: Callable[[int, list[int]], int] | None = None, first: Callable[[int, list[int]], int] | None = None
    ) -> None:
        """Texts are what the target says after each, and a step gives as many tokens as drafts were right, and one.

        `says`: by row and text what the target says, which is its most probable token by default; `first` the same of
        the first token.
        """
        self.settle()
        for row, steps in self.steps.items():
            length = self.prompts[row]
            text, rest = self._texts[row][: length + 1], self._texts[row][length + 1 :]
            whole = text[:-1]
            assert text[-1] == (target_next(self.target.model, whole) if first is None else first(row, whole))
            for tried, given in steps:
                for draft in [*self.draft.drafts(text)[1][:tried], None]:
                    text.append(target_next(self.target.model, text) if says is None else says(row, text))
                    given -= 1
                    if text[-1] != draft:
                        break
                assert given == 0
            assert text[length + 1 :] == rest

    # --- scheduling ---------------------------------------------------------------------------------------------------

    def begin(self, prompts: dict[int, list[int]], **asked: Any) -> None:
        """Prefill requests in these rows, which all sample alike."""
        for row, prompt in prompts.items():
            self.runner.sampler.admit(row, prompt=prompt, **asked)
            self._texts[row], self.prompts[row], self.steps[row] = list(prompt), len(prompt), []
            self.states.all_token_ids.gpu[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
            self.states.num_computed_tokens.gpu[row] = 0
        self.join([*prompts])
        self._run([*prompts], [len(prompt) for prompt in prompts.values()], prefill=True)
        self.settle()

    def join(self, rows: Sequence[int]) -> None:
        """These rows have new requests, or ask for something else than before."""
        new = [SimpleNamespace(req_id=str(row)) for row in rows]
        self.runner.add_requests(SchedulerOutput({}, {}, scheduled_new_reqs=new))

    def decode(
        self, rows: Sequence[int], drafts: int | Sequence[int] | None = None, ahead: int | None = None,
        scheduled: int | None = None,
    ) -> None:  # fmt: skip
        """One step; the tokens of the last one are read when it is launched.

        `drafts`: fewer than there are, of all requests or of each; `ahead`: fewer for the next step, by default as many
        as there is room for. `scheduled`: as many as the host knows of, if the device has left some of them out.
        """
        drafts = self.plan.size("S") if drafts is None else drafts
        counts = [1 + each for each in ([drafts] * len(rows) if isinstance(drafts, int) else drafts)]
        left = [self.longest - 1 - int(self.states.num_computed_tokens.gpu[row]) for row in rows]
        counts = [min(count, most) for count, most in zip(counts, left, strict=True)]
        known = None if scheduled is None else [min(1 + scheduled, most) for most in left]
        self._run(rows, counts, prefill=False, ahead=ahead, scheduled=known)

    def told(self, rows: Sequence[int], drafts: int, lengths: Sequence[int]) -> None:
        """The scheduler is told of a step of so many drafts, which emitted so many tokens of every request."""
        names = [str(row) for row in rows]
        spec = {name: [-1] * drafts for name in names} if drafts else {}
        output = ModelRunnerOutput({name: i for i, name in enumerate(names)}, [[5] * length for length in lengths])
        self.scheduler.update_from_output(SchedulerOutput(dict.fromkeys(names, drafts + 1), spec), output)

    def end(self, row: int) -> None:
        """A request ends: its blocks are free, and their numbers stay where they are."""
        for group in self._groups:
            held = int(self.tables.num_blocks.np[group, row]) if isinstance(self.draft, Draft) else 0
            blocks = self.tables.block_tables[group].gpu[row, :held].tolist()
            self._free += blocks
            self.tables.num_blocks.np[group, row] = 0
            if isinstance(self.draft, Draft):
                self.draft.forget(blocks)

    def settle(self) -> None:
        """Read what is still on its way, and look at what nobody owns."""
        self.runner.output_copy_stream.synchronize()
        self._read(keep=0)
        if isinstance(self.draft, Draft):
            self.draft.check_free([0, *self._free])

    def _run(
        self, rows: Sequence[int], counts: list[int], *, prefill: bool, ahead: int | None = None,
        scheduled: list[int] | None = None,
    ) -> None:  # fmt: skip
        texts = [self._scheduled(row, count, prefill) for row, count in zip(rows, counts, strict=True)]
        known = zip(texts, counts, scheduled or counts, strict=True)
        ends = [len(text) - count + most for text, count, most in known]
        for row, end in zip(rows, ends, strict=True):
            self._allocate(row, end)
        at, bounds = np.array(rows, dtype=np.int32), torch.tensor(ends, dtype=torch.int32)
        bounds = torch.cat((bounds, torch.full((2,), 1 << 20, dtype=torch.int32)))
        read = [[*enumerate(text)][-count:] for text, count in zip(texts, counts, strict=True)]
        positions, ids = torch.tensor([pair for pairs in read for pair in pairs]).unbind(1)
        batch = InputBatch(
            at, counts, bounds, 0 if prefill else sum(counts) - len(rows), has_prefill=prefill, input_ids=ids,
            positions=positions, has_structured_output_reqs=any(row in self.grammars for row in rows),
            scheduled=scheduled,
        )  # fmt: skip
        self.tables.gather(at)
        hidden = self.target.forward(texts, counts)
        for row, text, count in zip(rows, texts, counts, strict=True) if isinstance(self.draft, Assistant) else ():
            self.draft.keep(row, text, count)
        grammar = self._grammar(rows, texts, [1] * len(rows) if prefill else counts)
        output, accepted, rejected = self.runner.sample(hidden, batch, grammar)
        self.output = output
        copied = self.runner.output_copy_stream.copy(output.sampled_token_ids)
        none = () if self.known else self.grammars.keys()
        tried = [1 if row in none else count for row, count in zip(rows, counts, strict=True)]
        self._late.append((rows, copied, accepted.tolist(), None if prefill else tried))
        starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        self.runner.postprocess_sampled(batch.idx_mapping, output.sampled_token_ids, accepted, rejected, starts)
        ahead = self.plan.size("S") if ahead is None else ahead
        proposed = self.runner.speculator.propose(
            batch,
            None,
            None,
            hidden,
            self._aux(hidden),
            accepted,
            rejected,
            None,
            None,
            None,
            None,
            num_speculative_tokens=ahead,
        )
        if ahead < self.plan.size("S"):
            proposed[:, ahead:] = -1
        self.states.draft_tokens[batch.idx_mapping] = proposed
        assert all(torch.equal(*pair) for pair in self._sent), "drafts on their way to the scheduler"
        sent = self.states.draft_tokens[batch.idx_mapping, :ahead]
        assert torch.equal(sent, self.states.draft_tokens[torch.from_numpy(at).long()][:, :ahead])
        self._sent = [(sent, sent.clone())] if batch.has_structured_output_reqs else []
        self._read(keep=1)

    def _aux(self, hidden: Tensor) -> list[Tensor] | None:
        """Hidden states of several layers, if there are any: where graphs leave them, or anywhere."""
        made, left = self._of_layers(hidden), self.runner.cudagraph_manager.aux_hidden_states
        if not left or len(hidden) > len(left[0]):
            return made or None
        return [place[: len(hidden)].copy_(layer) for place, layer in zip(left, made, strict=True)]

    def _of_layers(self, hidden: Tensor) -> list[Tensor]:
        return [part.clone() for part in hidden.chunk(self._layers, -1)] if self._layers else []

    def _grammar(self, rows: Sequence[int], texts: Sequence[list[int]], counts: Sequence[int]) -> Any:
        """What may follow in requests with grammars: all behind the first draft that one does not know."""
        named = [place for place, row in enumerate(rows) if row in self.grammars]
        if not named:
            return None
        masks, known = list[Any](), list[int]()
        for place in named:
            row, text, count = rows[place], texts[place], counts[place]
            ends = range(len(text) - count + 1, len(text) + 1)
            fit = [i for i, end in enumerate(ends) if all(
                text[to] in self.grammars[row](text[:to]) for to in range(ends[0], end)
            )]  # fmt: skip
            known.append(len(fit) - 1)
            allowed = [self.grammars[row](text[: ends[i]]) if i in fit else None for i in range(self.plan.size("A"))]
            masks += [self._mask(of) for of in allowed]
        return GrammarOutput([str(rows[place]) for place in named], np.stack(masks), known if self.known else None)

    def _mask(self, allowed: set[int] | None) -> Any:
        """The words of a bitmask; None allows all."""
        bits = np.zeros(-(-self.plan.size("V") // 32) * 32, dtype=np.uint8)
        bits[[*allowed] if allowed is not None else slice(None)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _scheduled(self, row: int, count: int, prefill: bool) -> list[int]:
        """The text of a request up to the end of a step's tokens."""
        if prefill:
            return self._texts[row]
        done = self.states.all_token_ids.gpu[row, : int(self.states.num_computed_tokens.gpu[row])].tolist()
        drafts = self.states.draft_tokens[row, : count - 1].tolist()
        return [*done, int(self.states.last_sampled_tokens[row]), *drafts]

    def _allocate(self, row: int, tokens: int) -> None:
        """Blocks for so many tokens and those ahead, which no text is longer than."""
        for group in self._groups:
            size, held = self.tables.block_sizes[group], int(self.tables.num_blocks.np[group, row])
            needed = -(-min(tokens + self._ahead, self.longest) // size) - held
            self.tables.append(group, row, [self._free.pop() for _ in range(max(needed, 0))])

    def _read(self, keep: int) -> None:
        """Give requests the tokens of all but so many of the last steps."""
        while len(self._late) > keep:
            rows, copied, accepted, counts = self._late.pop(0)
            if copied.eq(UNSET).any():
                self.runner.output_copy_stream.synchronize()
            for place, (row, tokens, count) in enumerate(zip(rows, copied.tolist(), accepted, strict=True)):
                self._texts[row] += tokens[:count]
                if counts is not None:
                    self.steps[row].append((counts[place] - 1, count))


def config_of(plan: Plan, requests: int, longest: int, max_graph: int, aux: bool = False, **spec: Any) -> Any:
    """The VllmConfig of a server that a program fits, but for what of its speculation is otherwise."""
    modules = plan.size("S") if plan.algorithm == "MULTI_LAYER_EAGLE" else 1

    def model(of: Any, width: int, **config: Any) -> Any:
        return SimpleNamespace(
            dtype=torch.float32, head_dtype=torch.float32, get_vocab_size=lambda: plan.size("V"),
            get_hidden_size=lambda: width, hf_config=SimpleNamespace(**config),
            hf_text_config=SimpleNamespace(hidden_size=of.hidden_size), return_sampling_mask=False,
            max_model_len=longest,
        )  # fmt: skip

    target = plan.models["target"]
    drafts, kind, width = plan.models.get("draft", target), "llama", plan.models.get("draft", target).hidden_size
    if plan.algorithm == "FROZEN_KV_MTP":  # of which vLLM says how wide the rows are that it reads
        kind, width = "gemma4_mtp", target.hidden_size
    draft = model(drafts, width, num_nextn_predict_layers=modules, model_type=kind)
    ranks = ("tensor", "pipeline", "data", "prefill_context", "decode_context")
    options = {
        "method": METHODS[plan.algorithm], "num_speculative_tokens": plan.size("S"), "draft_sample_method": "greedy",
        "rejection_sample_method": "standard", "enable_adaptive_verification": False,
        "num_speculative_tokens_per_batch_size": None, "use_local_argmax_reduction": False,
        "parallel_drafting": plan.algorithm in ("DFLASH", "DSPARK"), "draft_model_config": draft,
        "prompt_lookup_max": plan.options.get("longest"), "prompt_lookup_min": plan.options.get("shortest"),
    }  # fmt: skip
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            use_ubatching=False,
            enable_eplb=False,
            enable_batch_sharded_sampling=False,
            **{f"{name}_parallel_size": 1 for name in ranks},
        ),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=max_graph),
        aux_output_config=SimpleNamespace(enabled=aux),
        speculative_config=SimpleNamespace(**options | spec),
        scheduler_config=SimpleNamespace(max_num_seqs=requests),
        model_config=model(target, target.hidden_size, model_type="llama"),
    )
