"""Whatever the configuration: it builds, or it is a DiagnosticError; never anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from programs import written
from strategies import changed_configs, configs, to_yaml

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.render import render
from specc.runtime.plan.files.plan_json import read_plan


@settings(max_examples=40)
@given(configs())
def test_valid_configurations_build(keys: dict[str, Any]) -> None:
    built = build_program(load_text(to_yaml(keys), Path("random.yaml"), names(), needs))
    plan = built.plan
    assert read_plan(written(plan)) == plan
    reads = keys["algorithm"] not in ("STANDALONE", "NGRAM")
    for bucket, totals in plan.totals.items():
        assert bucket in keys["buckets"]
        assert totals.launches_in_graph == launches(keys)
        assert (totals.host_syncs, totals.launches_outside_graph) == (0, 0)
        assert (totals.hidden_state_bytes > 0) == (reads or "hidden_states" in keys["outputs"])
    for source in built.generated.sources:
        compile(source.text, source.name, "exec")
    parse_module(print_module(built.module))


def launches(keys: dict[str, Any]) -> int:
    """Launches of one step: its rows, verification, a tree's compaction; what else there is differs by algorithm."""
    steps, tree = keys["num_steps"], keys["topk"] > 1
    # Log-probabilities of drawn tokens are a launch, and so is what acceptance by probabilities leaves.
    scored = keys["verify"] != "greedy" and "logprobs" in keys["outputs"]
    around = 2 + tree + scored + (keys["verify"] in ("rejection", "block"))
    tails = tree and keys["page_size"] > 1 and steps > 1
    waits = tree and steps == 1 and keys["mask"] == "full"  # its prefixes are filled by all programs, from lengths
    recurrent = steps - 1 + waits + 1 + tails  # of draft forwards, and of extend
    drawn = keys["verify"] in ("rejection", "block") or keys.get("draft_sampling") == "coupled"
    # Drafts behind a Markov head that are neither drawn nor ranked take a launch each; one puts them into the chain.
    told = 2 * steps if tree or drawn or keys.get("budget") else steps + 1
    between = {
        "FROZEN_KV_MTP": steps + 1,  # of forwards, and the last row
        "MULTI_LAYER_EAGLE": steps,
        "DFLASH": 1,
        "DSPARK": told,
        "DFLASH2": 1 + drawn * steps,
        # Positions come before; rotated, a launch keeps the drafts of the next step.
        "NGRAM": 1
        + (tree and keys["mask"] == "full" and keys["verify"] == "target_only")
        + (keys.get("step") == "rotated"),
    }
    heads = {"DFLASH": 1, "DFLASH2": 1, "DSPARK": 1, "NGRAM": 0}.get(keys["algorithm"], steps)
    head = keys.get("draft", {}).get("head", "engine")
    computed = (head != "engine") + (head in ("int8", "fp8"))  # before what reads its logits; rows get 8 bits before it
    if keys.get("budget"):  # rows are shared out, and hidden rows brought to their requests; or budgets are compared
        packed = isinstance(keys["budget"], int) or keys["budget"][-1] != "all"
        around += 1 + (packed and (keys["algorithm"] != "STANDALONE" or "hidden_states" in keys["outputs"]))
    return around + between.get(keys["algorithm"], recurrent) + heads * computed


@settings(max_examples=120)
@given(changed_configs())
def test_wrong_configurations_are_diagnosed(keys: dict[str, Any]) -> None:
    for diagnostic in findings(to_yaml(keys)):
        assert not diagnostic.code.startswith(("ir/", "internal/", "kernel/")), diagnostic
        assert diagnostic.location is not None, diagnostic
        assert render(diagnostic, {"random.yaml": to_yaml(keys)})


def findings(text: str) -> tuple[Diagnostic, ...]:
    """What is wrong with a configuration; nothing if it builds."""
    try:
        build_program(load_text(text, Path("random.yaml"), names(), needs))
    except DiagnosticError as error:
        return error.diagnostics
    return ()
