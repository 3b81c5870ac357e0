"""The dry step before the first request, with a model and a program of some lines in the place of SGLang's and ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.engines.sglang.parts.states import looks_up
from specc.engines.sglang.server import proof
from specc.engines.sglang.server.proof import LENGTHS, Heard, prove, proving
from specc.runtime.plan.shape import Shape

VOCABULARY, NODES, PAGE, RESERVE = 31, 4, 4, 6


def score(text: list[int]) -> Tensor:
    """Scores f32[V] after a text, which depend on all of it."""
    draw = torch.Generator().manual_seed(sum((place + 1) * (token + 1) for place, token in enumerate(text)))
    return torch.randn(VOCABULARY, generator=draw)


class Server:
    """A worker, its runner and its table; what is in a KV slot is the token that was written there.

    Where it `hashes` n-grams it has the last tokens of each row's text besides.
    """

    def __init__(self, slots: int = 64, second: int | None = None, *, hashes: bool = False) -> None:
        self.last: dict[int, list[int]] = {}
        self.ngram_embedding_manager = SimpleNamespace(engram_hasher=self if hashes else None)
        self.table = torch.arange(5 * 24, dtype=torch.int32).view(5, 24) % 7
        self.kv: dict[int, int] = {}
        self.req_to_token_pool = SimpleNamespace(req_to_token=self.table)
        self.target_worker = SimpleNamespace(model_runner=self)
        self.model_config, self.lora_manager = SimpleNamespace(model_is_mrope=False), None
        self.token_to_kv_pool, self.spec_algorithm = SimpleNamespace(size=slots), "EAGLE"
        if second is not None:
            self.token_to_kv_pool.size_swa = second
            self.token_to_kv_pool.full_to_swa_index_mapping = torch.tensor([*[0] * (slots + PAGE), -1])
        self.kv_index_translator = SimpleNamespace(bind_runner_slots=lambda batch: None)

    def forward(self, batch: Any) -> Any:
        """A prefill."""
        assert batch.seq_lens_sum == len(batch.input_ids) == len(batch.positions)
        assert batch.extend_start_loc.tolist() == [0, *batch.seq_lens.tolist()[:-1]]
        slots = batch.out_cache_loc.tolist()
        assert len({*slots}) == len(slots), "a slot is one token's"
        assert min(slots) >= PAGE, "the first page is that of padding rows"
        if hasattr(self.token_to_kv_pool, "size_swa"):
            seconds = self.token_to_kv_pool.full_to_swa_index_mapping[slots].tolist()
            assert len({*seconds}) == len(slots)
            assert min(seconds) >= PAGE and max(seconds) < self.token_to_kv_pool.size_swa + PAGE
        self.kv |= dict(zip(slots, batch.input_ids.tolist(), strict=True))
        texts = batch.input_ids.split(batch.extend_seq_lens_cpu)
        for row, text in zip(batch.req_pool_indices.tolist(), texts, strict=True):
            self.last[row] = text[-2:].tolist()
        logits = torch.stack([score(text.tolist()) for text in texts])
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))


class Step:
    """A program's step, right but for a fault."""

    def __init__(self, server: Server, target: Any, fault: str | None, *, sampling: bool) -> None:
        self.server, self.target, self.fault = server, target, fault
        self.pools = {
            "seq_lens": torch.arange(6),
            "bonus": torch.arange(6, dtype=torch.int32),
            "topk_index": torch.arange(12).view(6, 2),
            "topk_p": torch.rand(6, 2),
            "hidden": torch.rand(6, 3),
            **({"sampling_temperature": torch.ones(6)} if sampling else {}),
        }

    def set_sampling(self, rows: list[int], params: list[Any]) -> None:
        self.pools["sampling_temperature"][rows] = torch.tensor([sampling.temperature for sampling in params])

    def decode(self, batch: Any) -> Any:
        rows = batch.req_pool_indices.tolist()
        tokens: list[list[int]] = []
        logits = torch.zeros(len(rows), NODES, VOCABULARY)
        for place, row in enumerate(rows):
            assert self.pools.get("sampling_temperature", torch.zeros(6))[row] == 0
            slots = self.server.table[row, : self.pools["seq_lens"][row]].tolist()
            text = [*(self.server.kv[slot] for slot in slots), int(self.pools["bonus"][row])]
            assert not looks_up(self.server) or self.server.last[row] == text[-3:-1]
            scores, draft = score(text), int(self.pools["topk_index"][row, 0])
            logits[place, 0] = score(text[:-1]) if self.fault == "scores" else scores
            order = scores.argsort(descending=True).tolist()
            first = order[5] if self.fault == "first" else order[0]
            second = score([*text, draft]).argsort(descending=self.fault != "second")[0]
            accepted = first == draft and self.fault != "accepting"
            tokens.append([] if self.fault == "room" else [first, *[int(second)] * accepted])
        self.target(rows=batch.req_pool_indices, logits=logits)
        return SimpleNamespace(to_host=lambda: SimpleNamespace(tokens=tokens.__getitem__))


@pytest.fixture(autouse=True)
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the proof imports of SGLang."""
    module = ModuleType("sglang.srt.model_executor.forward_batch_info")
    modes = {"CaptureHiddenMode": SimpleNamespace(NULL=0), "ForwardMode": SimpleNamespace(EXTEND=1)}
    vars(module).update(modes, ForwardBatch=SimpleNamespace)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    context = ModuleType("sglang.srt.runtime_context")
    ranks = SimpleNamespace(attn_dp_size=1, attn_tp_size=1)
    vars(context).update(get_parallel=lambda: ranks)
    monkeypatch.setitem(sys.modules, context.__name__, context)
    for name in ("sglang", "sglang.srt", "sglang.srt.model_executor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def plan(buckets: tuple[int, ...] = (1, 4), steps: int = 3) -> Any:
    sizes = {"V": VOCABULARY, "N": NODES}
    return SimpleNamespace(
        shape=Shape(steps, 1, NODES),
        buckets=buckets,
        size=sizes.__getitem__,
        bucket=lambda rows: next(bucket for bucket in buckets if bucket >= rows),
        kv=SimpleNamespace(reserve=RESERVE, page_size=PAGE),
        dims={},
        computes_head=False,
        callbacks=lambda entry: {"target"},
    )


def proved(
    fault: str | None,
    *,
    buckets: tuple[int, ...] = (1, 4),
    slots: int = 64,
    sampling: bool = False,
    heard_before: bool = False,
    steps: int = 3,
    second: int | None = None,
    hashes: bool = False,
) -> None:
    """Prove a step, perhaps again once it is captured; whatever comes of it, tables are as they were."""
    server = Server(slots, second, hashes=hashes)
    made = plan(buckets, steps)
    forwards = SimpleNamespace(target=lambda rows, logits: SimpleNamespace(logits=logits))
    heard = Heard(forwards, made, server.table)
    step = Step(server, heard, fault, sampling=sampling)
    if heard_before:
        heard.forget()
    package = SimpleNamespace(Batch=lambda rows: SimpleNamespace(req_pool_indices=rows))
    package.Sampling = lambda **given: SimpleNamespace(**given)
    before = {name: pool.clone() for name, pool in {**step.pools, "table": server.table}.items()}
    planned: list[list[int]] = []
    try:
        prove(package, made, step, server, heard, 0, planned.append)
        assert planned == [list(LENGTHS[: heard.rows])]
    finally:
        if second is not None:
            assert server.token_to_kv_pool.full_to_swa_index_mapping.unique().tolist() == [-1, 0]
        after: Mapping[str, Tensor] = {**step.pools, "table": server.table}
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_step_reads_the_last_tokens_before_its_own() -> None:
    """Those of which n-grams are made; what the scores are compared with has written one token more."""
    proved(None, hashes=True)


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("buckets", [(1, 4), (1,)])
def test_a_step_that_is_sglangs_own(sampling: bool, buckets: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        proved(None, sampling=sampling, buckets=buckets)
    assert "the dry step is SGLang's own: the target's scores are off by 0 of their norm" in caplog.text


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("scores", r"the target's scores of text 0 are off by \d+%; the target's scores of text 1 are off by"),
        ("first", r"token 0 of text 0 is \d+, not \d+"),
        ("second", r"token 1 of text 0 is \d+, not \d+"),
        ("accepting", "the draft of text 0 was right, and was not accepted"),
        ("room", "text 0 had no room for a step; text 1 had no room"),
    ],
)
def test_a_step_that_is_not(fault: str, message: str) -> None:
    with pytest.raises(
        RuntimeError, match=rf"the dry step \(SPECC_PROOF\) of the shape 3 is not SGLang's own: {message}"
    ):
        proved(fault)


def test_a_step_without_drafts_accepts_none() -> None:
    proved("accepting", steps=0)


def test_a_pool_without_room_for_the_texts() -> None:
    with pytest.raises(RuntimeError, match="needs 2 texts of 18 slots, there are 43 in all"):
        proved(None, slots=43)
    proved(None, slots=44)


def test_texts_have_slots_of_both_pools() -> None:
    """Of which either may be the smaller one; none of them is mapped afterwards."""
    proved(None, second=44)
    with pytest.raises(RuntimeError, match="needs 2 texts of 18 slots, there are 43 in all"):
        proved(None, second=43)
    with pytest.raises(RuntimeError, match="is not SGLang's own"):
        proved("first", second=64)


def test_columns_of_a_rank_are_compared_with_its_own() -> None:
    """Of a vocabulary that is padded: the last rank has columns that SGLang cuts off."""
    scores = torch.randn(2, 10)
    assert torch.equal(proof._columns(scores, SimpleNamespace(dims={}, computes_head=False), 1), scores)
    sharded = SimpleNamespace(dims={"Vs": 6}, computes_head=False)
    columns = [proof._columns(scores, sharded, rank) for rank in range(2)]
    assert torch.equal(torch.cat(columns, 1), scores)
    padded = torch.cat((columns[1], torch.full((2, 2), -1e9)), 1)
    assert proof._apart(padded, columns[1]) == [(0, 0.0), (1, 0.0)]
    assert proof._apart(torch.full_like(padded, float("nan")), columns[1])[0][1] != 0.0


def test_what_is_heard_is_a_copy_until_it_is_forgotten() -> None:
    """SGLang's forwards share a buffer: extend's logits lie over the target's when a step has ended."""
    shared = torch.zeros(9, 1, 1)
    forwards = SimpleNamespace(target=lambda rows: SimpleNamespace(logits=shared[: len(rows)]))
    heard = Heard(forwards, plan(), torch.zeros(9, 1))
    heard(rows=range(4))
    assert heard.logits is None
    heard(rows=range(2))
    shared.fill_(7)
    assert heard.logits is not None and heard.logits.flatten().tolist() == [0, 0]
    heard.forget()
    heard(rows=range(2))
    assert heard.logits is None


def test_of_packed_rows_the_first_of_each_request_is_heard() -> None:
    packed = SimpleNamespace(**{**vars(plan()), "callbacks": lambda entry: {"target_rows"}})
    logits = torch.arange(6.0).view(2, 3, 1)
    heard = Heard(SimpleNamespace(target_rows=lambda **_: SimpleNamespace(logits=logits)), packed, torch.zeros(9, 1))
    assert heard.name == "target_rows"
    heard(rows=range(2), starts=torch.tensor([0, 4], dtype=torch.int32))
    assert heard.logits is not None and heard.logits.tolist() == [[0], [4]]


def test_a_captured_step_is_compared_by_what_it_emits() -> None:
    proved("scores", heard_before=True)
    with pytest.raises(RuntimeError, match="token 0 of text 0 is"):
        proved("first", heard_before=True)


def test_words_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECC_PROOF", raising=False)
    assert proving()
    monkeypatch.setenv("SPECC_PROOF", "off")
    assert not proving()
    monkeypatch.setenv("SPECC_PROOF", "0")
    with pytest.raises(RuntimeError, match="SPECC_PROOF is one of on, off, got '0'"):
        proving()
