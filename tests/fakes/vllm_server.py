"""A server of vLLM's with one program, on the stand-ins of its modules: it schedules, and runs the target."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specc.runtime.plan.plan import Plan

from .memory import Memory
from .models import NO_HIDDEN, draft_code, fold, fold_all, hidden_code, target_code, target_next, target_scores
from .plans import package_of
from .tables import tame_models
from .vllm_core import EngineCore, Executor
from .vllm_modules import (
    GPUModelRunner,
    ModelRunnerOutput,
    Scheduler,
    SchedulerOutput,
    Stream,
    Worker,
    looked_up,
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
from .vllm_tables import UNSET, VLLM, BlockTables, InputBatch, RequestState

PROGRAM = "specc_program_small"
METHODS = {
    "STANDALONE": "draft_model", "EAGLE": "eagle", "EAGLE3": "eagle3", "MULTI_LAYER_EAGLE": "mtp", "NGRAM": "ngram",
}  # fmt: skip
TARGET, DRAFT = 0, 1
"""Groups of KV caches."""


def adapter(module: str) -> Any:
    """A module of the adapter, in the program's package."""
    return importlib.import_module(f"{PROGRAM}.vllm.{module}")


class Target:
    """The target, which is what it says after a text; a forward keeps nothing but the scores of its last tokens.

    Attributes:
        tokens: those that its last forward read.
        place: where its forwards leave hidden states, as vLLM's graphs do; None: anywhere.

    """

    place: Tensor | None = None

    def __init__(self, plan: Plan) -> None:
        self.model = tame_models(plan)["target"]
        self._padded = -(-plan.size("V") // 64) * 64
        self._width = plan.models["target"].hidden_size

    def hidden(self, text: Sequence[int]) -> Tensor:
        """The hidden rows of all places of a text."""
        seen, rows = 0, list[int]()
        for position, token in enumerate(text):
            seen = fold(seen, target_code(token, position))
            rows.append(self.model.hidden_row(seen))
        states = self.model.hidden[rows]
        return states.expand(-1, self._width) if states.shape[1] == 1 else states  # where no draft reads them

    def forward(self, texts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """The hidden states of the last tokens of texts, so many of each."""
        scores, hidden = list[Tensor](), list[Tensor]()
        for text, count in zip(texts, counts, strict=True):
            scores += [target_scores(self.model, text[:end]) for end in range(len(text) - count + 1, len(text) + 1)]
            hidden.append(self.hidden(text)[-count:])
        self.tokens = torch.tensor(
            [token for text, count in zip(texts, counts, strict=True) for token in text[-count:]]
        )
        self._scores = torch.stack(scores)
        self._last = torch.cat([*hidden, torch.zeros_like(hidden[0])])  # rows of padding behind
        if self.place is None or len(self._last) > len(self.place):
            return self._last
        left = self.place[: len(self._last)]
        return left.copy_(self._last)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Scores of the last forward, as rows of a padded vocabulary, and of padding behind it."""
        scored = len(self._scores)
        assert torch.equal(hidden[:scored], self._last[:scored])
        whole = torch.full((len(hidden), self._padded), torch.inf)
        whole[:scored, : self._scores.shape[1]] = self._scores
        return whole[:, : self._scores.shape[1]]


class Draft:
    """What drafts: a language model, or a head that sees the token behind each of the target's hidden states.

    Its keys and values are in blocks, of which it finds what it is told of.
    """

    def __init__(self, plan: Plan, blocks: int, server: Server) -> None:
        self.model, self._server, self._page = tame_models(plan)["draft"], server, plan.kv.page_size
        self.memory = Memory.of_pool(plan.kv_pools["draft"], blocks * self._page, torch.device("cpu"))
        self._shifted, self._steps = plan.kv.shifted, plan.size("S")
        self._before = self.memory.words.clone()

    def forget(self, blocks: Sequence[int]) -> None:
        """Of blocks that nobody has any more, what is in them stays."""
        slots = self._slots(blocks)
        self._before[:, slots] = self.memory.words[:, slots]

    def _slots(self, blocks: Sequence[int]) -> Tensor:
        return (torch.tensor(blocks)[:, None] * self._page + torch.arange(self._page)).flatten()

    def check_free(self, blocks: Sequence[int]) -> None:
        """Nobody has written into blocks which no request has."""
        slots = self._slots(blocks)
        assert torch.equal(self.memory.words[:, slots], self._before[:, slots])

    # --- in vLLM ------------------------------------------------------------------------------------------------------

    def run(
        self, ids: Tensor, positions: Tensor, metadata: Any, slots: Tensor, hidden: Tensor | None,
        layer: int | None = None,
    ) -> Any:  # fmt: skip
        """What of hidden states scores tokens, and what the next forward reads, of tokens of a batch.

        `layer` is the only one that keeps and reads keys and values; None: all.
        """
        assert torch.equal(slots, metadata.slots)
        codes = NO_HIDDEN if hidden is None else hidden_code(hidden)
        self.memory.write(slots, draft_code(ids, positions, codes), layer)
        seen: list[int] = []
        for place, position in enumerate(positions.tolist()):
            row = int((metadata.starts <= place).sum()) - 1
            assert 0 <= position < int(metadata.seq_lens[row]) <= metadata.max_seq_len
            at = torch.arange(position + 1)
            held = metadata.table[row, at // self._page].long() * self._page + at % self._page
            seen.append(fold_all(0, self.memory.read(held, layer).tolist()))
        states = torch.tensor(seen)
        return torch.stack((ids, states), 1), self.model.hidden[self.model.hidden_row(states)]

    def compute_logits(self, states: Tensor) -> Tensor:
        """Scores of what a forward has left."""
        return self.model.logits[self.model.row(*states.unbind(1))]

    def own_drafts(self, rows: Any) -> Tensor:
        """Drafts i64[b, S] by vLLM itself, of the texts of requests in these rows, whose keys and values it writes."""
        drafts = list[list[int]]()
        for row in rows.tolist():
            codes, made = self.drafts(self._server.text(row))
            at = torch.arange(len(codes))
            blocks = self._server.tables.block_tables[DRAFT].gpu[row, at // self._page].long()
            self.memory.write(blocks * self._page + at % self._page, torch.tensor(codes))
            drafts.append(made)
        return torch.tensor(drafts)

    # --- by itself ----------------------------------------------------------------------------------------------------

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """The codes of its keys and values after a text, and what it drafts then."""
        if self._shifted:
            hidden = hidden_code(self._server.target.hidden(text)).tolist()
            codes = [draft_code(*of) for of in zip(text[1:], range(len(text) - 1), hidden, strict=False)]
        else:
            codes = [draft_code(token, position, NO_HIDDEN) for position, token in enumerate(text)]
        seen, token, made = fold_all(0, codes), text[-1], list[int]()
        for place in range(len(codes), len(codes) + self._steps):
            scores = self.model.rows[self.model.row(token, seen)]
            made.append(token := scores.index(max(scores)))
            given = self.model.hidden_codes[self.model.hidden_row(seen)] if self._shifted else NO_HIDDEN
            seen = fold(seen, draft_code(token, place, given))
        return codes, made


class Modules(Draft):
    """Several modules, each with a layer; each reads what the one before it made, and a token further in the text."""

    def __init__(self, plan: Plan, blocks: int, server: Server) -> None:
        """Make hidden states as wide as the target's."""
        super().__init__(plan, blocks, server)
        width = plan.models["target"].hidden_size
        self.model = replace(self.model, hidden=self.model.hidden.expand(-1, width).contiguous())

    def check_free(self, blocks: Sequence[int]) -> None:
        """And the last places of every text are kept, as far as it has them."""
        super().check_free(blocks)
        for row in self._server.steps:
            self._check_kept(row, self._server.text(row))

    def own_drafts(self, rows: Any) -> Tensor:
        """As of a draft; and keeps the last places of every text, where those of the text before the step are."""
        drafts = list[list[int]]()
        for row, emitted in zip(rows.tolist(), self._server.output.num_sampled.tolist(), strict=True):
            layers, made = self._ran(text := self._server.text(row))
            if len(text) - emitted > self._server.prompts[row]:
                self._check_kept(row, text[:-emitted])
            at = torch.arange(len(layers[0]))
            blocks = self._server.tables.block_tables[DRAFT].gpu[row, at // self._page].long()
            for layer, codes in enumerate(layers):
                self.memory.write(blocks * self._page + at % self._page, torch.tensor(codes), layer)
            for kept, new in zip(self._kept(row), self._last(text), strict=True):
                kept[len(kept) - len(new) :] = new
            drafts.append(made)
        return torch.tensor(drafts)

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """The codes of the first module, and the drafts."""
        layers, made = self._ran(text)
        return layers[0], made

    def _ran(self, text: Sequence[int]) -> tuple[list[list[int]], list[int]]:
        """By module the codes of its keys and values after a text, and what all of them draft then."""
        tokens, given = [*text], hidden_code(self._server.target.hidden(text[:-1])).tolist()
        layers, made = list[list[int]](), list[int]()
        for module in range(self._steps):
            codes = [draft_code(*of) for of in zip(tokens[module + 1 :], range(len(given)), given, strict=True)]
            seen = [fold_all(0, codes[: place + 1]) for place in range(len(codes))]
            scores = self.model.rows[self.model.row(tokens[-1], seen[-1])]
            made.append(scores.index(max(scores)))
            tokens, given = [*tokens, made[-1]], [self.model.hidden_codes[self.model.hidden_row(one)] for one in seen]
            layers.append(codes)
        return layers, made

    def _check_kept(self, row: int, text: Sequence[int]) -> None:
        for kept, expected in zip(self._kept(row), self._last(text), strict=True):
            assert torch.equal(kept[len(kept) - len(expected) :], expected)

    def _kept(self, row: int) -> tuple[Tensor, Tensor]:
        speculator = self._server.runner.speculator
        return speculator.cached_draft_input_ids[row], speculator.cached_target_hidden_states[row]

    def _last(self, text: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and hidden states of the last places of a text, one less than there are drafts at most."""
        most = min(self._steps - 1, len(text) - 1)
        return torch.tensor(text[len(text) - most :]), self._server.target.hidden(text[:-1])[len(text) - 1 - most :]


class Server:
    """A server that was started with a program installed.

    Attributes:
        states, tables: vLLM's tables of requests, whose rows begin at 0.
        runner, worker: its model runner, and the worker that has it.
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
        most_tokens: int = 64, graphs: int = 0, new: Sequence[str] = (), **spec: Any,
    ) -> None:  # fmt: skip
        """`longest`: `max_model_len`; `ahead`: slots that a request has behind those of a step.

        `others` are the plans of a program's other shapes.
        `max_graph`: tokens of its largest graph; with `profile` it has measured what graphs take before it starts.
        `release`: the version of vLLM, where it is not one that is tested; `scheduled`: the VllmConfig of a scheduler
        that is in a process of its own. `lora`: adapters; `most_tokens`: `max_num_batched_tokens`.
        `graphs`: how many tokens the largest of its target's graphs has.
        `new`: places of functions that are not known of this vLLM.
        """
        self.plan, self._ahead, self._longest = plan, ahead, longest
        runner = GPUModelRunner
        for kind, name in ((runner, "sample"), (runner, "add_requests"), (runner, "postprocess_sampled"),
                           (runner, "profile_cudagraph_memory"),
                           (Worker, "load_model"), (EngineCore, "_initialize_kv_caches"),
                           (Scheduler, "__init__")):  # fmt: skip
            monkeypatch.setattr(kind, name, getattr(kind, name))  # they are as they were when the test ends
        VLLM.plug_in(package_of(plan, PROGRAM, *others), monkeypatch, lambda adapter: release or adapter.TESTED[-1])
        monkeypatch.setattr(adapter("server.digests"), "installed", lambda: dict.fromkeys(new, "new"))
        width, page = -(-longest // plan.kv.page_size), plan.kv.page_size
        self.states = RequestState(requests, plan.size("S"), longest)
        self.tables, self.target = BlockTables(requests, (3, width), (2 * page, page)), Target(plan)
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
        self.runner.cudagraph_manager = SimpleNamespace(hidden_states=self.target.place)
        self.runner.lora_config, self.runner.max_num_tokens = lora, most_tokens
        self.runner.vllm_config, self.worker = self.config, Worker(self.runner)
        self.worker.load_model(load_dummy_weights=False)
        blocks = 1 + requests * width
        kind = Modules if plan.algorithm == "MULTI_LAYER_EAGLE" else Draft
        self.draft = kind(plan, blocks, self) if "draft" in plan.models else Looked(plan, self)
        groups = [SimpleNamespace(layer_names=names) for names in (["t.0", "t.1"], ["d.0", "d.1"])]
        cache = SimpleNamespace(kv_cache_groups=groups)
        if profile:
            at = BlockTables(requests, (3, width), (2 * page, page))
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

    def decode(self, rows: Sequence[int], drafts: int | None = None, ahead: int | None = None) -> None:
        """One step; the tokens of the last one are read when it is launched.

        `drafts`: fewer than there are; `ahead`: fewer for the next step, by default as many as there is room for.
        """
        count = 1 + (self.plan.size("S") if drafts is None else drafts)
        left = [self._longest - 1 - int(self.states.num_computed_tokens.gpu[row]) for row in rows]
        self._run(rows, [min(count, most) for most in left], prefill=False, ahead=ahead)

    def told(self, rows: Sequence[int], drafts: int, lengths: Sequence[int]) -> None:
        """The scheduler is told of a step of so many drafts, which emitted so many tokens of every request."""
        names = [str(row) for row in rows]
        spec = {name: [-1] * drafts for name in names} if drafts else {}
        output = ModelRunnerOutput({name: i for i, name in enumerate(names)}, [[5] * length for length in lengths])
        self.scheduler.update_from_output(SchedulerOutput(dict.fromkeys(names, drafts + 1), spec), output)

    def end(self, row: int) -> None:
        """A request ends: its blocks are free, and their numbers stay where they are."""
        held = int(self.tables.num_blocks.np[DRAFT, row]) if isinstance(self.draft, Draft) else 0
        blocks = self.tables.block_tables[DRAFT].gpu[row, :held].tolist()
        self._free += blocks
        self.tables.num_blocks.np[DRAFT, row] = 0
        if isinstance(self.draft, Draft):
            self.draft.forget(blocks)

    def settle(self) -> None:
        """Read what is still on its way, and look at what nobody owns."""
        self.runner.output_copy_stream.synchronize()
        self._read(keep=0)
        if isinstance(self.draft, Draft):
            self.draft.check_free([0, *self._free])

    def _run(self, rows: Sequence[int], counts: list[int], *, prefill: bool, ahead: int | None = None) -> None:
        texts = [self._scheduled(row, count, prefill) for row, count in zip(rows, counts, strict=True)]
        for row, text in zip(rows, texts, strict=True):
            self._allocate(row, len(text))
        at, bounds = np.array(rows, dtype=np.int32), torch.tensor([len(text) for text in texts], dtype=torch.int32)
        bounds = torch.cat((bounds, torch.full((2,), 1 << 20, dtype=torch.int32)))
        read = [[*enumerate(text)][-count:] for text, count in zip(texts, counts, strict=True)]
        positions, ids = torch.tensor([pair for pairs in read for pair in pairs]).unbind(1)
        batch = InputBatch(
            at, counts, bounds, 0 if prefill else sum(counts) - len(rows), has_prefill=prefill, input_ids=ids,
            positions=positions, has_structured_output_reqs=any(row in self.grammars for row in rows),
        )  # fmt: skip
        self.tables.gather(at)
        hidden = self.target.forward(texts, counts)
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
            batch, None, None, hidden, None, accepted, rejected, None, None, None, None, num_speculative_tokens=ahead
        )
        proposed[:, ahead:] = -1
        self.states.draft_tokens[torch.from_numpy(at).long()] = proposed
        assert all(torch.equal(*pair) for pair in self._sent), "drafts on their way to the scheduler"
        self._sent = [(proposed, proposed.clone())] if batch.has_structured_output_reqs else []
        self._read(keep=1)

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
        page = self.plan.kv.page_size
        needed = -(-min(tokens + self._ahead, self._longest) // page) - int(self.tables.num_blocks.np[DRAFT, row])
        self.tables.append(DRAFT, row, [self._free.pop() for _ in range(max(needed, 0))])

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

    def model(of: Any, **said: Any) -> Any:
        return SimpleNamespace(
            dtype=torch.float32, get_vocab_size=lambda: plan.size("V"), get_hidden_size=lambda: of.hidden_size,
            hf_config=SimpleNamespace(**said), return_sampling_mask=False, max_model_len=longest,
        )  # fmt: skip

    draft = model(plan.models.get("draft", plan.models["target"]), num_nextn_predict_layers=modules)
    ranks = ("tensor", "pipeline", "data", "prefill_context", "decode_context")
    options = {
        "method": METHODS[plan.algorithm], "num_speculative_tokens": plan.size("S"), "draft_sample_method": "greedy",
        "rejection_sample_method": "standard", "enable_adaptive_verification": False,
        "num_speculative_tokens_per_batch_size": None, "use_local_argmax_reduction": False,
        "parallel_drafting": False, "draft_model_config": draft,
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
        model_config=model(plan.models["target"]),
    )


class Looked:
    """Drafts that are looked up in the text."""

    def __init__(self, plan: Plan, server: Server) -> None:
        self._server, self._steps, self._options = server, plan.size("S"), plan.options

    def own_drafts(self, rows: Any) -> Tensor:
        """Drafts i64[b, S] of the texts of requests in these rows."""
        return torch.tensor([self.drafts(self._server.text(row))[1] for row in rows.tolist()])

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """No codes, and the drafts."""
        return [], looked_up([*text], self._steps, self._options["longest"], self._options["shortest"])
