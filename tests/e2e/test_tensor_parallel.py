"""Programs with sharded logits in 1, 2, 4 and 8 processes: what one rank computes, bit for bit, and no hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ports import free_port
from programs import config_text as small_text
from programs import written

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.lab.engine.engine import Engine
from specc.lab.engine.reference import greedy

from .conftest import PROMPTS, ROOT, Case, Models

SECONDS = 240.0
RANKS = (1, 2, 4, 8)
TREE = {"topk": 3, "num_draft_tokens": 8, "mask": "qlen"}
CASES: dict[str, dict[str, Any]] = {
    "eagle": {"algorithm": "EAGLE", "outputs": ["logprobs"]},
    "eagle_tree": {"algorithm": "EAGLE", "outputs": ["logprobs", "accept_index"], **TREE},
    "standalone_tree": {"algorithm": "STANDALONE", "overlap": False, "vocab": 96, **TREE},
    "modules": {"algorithm": "MULTI_LAYER_EAGLE", "dtype": "bfloat16"},
    "reduced": {"algorithm": "EAGLE", "reduced": 50},
    "reduced_tree": {"algorithm": "EAGLE", "reduced": 64, **TREE},
    "head": {"algorithm": "EAGLE", "head": "weights", "logits": "gathered"},
    "head_tree": {"algorithm": "EAGLE", "head": "int8", **TREE},
    "head_of_a_part": {"algorithm": "STANDALONE", "reduced": 50, "head": "fp8", "logits": "gathered", "overlap": False},
    "head_of_a_part_tree": {"algorithm": "EAGLE", "reduced": 50, "head": "weights", "dtype": "bfloat16", **TREE},
    "head_of_modules": {"algorithm": "MULTI_LAYER_EAGLE", "head": "int8", "outputs": ["logprobs"]},
}
"""84 tokens on 96 columns leave the last rank of eight none but padding; 96 tokens have no padding. Of 50 tokens that a
draft scores on 64 columns the last one has none either. Heads that a program computes are shared out whether the
target's logits are or not."""


def text_of(name: str, ranks: int | None) -> str:
    """The configuration of a case for so many ranks, or with whole logits."""
    keys = {"buckets": [1, 2, 4], "vocab": 84, "dtype": "float32"} | CASES[name]
    vocab = keys.pop("vocab")
    model = {"vocab_size": vocab, "dtype": keys.pop("dtype")}
    draft = model | ({"vocab_size": keys.pop("reduced"), "token_map": "engine"} if "reduced" in keys else {})
    draft |= {"head": keys.pop("head")} if "head" in keys else {}
    logits = keys.pop("logits", "sharded") if ranks != 1 else "sharded"
    if ranks is not None:
        keys |= {"logits": logits, "tensor_parallel": ranks}
        model |= {"padded_vocab_size": 96} if logits == "sharded" else {}
        draft["padded_vocab_size"] = 64 if "token_map" in draft else 96
    return small_text(keys.pop("algorithm"), target=model, draft=draft, **keys)


@cache
def plan_of(text: str) -> dict[str, Any]:
    """The plan of a configuration, as its file has it."""
    return written(build_program(load_text(text, Path("ranks.yaml"), names(), needs)).plan)


def job(name: str, ranks: int | None, **more: Any) -> dict[str, Any]:
    """What the ranks are told."""
    text = text_of(name, ranks)
    return {"config": text, "plan": plan_of(text), "ranks": ranks or 1, "seed": 7, **more}


def run_ranks(jobs: list[dict[str, Any]], size: int) -> list[list[Any]]:
    """Run a process for each rank; their answers, one for each job."""
    port = str(free_port())
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])))
    command = [sys.executable, "-m", "e2e.tensor_parallel_rank"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes |= {"cwd": ROOT / "tests", "env": os.environ | {"PYTHONPATH": paths}}
    processes = [subprocess.Popen([*command, str(rank), str(size), port], **pipes) for rank in range(size)]
    try:
        for process in processes:
            assert process.stdin
            process.stdin.write(json.dumps(jobs))
            process.stdin.close()
            process.stdin = None
        with ThreadPoolExecutor(size) as pool:  # each waits for those whose answers nobody reads
            outputs = list(pool.map(lambda process: process.communicate(timeout=SECONDS)[0], processes))
    finally:
        for process in processes:
            process.kill()
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, int | None], list[Any]]:
    """What each rank says of each case, by case and number of ranks; None stands for whole logits."""
    keys = [(name, ranks) for name in CASES for ranks in (None, *RANKS)]
    by_rank = run_ranks([job(*key) for key in keys], max(RANKS))
    return {key: [rank[index] for rank in by_rank][: key[1] or 1] for index, key in enumerate(keys)}


@pytest.mark.parametrize("name", CASES)
def test_ranks_compute_what_one_rank_does(name: str, answers: dict[tuple[str, int | None], list[Any]]) -> None:
    """Tokens, lengths, health, log-probabilities and everything carried, of every rank, by bits."""
    (alone,) = answers[name, 1]
    assert alone["error"] is None
    assert any(max(step["accept_lens"]) > 1 for step in alone["out"][1:])
    assert any(any(step["health"]) for step in alone["out"])
    for ranks in RANKS[1:]:
        for rank, answer in enumerate(answers[name, ranks]):
            assert answer == alone, f"rank {rank} of {ranks}"


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_whole_logits(name: str, answers: dict[tuple[str, int | None], list[Any]]) -> None:
    """Sums in another order differ in their last bits, and trees of close scores by them, but no text does."""
    ((alone,), (whole,)) = answers[name, 1], answers[name, None]
    same = ("predict", "accept_lens", "new_seq_lens", "bonus", "health")
    for sharded_step, whole_step in zip(alone["out"], whole["out"], strict=True):
        assert {key: sharded_step[key] for key in same if key in sharded_step} == {
            key: whole_step[key] for key in same if key in sharded_step
        }
    assert alone["pools"]["bonus"] == whole["pools"]["bonus"]


def test_a_rank_that_dies_or_runs_something_else_is_named() -> None:
    """The others get a typed error, at once or after the timeout of the group."""
    task = job("eagle", 2)
    first, second = run_ranks([{**task, "other": 1}, {**task, "dies": 1, "patience": 10}], 2)
    assert first[0]["error"] == second[0]["error"]
    assert first[0]["error"].startswith("BindError: rank 1 runs another program than rank 0")
    assert first[1]["error"].startswith("CollectiveError: the ranks cannot gather their records: ")
    assert len(second) == 1


def test_what_is_sent_does_not_depend_on_the_vocabulary() -> None:
    """To each of 3 others, of a request: two drafts of 3 branches and one extend of 4 words a row, 8 nodes of 2."""
    small, large = (
        plan_of(text_of("eagle_tree", 4).replace("84", str(vocab)).replace("96", str(columns)))
        for vocab, columns in ((84, 96), (8_000, 8_192))
    )
    assert [total["wire_bytes"] for total in small["totals"].values()] == [3 * 8 * n for n in (44, 88, 176)]
    assert [total["wire_bytes"] for total in large["totals"].values()] == [3 * 8 * n for n in (44, 88, 176)]


SHARDED = Case("EAGLE", "trained", ranks=2)


def test_the_reference_engine_on_two_ranks(
    build: Callable[[Case], ModuleType], site: Path, models: dict[str, Models], make_engine: Callable[..., Engine]
) -> None:
    """They write the target's own texts."""
    build(SHARDED)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    where["PYTHONPATH"] = os.pathsep.join((str(site), str(ROOT)))
    directories = models["trained"].target, models["trained"].drafts["EAGLE"]
    command = [sys.executable, "-m", "e2e.sharded_rank", f"specc_program_{SHARDED.name}", *map(str, directories)]
    command.append(json.dumps(PROMPTS[:3]))
    options: dict[str, Any] = {"cwd": ROOT / "tests", "stdout": subprocess.PIPE}
    ranks = [subprocess.Popen(command, env=os.environ | where | {"RANK": str(rank)}, **options) for rank in range(2)]
    outputs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    target = make_engine(Case("EAGLE", "trained")).target
    encoded = [target.tokenizer.encode(prompt) for prompt in PROMPTS[:3]]
    assert json.loads(outputs[0]) == [list(greedy(target, ids, 16, target.eos_token_ids)) for ids in encoded]
    assert not outputs[1]
