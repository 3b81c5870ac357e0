"""The page of a generated package says what its program really calls, is brought and hands back."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from fakes.plans import chain_plan, program_of
from fakes.toy_wheel import toy_wheel
from programs import planned
from torch import Tensor
from wheel.wheelfile import WheelFile

from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import PROMPT, Output, Plan
from specc.runtime.rotated import RotatedStep
from specc.runtime.semantics.convention import DTYPES

TREE: dict[str, Any] = {"topk": 2, "num_draft_tokens": 6, "page_size": 4}
SCORED = {"outputs": ["logprobs", "hidden_states"], "best_logprobs": 3}
PROGRAMS: list[tuple[str, dict[str, Any]]] = [
    ("STANDALONE", {}),
    ("STANDALONE", TREE | {"verify": "target_only", "sampling": ["grammar", "penalties"]}),
    ("EAGLE", SCORED),
    ("EAGLE", TREE | {"mask": "full", "context_length": 64}),
    ("EAGLE3", {"num_steps": 1}),
    ("FROZEN_KV_MTP", {}),
    ("MULTI_LAYER_EAGLE", {"verify": "rejection"}),
    ("DFLASH", {}),
    ("NGRAM", TREE),
]
PROMPTS = {2: [4, 9, 2], 1: [7, 1]}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def page_of(plan: Plan, out: Path, **changes: Any) -> str:
    """The docstring of the package of a plan's wheel."""
    sources = {function.source: "" for function in (*plan.kernels.values(), *plan.ops.values())}
    wheel = toy_wheel(out, **{"plan": plan, "sources": sources, "artifacts": []} | changes)
    with WheelFile(wheel) as archive:
        found = ast.get_docstring(ast.parse(archive.read("specc_program_toy_chain/__init__.py")), clean=False)
    assert found
    return found


def blocks(page: str, title: str) -> list[str]:
    """The indented entries behind a line that begins so, each as one line."""
    body = page.partition(f"\n{title}")[2].partition("\n\n")[2].partition("\n\n")[0]
    return re.sub(r"\n {8}", " ", body).replace("\n    ", "\n").strip().splitlines()


def types(text: str, sizes: dict[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """`name=i64[b, 4]` or `name: i64[b, 4]` of an entry, by name."""
    found = re.findall(r"(\w+)(?:=|: )(\w+)\[([^\]]*)\]", text)
    number = {**sizes}.get
    return {name: (dtype, tuple(int(number(axis, axis)) for axis in shape.split(", "))) for name, dtype, shape in found}


def seen(values: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtypes and shapes of the tensors among them."""
    return {
        name: (NAMES[tensor.dtype], tuple(tensor.shape))
        for name, tensor in values.items()
        if isinstance(tensor, Tensor)
    }


class Recorder:
    """An engine whose calls are kept: name, step, capture, tensors that went in and came out."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.calls = engine, list[tuple[str, Any, Any, dict[str, Any], dict[str, Any]]]()

    def __getattr__(self, name: str) -> Any:
        forward = getattr(self.engine, name)

        def record(**given: Any) -> Any:
            result = forward(**given)
            there = {key: value for key, value in vars(result).items() if value is not None} if result else {}
            self.calls.append((name, given.get("step"), given.get("capture"), seen(given), seen(there)))
            return result

        return record


@pytest.mark.parametrize(("algorithm", "keys"), PROGRAMS, ids=lambda part: part if isinstance(part, str) else "")
def test_forwards_and_results_are_those_of_a_run(algorithm: str, keys: dict[str, Any], tmp_path: Path) -> None:
    plan = planned(algorithm, **keys)[0]
    engine = Engine.of_plan(plan)
    recorder = Recorder(engine)
    engine.prompts |= PROMPTS
    bound = {owner: buffers for owner, buffers in engine.kv.items() if plan.kv_pools[owner].bound}
    step = program_of(plan).bind(recorder, engine.table, bound)
    lengths = [len(prompt) for prompt in PROMPTS.values()]
    tokens = [token for prompt in PROMPTS.values() for token in prompt] if PROMPT in plan.inputs else None
    if plan.samples:
        step.set_sampling(list(PROMPTS), [Sampling(0.7, 5)] * len(PROMPTS))
    first = seen(dict(step.prefill(Batch(list(PROMPTS), lengths, tokens)).outputs))
    result = seen(dict(step.decode(Batch(list(PROMPTS), lengths)).outputs))

    page = page_of(plan, tmp_path)
    sizes = {"b": len(PROMPTS), "T": sum(lengths), "C": engine.table.shape[1]}
    listed: list[tuple[str, Any, Any, dict[str, Any], dict[str, Any]]] = []
    for text in blocks(page, "* `callbacks`"):
        given, _, returned = text.partition(" -> ")
        name, numbers, capture = (
            given.partition("(")[0],
            re.search(r"step=([\d|]+)", given),
            re.search(r"'(\w+)'", given),
        )
        for number in numbers[1].split("|") if numbers else [None]:
            which = None if number is None else int(number)
            how = capture[1] if capture else None
            listed.append((name, which, how, types(given, sizes), types(returned, sizes)))
    assert sorted(map(repr, listed)) == sorted(map(repr, recorder.calls))
    for title, outputs in (("`decode` hands", result), ("and `prefill`", first)):
        assert {name: type_ for text in blocks(page, title) for name, type_ in types(text, sizes).items()} == outputs


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_a_rotated_step_is_two_calls(algorithm: str, tmp_path: Path) -> None:
    plan = planned(algorithm, step="rotated")[0]
    engine = Engine.of_plan(planned(algorithm)[0])
    recorder = Recorder(engine)
    engine.prompts |= PROMPTS
    step = program_of(plan).bind(recorder, engine.table)
    assert isinstance(step, RotatedStep)
    batch = Batch(list(PROMPTS), [len(prompt) for prompt in PROMPTS.values()])
    first = seen(dict(step.prefill(batch).outputs))
    given = {"logits": torch.zeros(len(PROMPTS), 4, plan.dims["V"])}
    given |= {"hidden": torch.zeros(len(PROMPTS), 4, 64)} if step.reads_hidden else {}
    committed = seen(dict(step.commit(batch, given["logits"]).outputs))
    proposed = seen(dict(step.propose(batch, given.get("hidden")).outputs))

    page = page_of(plan, tmp_path)
    sizes = {"b": len(PROMPTS), "T": sum(batch.seq_lens), "C": engine.table.shape[1]}
    assert "forwards, then `prefill`, `commit` and `propose`.\n" in page
    assert (".propose(k.Batch(rows, lengths), hidden)" in page) == step.reads_hidden
    named = {text.partition("(")[0] for text in blocks(page, "* `callbacks`")}
    assert named == {name for name, *_ in recorder.calls}
    assert len(blocks(page, "* `callbacks`")) == len(set(blocks(page, "* `callbacks`")))
    assert {
        name: type_ for text in blocks(page, "* what the target") for name, type_ in types(text, sizes).items()
    } == seen(given)
    for title, outputs in (("`commit` hands", committed), ("`propose`:", proposed), ("and `prefill`", first)):
        assert {name: type_ for text in blocks(page, title) for name, type_ in types(text, sizes).items()} == outputs


def test_what_is_brought(tmp_path: Path) -> None:
    tree = page_of(planned("EAGLE", **TREE)[0], tmp_path)
    assert "step = program.bind(callbacks, req_to_token, kv_pools)\n" in tree
    assert "* `kv_pools`: the KV buffers of the draft and the target, by owner" in tree
    assert "set_sampling(rows, params)" not in tree
    chain = page_of(planned("STANDALONE", verify="target_only")[0], tmp_path)
    assert "step = program.bind(callbacks, req_to_token)\n    step.set_sampling(rows, params)  # " in chain
    assert "* `req_to_token` i32[5, C]: " in chain
    assert "kv_pools" not in chain


def test_several_shapes_are_named(tmp_path: Path) -> None:
    plan = planned("EAGLE", num_steps=4)[0]
    assert "compiled for the shapes" not in page_of(plan, tmp_path)
    shallow = replace(plan, dims={**plan.dims, "S": 1})
    named = page_of(plan, tmp_path, plans={"plan.json": plan, "plan.1.json": shallow})
    assert '\nIt was compiled for the shapes 1, 4: `step.at("1")` is the step of one.\n' in named
    assert "target(tokens=i64[b, 5]," in named


def test_a_plugins_output_has_no_meaning_and_any_name(tmp_path: Path) -> None:
    plan = read_plan(chain_plan())
    odd = Output('a\\b"""', plan.output("bonus", "step").value, "step")
    page = page_of(replace(plan, outputs=(*plan.outputs, odd)), tmp_path)
    assert '\n    a\\b""": i32[b]\n' in page


def test_the_page_is_no_wider_than_it_says(tmp_path: Path) -> None:
    page = page_of(planned("EAGLE", **TREE, **SCORED)[0], tmp_path)
    assert max(len(line) for line in page.splitlines()) <= 112
