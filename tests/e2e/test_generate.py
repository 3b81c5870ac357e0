"""From a configuration to text: built, installed, run with real models, compared with transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from memoryless import accepted_lengths, emitted

from specc.lab.engine.engine import Engine
from specc.lab.engine.reference import compare, greedy
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import DRAFTS, PROMPTS, ROOT, Case, Models, build_wheel

NEW = 40
CASES = [
    *(
        Case(algorithm, models, page_size=page_size, overlap=overlap)
        for algorithm in ("STANDALONE", "EAGLE")
        for models in ("trained", "random")
        for page_size, overlap in ((1, True), (16, False))
    ),
    *(
        Case(algorithm, "random", steps=steps, page_size=page_size, overlap=overlap)
        for algorithm in ("STANDALONE", "EAGLE")
        for steps, page_size, overlap in ((1, 16, True), (1, 1, False), (5, 1, False), (5, 16, True))
    ),
    Case("STANDALONE", "random", draft_positions="shifted"),
    Case("EAGLE3", "trained"),
    Case("EAGLE3", "trained", page_size=16, overlap=False),
    Case("EAGLE3", "random", steps=5, page_size=16),
    Case("EAGLE3", "random", steps=1, overlap=False),
    Case("FROZEN_KV_MTP", "trained"),
    Case("FROZEN_KV_MTP", "random", steps=5, page_size=16, overlap=False),
    Case("FROZEN_KV_MTP", "random", steps=1),
    Case("MULTI_LAYER_EAGLE", "trained"),
    Case("MULTI_LAYER_EAGLE", "random", steps=5, page_size=16, overlap=False),
    Case("MULTI_LAYER_EAGLE", "random", steps=1, overlap=False),
    Case("DFLASH", "trained"),
    Case("DFLASH", "random", steps=5, page_size=16, overlap=False),
    Case("DFLASH", "random", steps=1, page_size=16),
    Case("DSPARK", "random", steps=4, page_size=16, overlap=False),
    Case("DSPARK", "random", steps=1, page_size=16),
    Case("DFLASH2", "random", steps=4, page_size=16, overlap=False),
    Case("DFLASH2", "random", steps=1, page_size=16),
    Case("EAGLE3", "unlisted"),
    Case("DFLASH", "unlisted"),
    Case("DSPARK", "unlisted"),
    Case("DFLASH2", "unlisted"),
    Case("NGRAM", "trained"),
    Case("NGRAM", "random", steps=5, page_size=16, overlap=False),
    Case("NGRAM", "random", steps=1, page_size=16),
]
LOOKED_UP = Case("NGRAM", "trained", page_size=16, topk=4, nodes=13, corpus=True)
REDUCED = [
    *(
        Case(algorithm, "trained", page_size=page_size, reduced=True)
        for algorithm, page_size in zip(DRAFTS, (1, 16, 1, 16, 1, 16), strict=True)
    ),
    *(
        Case(algorithm, "trained", page_size=page_size, topk=3, nodes=10, reduced=True)
        for algorithm, page_size in (("STANDALONE", 16), ("EAGLE", 1), ("EAGLE3", 16), ("FROZEN_KV_MTP", 1))
    ),
]
TREES = [
    Case("EAGLE", "trained", page_size=16, topk=4, nodes=16),
    Case("STANDALONE", "trained", page_size=1, topk=4, nodes=16, mask="bitpacked"),
    Case("EAGLE", "random", steps=1, page_size=64, overlap=False, topk=8, nodes=6, mask="full"),
    Case("STANDALONE", "random", steps=2, page_size=16, overlap=False, topk=2, nodes=5, mask="slots"),
    Case("EAGLE3", "trained", topk=4, nodes=16, mask="bitpacked"),
    Case("EAGLE3", "trained", page_size=16, topk=4, nodes=16),
    Case("EAGLE3", "random", steps=2, page_size=16, overlap=False, topk=2, nodes=5),
    Case("EAGLE3", "unlisted", page_size=16, topk=2, nodes=6),
    Case("FROZEN_KV_MTP", "trained", page_size=16, topk=4, nodes=16, mask="slots"),
    Case("FROZEN_KV_MTP", "random", steps=2, overlap=False, topk=2, nodes=5, mask="bitpacked"),
    Case("FROZEN_KV_MTP", "random", steps=1, page_size=16, topk=3, nodes=4, mask="full"),
    LOOKED_UP,
    Case("NGRAM", "random", steps=2, overlap=False, topk=2, nodes=4, mask="full"),
    Case("NGRAM", "random", steps=3, page_size=16, topk=3, nodes=9, mask="slots"),
]
HEADS = [
    *(
        Case(algorithm, "trained", page_size=page_size, head="weights")
        for algorithm, page_size in zip(DRAFTS, (1, 16, 1, 16, 1, 16), strict=True)
    ),
    Case("STANDALONE", "trained", page_size=16, overlap=False, reduced=True, head="int8"),
    Case("EAGLE", "trained", topk=4, nodes=16, head="fp8"),
    Case("EAGLE3", "trained", page_size=16, topk=3, nodes=10, reduced=True, head="weights"),
    Case("FROZEN_KV_MTP", "random", steps=2, topk=2, nodes=5, head="int8"),
]
BUDGETS = [
    Case("STANDALONE", "trained", budget=2),
    Case("STANDALONE", "random", steps=5, page_size=16, overlap=False, budget=3),
    Case("EAGLE", "trained", page_size=16, budget=2),
    Case("EAGLE3", "trained", budget=3, reduced=True),
    Case("FROZEN_KV_MTP", "trained", page_size=16, budget=2, head="weights"),
    Case("DFLASH", "trained", budget=2),
    Case("DFLASH", "random", steps=5, page_size=16, overlap=False, budget=4),
    Case("DSPARK", "random", steps=3, budget=2),
    Case("DSPARK", "random", steps=4, page_size=16, overlap=False, budget=3),
    Case("DFLASH2", "random", steps=4, budget=3),
    Case("STANDALONE", "trained", topk=4, nodes=16, budget=4),
    Case("STANDALONE", "random", page_size=16, topk=2, nodes=8, mask="full", overlap=False, budget=3),
    Case("EAGLE", "trained", page_size=16, topk=4, nodes=16, mask="slots", budget=5),
    Case("EAGLE3", "trained", topk=3, nodes=10, mask="bitpacked", budget=3, reduced=True),
    Case("FROZEN_KV_MTP", "trained", topk=2, nodes=8, budget=2, head="weights"),
    Case("DFLASH", "random", topk=3, nodes=12, budget=4),
]
"""The target has fewer rows than drafts."""
CHAINS, CASES = [*CASES, *REDUCED[: len(DRAFTS)], *HEADS[: len(DRAFTS)]], [*CASES, *REDUCED, *TREES, *HEADS, *BUDGETS]
TRAINED = [case for case in CASES if case.models == "trained" and case.overlap]
TRAINED_CHAINS = [case for case in CHAINS if case.models == "trained" and case.algorithm in DRAFTS]
MIXED = [
    Case("STANDALONE", "trained", mixed=True),
    Case("EAGLE", "trained", page_size=16, topk=4, nodes=16, mixed=True),
    Case("FROZEN_KV_MTP", "trained", mixed=True),
    Case("MULTI_LAYER_EAGLE", "trained", mixed=True),
    Case("DFLASH", "trained", mixed=True),
]
COMMANDS = [TREES[0], LOOKED_UP]
"""With a draft, and with a corpus in its place; `make demo` runs the command with every algorithm."""


class TargetAlone:
    """What `generate` writes with the targets, each text once: all engines of a case's models have the same target."""

    def __init__(self) -> None:
        self._texts: dict[Hashable, tuple[int, ...]] = {}

    def write(
        self, case: Case, engine: Engine, prompt: Sequence[int], new: int, eos: frozenset[int] = frozenset()
    ) -> tuple[int, ...]:
        """The new tokens after a prompt."""
        key = (case.models, tuple(prompt), new, eos)
        if key not in self._texts:
            self._texts[key] = greedy(engine.target, prompt, new, eos)
        return self._texts[key]


@pytest.fixture(scope="module")
def alone() -> TargetAlone:
    return TargetAlone()


def expect_greedy(alone: TargetAlone, case: Case, engine: Engine, conditions: StopConditions) -> None:
    """Complete all prompts at once and compare each, token for token, with `generate`."""
    for completion in engine.generate(PROMPTS, conditions):
        prompt = completion.prompt_ids
        expected = alone.write(case, engine, prompt, conditions.max_new_tokens, conditions.eos_token_ids)
        assert completion.token_ids == expected
        assert completion.text == engine.tokenizer.decode(expected, skip_special_tokens=True)
    assert engine.allocator.free_pages + len(engine.prefixes) == engine.allocator.capacity
    assert engine.prefixes.evictable() == len(engine.prefixes)
    assert engine.stats.unhealthy == 0


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_text_equals_generate(case: Case, make_engine: Callable[..., Engine], alone: TargetAlone) -> None:
    engine = make_engine(case)
    assert engine.plan.kv.page_size == case.page_size
    assert engine.plan.kv.shifted is (case.algorithm != "STANDALONE" or case.draft_positions == "shifted")
    assert (engine.draft is None) is (case.algorithm == "NGRAM")
    expect_greedy(alone, case, engine, StopConditions(NEW, engine.target.eos_token_ids))


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.name)
def test_scores_in_f32_beside_hidden_states_in_bf16(case: Case, make_engine: Callable[..., Engine]) -> None:
    """As engines have them; the text is that of `generate` up to near-ties of its scores in bf16."""
    engine = make_engine(case)
    records = engine.plan.models.values()
    assert {(record.dtype, record.logits_dtype) for record in records} == {("bf16", "f32")}
    for completion in engine.generate(PROMPTS, StopConditions(NEW)):
        assert compare(engine.target, completion, NEW).right
    assert engine.stats.mean_accept_len > 1.5
    assert engine.stats.unhealthy == 0


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_trained_drafts_save_steps(case: Case, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(case)
    engine.generate(PROMPTS, StopConditions(NEW))
    assert engine.stats.mean_accept_len > 1.5


@pytest.mark.parametrize(
    "case",
    [case for case in CHAINS if case.models == "trained" and case.algorithm in DRAFTS],
    ids=lambda case: case.name,
)
def test_steps_accept_what_a_draft_without_kv_memory_would_get_right(
    case: Case, make_engine: Callable[..., Engine], alone: TargetAlone
) -> None:
    engine = make_engine(case)
    for completion in engine.generate(PROMPTS, StopConditions(NEW)):
        prompt = completion.prompt_ids
        text = (*prompt, *alone.write(case, engine, prompt, NEW + case.steps))
        expected = accepted_lengths(
            engine.target, engine.draft, text, len(prompt), case.steps, shifted=engine.plan.kv.shifted
        )
        assert completion.accept_lens == emitted(expected, NEW - 1)


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_retraction_keeps_the_text(case: Case, make_engine: Callable[..., Engine], alone: TargetAlone) -> None:
    roomy = make_engine(case, max_context=128)
    pages = [roomy.allocator.pages_for(len(roomy.encode(prompt)) + roomy.plan.kv.reserve) for prompt in PROMPTS]
    longest = roomy.allocator.pages_for(128 + roomy.plan.kv.reserve)
    # room for as many requests as run at once to begin, not for them to go on
    engine = make_engine(case, num_pages=1 + max(longest, sum(pages[:4])), max_context=128)
    expect_greedy(alone, case, engine, StopConditions(NEW))
    assert engine.stats.retractions > 0


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_eos_within_a_step(case: Case, make_engine: Callable[..., Engine], alone: TargetAlone) -> None:
    engine = make_engine(case)
    prompt = engine.encode(PROMPTS[0])
    free = alone.write(case, engine, prompt, NEW)
    for token in sorted(set(free))[:6]:
        (completion,) = engine.generate([prompt], StopConditions(NEW, frozenset({token})))
        assert completion.token_ids == free[: free.index(token) + 1]


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_requests_join_and_leave(case: Case, make_engine: Callable[..., Engine], alone: TargetAlone) -> None:
    engine = make_engine(case)
    done = []
    for count, prompt in enumerate(PROMPTS):
        engine.add(prompt, StopConditions(8 + 7 * count))
        done += engine.step()
    while engine.has_work:
        done += engine.step()
    for completion in done:
        new = 8 + 7 * completion.request_id
        assert completion.token_ids == alone.write(case, engine, completion.prompt_ids, new)
    assert len(done) == len(PROMPTS)


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case.name)
def test_the_command_line(
    case: Case, build: Callable[[Case], ModuleType], models: dict[str, Models], tmp_path: Path
) -> None:
    directories = models[case.models]
    wheel = build_wheel(case, directories, tmp_path)
    command = [sys.executable, "-m", "specc.cli.main", "run", str(wheel), "--check", "--format", "json"]
    command += ["--target", str(directories.target)]
    command += ["--draft", str(directories.drafts[case.algorithm])] if case.algorithm in DRAFTS else []
    command += ["--corpus", str(directories.corpus)] if case.corpus else []
    command += ["--max-new-tokens", "16", *(word for prompt in PROMPTS for word in ("--prompt", prompt))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    record = json.loads(result.stdout)
    assert [item["check"]["identical"] for item in record["completions"]] == [True] * len(PROMPTS)
    assert record["stats"]["requests"] == len(PROMPTS)
