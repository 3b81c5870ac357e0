"""The head of a draft that a program computes, without vLLM: a few modules stand for its own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.vllm_heads import DraftModel
from fakes.vllm_modules import VLLM  # all that the adapter imports
from fakes.vllm_ranks import GroupCoordinator, ranks
from programs import planned
from torch import Tensor

import specc.runtime
from specc.compiler.support.token_map import TokenMapError, read_token_map
from specc.runtime.capabilities.draft_tables import draft_tables
from specc.runtime.entry.external import Forward
from specc.runtime.plan.plan import Plan

HEADS, FORWARDS, BLOCKS = (f"specc.engines.vllm.models.{name}" for name in ("heads", "forwards", "block_forwards"))
TOKENS, PADDED, WIDTH, PART = 90, 128, 64, [3, 8, 40, 77]


@pytest.fixture(scope="module", autouse=True)
def modules() -> Iterator[None]:
    """Stand-ins of vLLM's modules."""
    with VLLM.installed():
        yield
    for name in (HEADS, FORWARDS, BLOCKS):
        sys.modules.pop(name, None)


def speculator_of(**changes: Any) -> Any:
    """A speculator with its draft in bf16, which makes logits by its model."""
    model = DraftModel(changes.pop("padded", PADDED), WIDTH, **changes)
    config = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16))
    return SimpleNamespace(
        model=model, device=torch.device("cpu"), vllm_config=config, compute_draft_logits=model.compute_logits
    )


def plan_of(head: str = "weights", ranks: int = 1, **draft: Any) -> Plan:
    sizes = {"vocab_size": TOKENS, "dtype": "bfloat16", "hidden_size": WIDTH}
    more: dict[str, Any] = {"engine": "vllm", "page_size": 16, "tensor_parallel": ranks}
    return planned("EAGLE3", target=sizes, draft=sizes | {"head": head} | draft, **more)[0]


def part_of(head: str = "weights") -> Plan:
    return plan_of(head, vocab_size=len(PART), token_map="engine")


def head_of(plan: Plan, speculator: Any) -> Any:
    return importlib.import_module(HEADS).Head(specc.runtime, plan, speculator)


@pytest.mark.parametrize("changes", [{}, {"norm": True}, {"tokens": torch.tensor(PART)}], ids=str)
def test_rows_that_the_head_would_multiply(changes: dict[str, Any]) -> None:
    """And vLLM's own logits as ever, before and after, whatever was asked in between."""
    speculator = speculator_of(**changes)
    rows = torch.randn(3, WIDTH).bfloat16()
    logits = speculator.model.compute_logits(rows)
    head = head_of(part_of() if "tokens" in changes else plan_of(), speculator)
    states = head.states(rows, 0)
    assert torch.equal(states, 2 * rows if "norm" in changes else rows)
    weight = head.tables()["draft_head"]
    part = logits[:, PART] if "tokens" in changes else logits[:, :TOKENS]
    assert torch.equal(states @ weight.T, part)
    with pytest.raises(TypeError):
        head.states(None, "no step")
    assert torch.equal(speculator.model.compute_logits(rows), logits)


def test_the_weights_without_padding() -> None:
    """They are the engine's own, and the tokens of a part are counted from the offsets of its entries."""
    speculator = speculator_of()
    (weight,) = head_of(plan_of("int8"), speculator).tables().values()
    assert weight.shape == (TOKENS, WIDTH) and weight.data_ptr() == speculator.model.heads[0].weight.data_ptr()
    tables = head_of(part_of(), speculator_of(tokens=torch.tensor(PART))).tables()
    assert tables["draft_head"].shape == (len(PART), WIDTH)
    assert tables["d2t"].tolist() == PART and tables["d2t"].dtype == torch.int64


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"scale": 0.5}, "have a scale"),
        ({"cap": 30.0}, "have a cap"),
        ({"bias": torch.zeros(PADDED)}, "have a bias"),
        ({"as_input": True}, "have another product"),
        ({"head_dtype": torch.float32}, "have another product"),
        ({"kept": torch.float8_e4m3fn}, r"kept as torch.float8_e4m3fn\[128, 64\]"),
        ({"reads": 32}, r"kept as torch.bfloat16\[128, 32\], the program reads torch.bfloat16\[..., 64\]"),
        ({"processors": 0}, "made without a logits processor"),
    ],
    ids=str,
)
def test_what_is_in_the_way_of_a_head(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(RuntimeError, match=what):
        head_of(plan_of(), speculator_of(**changes))


def test_a_head_with_too_few_entries() -> None:
    sizes = {"vocab_size": 200, "dtype": "bfloat16", "hidden_size": WIDTH}
    plan = planned("EAGLE", target=sizes, draft=sizes | {"head": "fp8"}, engine="vllm", page_size=16)[0]
    with pytest.raises(RuntimeError, match="has 128 entries, the program reads 200"):
        head_of(plan, speculator_of())


NO_TOKENS = (
    "", "{", "3", '["a"]', "[[1]]", "[1e400]", "[1e30]", "[1.9, 2.9]", '"123"', '{"1": 0}', "[true, 2]", "[null]", "[]",
    "[1, 2", "[NaN]", "[1.0]", f"[{1 << 25}]", "[" * 100_000, "[" + "1," * (1 << 24) + "1]",
)  # fmt: skip


def test_what_lists_no_tokens_is_refused_as_a_build_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what is no file, and nothing is taken for a token that is none."""
    (tmp_path / "tokens.json").write_text("[1, 2]")
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "link", "tokens.json/x", ".", "missing"):
        monkeypatch.setenv("SPECC_TOKEN_MAP", str(tmp_path / name))
        with pytest.raises(RuntimeError, match=f"{name} lists no tokens: "):
            head_of(part_of("int8"), speculator_of())
    for text in NO_TOKENS:
        (tmp_path / "tokens.json").write_text(text)
        with pytest.raises(TokenMapError):
            read_token_map(tmp_path / "tokens.json")


def test_a_part_of_the_tokens_that_a_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a head of all tokens, whose rows the program takes."""
    speculator, file = speculator_of(), tmp_path / "tokens.json"
    monkeypatch.delenv("SPECC_TOKEN_MAP", raising=False)
    with pytest.raises(RuntimeError, match="the server's scores all: SPECC_TOKEN_MAP names no file"):
        head_of(part_of("int8"), speculator)
    monkeypatch.setenv("SPECC_TOKEN_MAP", str(file))
    for wrong in (None, *NO_TOKENS):
        if wrong is not None:
            file.write_text(wrong)
        with pytest.raises(RuntimeError, match=r"tokens.json lists no tokens: \S+"):
            head_of(part_of("int8"), speculator)
    file.write_text(str(PART))
    tables = head_of(part_of("int8"), speculator).tables()
    assert tables["d2t"].tolist() == PART and len(tables["draft_head"]) == PADDED
    assert torch.equal(draft_tables(part_of(), tables)["head_weight"], speculator.model.heads[0].weight[PART])


def test_another_head_in_a_later_step() -> None:
    """As modules have it that bring heads of their own."""
    with pytest.raises(RuntimeError, match="draft 1 has another head than the first one"):
        head_of(plan_of(), speculator_of(heads=2))


@pytest.mark.parametrize("computed", [False, True])
def test_what_forwards_return(computed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, or what the program's head reads; of a draft with an axis for its branch."""
    module, speculator = importlib.import_module(FORWARDS), speculator_of()
    speculator.arange_np, speculator.max_model_len, speculator.device = range(5), 9, torch.device("cpu")
    speculator.num_speculative_steps = 3
    speculator.runner = SimpleNamespace(lora_config=None, speculator=speculator)
    speculator.kv_cache_config, speculator.draft_attn_layer_names = SimpleNamespace(kv_cache_groups=[]), set[str]()
    made = torch.randn(4, WIDTH).bfloat16(), torch.randn(4, WIDTH).bfloat16()

    def run(*_: object, **__: object) -> tuple[Tensor, Tensor]:
        return made

    monkeypatch.setattr(module.Forwards, "_run", run)
    forwards = module.Forwards(speculator, 4, Forward, head_of(plan_of(), speculator) if computed else None, None)
    where = {"positions": None, "slots": None}
    extended = forwards.extend(tokens=torch.zeros(2, 2), select=torch.tensor([1, 3]), **where)
    drafted = forwards.draft(step=0, tokens=torch.zeros(4, 1), **where)
    assert torch.equal(extended.hidden, made[1][[1, 3]]) and torch.equal(drafted.hidden, made[1][:, None])
    for result, rows in ((extended, made[0][[1, 3]]), (drafted, made[0][:, None])):
        logits = None if computed else rows @ speculator.model.heads[0].weight.T
        assert (result.states is None) != (result.logits is None)
        assert torch.equal(result.states if computed else result.logits, rows if computed else logits)


def test_what_a_head_is_told_around_its_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM tells its speculators: what the first forward picked is kept of the last accepted token, and reused."""
    module, told = importlib.import_module(FORWARDS), list[Any]()

    class Speculator(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            return lambda count: told.append((name, count, self.last_token_indices[:count].tolist()))

    def run(name: str) -> Any:
        return lambda *_, **__: told.append(name) or name

    speculator = Speculator(last_token_indices=torch.full((4,), -1))
    forwards = object.__new__(module.HeadForwards)
    forwards._speculator = speculator
    monkeypatch.setattr(module.Forwards, "extend", run("extend"))
    monkeypatch.setattr(module.Forwards, "draft", run("draft"))
    assert forwards.extend(select=torch.tensor([2, 5])) == "extend"
    assert forwards.draft(rows=torch.tensor([1, 3])) == "draft"
    assert told == [
        ("on_prefill_begin", 2, [-1, -1]), "extend", ("on_prefill_end", 2, [2, 5]),
        ("on_multi_step_decode_begin", 2, [2, 5]), "draft", ("on_multi_step_decode_end", 2, [2, 5]),
    ]  # fmt: skip


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> GroupCoordinator:
    """This process is the second of two ranks."""
    return ranks(monkeypatch, GroupCoordinator(2, 1))


def shared(padded: int, **changes: Any) -> Any:
    """A speculator of whose head a rank has so many entries."""
    speculator = speculator_of(padded=padded)
    vars(speculator.model.heads[0]).update({"tp_size": 2, "num_added_embeddings": 0} | changes)
    return speculator


def test_a_rank_gives_its_shard_or_entries_of_a_map(
    second: GroupCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank's are zeros here, for nobody has sent them."""
    speculator = shared(64)
    (weight,) = head_of(plan_of("int8", ranks=2), speculator).tables().values()
    assert weight.data_ptr() == speculator.model.heads[0].weight.data_ptr() and len(weight) == 64
    (tmp_path / "tokens.json").write_text(str(PART))
    monkeypatch.setenv("SPECC_TOKEN_MAP", str(tmp_path / "tokens.json"))
    head = head_of(plan_of("int8", ranks=2, vocab_size=len(PART), token_map="engine"), speculator)
    tables = head.tables()
    assert torch.equal(head.weight, speculator.model.heads[0].weight)
    assert tables["d2t"].tolist() == PART
    assert not tables["draft_head"][:3].any()
    assert torch.equal(tables["draft_head"][3], speculator.model.heads[0].weight[PART[3] - 64])


@pytest.mark.parametrize("changes", [{"tp_size": 4}, {"num_added_embeddings": 2}], ids=str)
def test_a_head_that_ranks_do_not_share_as_the_program_does(changes: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="not a part of the vocabulary on each rank"):
        head_of(plan_of(ranks=2), shared(64, **changes))
    with pytest.raises(RuntimeError, match="has 88 entries, the program reads 90"):
        head_of(plan_of(ranks=2), shared(44))


def test_where_one_rank_fails_all_do(second: GroupCoordinator) -> None:
    parallel = importlib.import_module("specc.engines.vllm.server.parallel")
    assert parallel.alike(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        parallel.alike(lambda: 1 // 0)
    second.answer = lambda questions: dict.fromkeys(questions, "no file")
    with pytest.raises(RuntimeError, match="is no file on rank 0, None on rank 1"):
        parallel.alike(lambda: 7)


@pytest.mark.parametrize(
    ("name", "best", "why"),
    [
        ("DSparkDeepseekV4ForCausalLM", 8, "of the 8 best tokens"),
        ("Gemma4DSparkForCausalLM", None, "is that of a Gemma4DSparkForCausalLM"),
    ],
)
def test_a_bias_that_is_another_one(name: str, best: int | None, why: str) -> None:
    speculator = SimpleNamespace(model=type(name, (), {})(), _draft_topk=best)
    with pytest.raises(RuntimeError, match=why):
        importlib.import_module(BLOCKS).markov_tables(speculator, None)


@pytest.mark.parametrize("scores", ["all", "a part by a file", "a part of its own"])
def test_biases_are_of_the_tokens_that_are_scored(scores: str) -> None:
    """Where a file says which these are, the program takes their rows of those of all tokens."""
    whole, offsets = scores != "a part of its own", torch.tensor(PART) - torch.arange(len(PART))
    first, second = (torch.randn(rows, 24).bfloat16() for rows in (TOKENS, PADDED if whole else len(PART)))
    tables = {"markov_w1": SimpleNamespace(weight=first), "markov_w2": SimpleNamespace(weight=second)}
    model = type("Qwen3DSparkForCausalLM", (), {})()
    model.model = SimpleNamespace(markov_head=SimpleNamespace(**tables))
    model.draft_id_to_target_id, model.logits_processor = None if whole else offsets, SimpleNamespace(scale=1.0)
    sizes = {"vocab_size": TOKENS, "dtype": "bfloat16", "hidden_size": WIDTH, "num_layers": 4}
    part = {} if scores == "all" else {"vocab_size": len(PART), "token_map": "engine"}
    draft = sizes | {"head": "weights", "markov_rank": 24, "num_aux_layers": 2} | part
    (plan,) = planned("DSPARK", engine="vllm", page_size=16, target=sizes, draft=draft)
    speculator = SimpleNamespace(model=model, _draft_topk=None)
    brought = importlib.import_module(BLOCKS).markov_tables(speculator, plan)
    head = torch.randn(TOKENS if whole else len(PART), WIDTH).bfloat16()
    more = {} if scores == "all" else {"d2t": torch.tensor(PART)}
    read = draft_tables(plan, {"draft_head": head, **brought, **more})["markov_weight"]
    assert torch.equal(read, second[PART] if scores == "a part by a file" else second[: TOKENS if whole else len(PART)])
