"""All kernels of every algorithm with every way to verify: they compile, without spills, at full occupancy.

A kernel is compiled once for all programs that have it: those of greedy programs for sm_90 and another GPU, those that
only programs that draw have for one. Which GPU, the kernel decides, so that every GPU has some of every kind;
SPECC_TEST_ARCHS=all compiles all of them for every GPU.
"""

from __future__ import annotations

import functools
import os
from typing import Any, get_args

import pytest
from compiled import ARCHS, compiled, kernels_of
from programs import load

from specc.compiler.algorithms import names, needs
from specc.compiler.codegen import render
from specc.compiler.codegen.aot import KernelSource, cache_key
from specc.compiler.codegen.artifact import KNOWN_ARCHS
from specc.compiler.config.archs import SHARED_BYTES
from specc.compiler.config.schema import Verify
from specc.compiler.driver.build import build_program
from specc.compiler.kernels import FAMILIES

MODEL = {"vocab_size": 128256, "hidden_size": 4096, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
WIDER_LOGITS = {"logits_dtype": "float32"}
TREE = {"topk": 8, "num_draft_tokens": 64, "num_steps": 5, "page_size": 16}
COMB = {"topk": 4, "num_draft_tokens": 21, "num_steps": 5, "page_size": 16}
BUDGET = {"budget": 2}
"""Rows of the target, a request: its rows are packed."""
BUDGETS = {"num_steps": [2, 4], "budget": [2, 3, "all"]}
"""Several of them, whose tokens are all expected by the launch that shares rows out."""
DRAWN = {mode: {"verify": mode} for mode in get_args(Verify) if mode != "greedy"}
DRAWN |= {"coupled": {"verify": "target_only", "draft_sampling": "coupled"}}
BUDGETED = "EAGLE-chain", "DFLASH-chain", "DSPARK-chain", "DFLASH2-chain"
"""Chains that have one: of forwards, of a block, and of blocks whose drafts know the one before."""
"""Ways to verify by what is drawn. All but the first draw drafts as well, which takes a chain of a model's."""


def programs() -> dict[str, dict[str, Any]]:
    """Configurations by name: a chain of every algorithm, and a tree where there is one; with every way to verify."""
    configurations: dict[str, dict[str, Any]] = {}
    for algorithm in names():
        wants = needs(algorithm)
        common = {"algorithm": algorithm, "buckets": [64], "target": MODEL} | ({"draft": MODEL} if wants.draft else {})
        configurations[f"{algorithm}-chain"] = common
        if wants.trees:
            configurations[f"{algorithm}-tree"] = tree = common | (TREE if wants.draft else COMB)
            configurations[f"{algorithm}-tree-target_only"] = tree | DRAWN["target_only"]
        ways = DRAWN if wants.draft else ["target_only"]
        configurations |= {f"{algorithm}-chain-{way}": common | DRAWN[way] for way in ways}
    scored_in_f32 = {"target": MODEL | WIDER_LOGITS, "draft": MODEL | WIDER_LOGITS}
    configurations |= {
        f"{name}-f32-logits": configurations[name] | scored_in_f32 for name in ("EAGLE-chain", "EAGLE-tree")
    }
    configurations |= {f"{name}-budget": configurations[name] | BUDGET for name in BUDGETED}
    configurations["EAGLE-chain-budgets"] = configurations["EAGLE-chain"] | BUDGETS
    drawn = configurations["EAGLE-chain-target_only"] | BUDGET
    configurations["EAGLE-chain-target_only-budget"] = drawn | {"sampling": ["penalties", "grammar", "top_k"]}
    for name in ("EAGLE-chain-rejection", "DFLASH-chain-block"):
        configurations[f"{name}-budget"] = configurations[name] | BUDGET | {"sampling": ["penalties", "top_k"]}
    return configurations


PROGRAMS = programs()
ALL = os.environ.get("SPECC_TEST_ARCHS") == "all"


@functools.cache
def sources_of(program: str) -> dict[str, KernelSource]:
    """What a program launches, by what its code for sm_90 is kept under."""
    lib = render.lib_sources()
    return {cache_key(source, "sm_90", lib): source for source in kernels_of(load(**PROGRAMS[program]))}


@functools.cache
def keys_of_greedy() -> frozenset[str]:
    """The kernels that programs have which do not draw."""
    return frozenset(key for name, keys in PROGRAMS.items() if "verify" not in keys for key in sources_of(name))


def archs_of(key: str) -> tuple[str, ...]:
    """The GPUs that a kernel is compiled for: one that its key decides, beside sm_90 if greedy programs have it."""
    if ALL:
        return tuple(KNOWN_ARCHS)
    twice = key in keys_of_greedy()
    known = [arch for arch in KNOWN_ARCHS if not twice or arch != "sm_90"]
    return ("sm_90",) * twice + (known[int(key, 16) % len(known)],)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_spills(program: str) -> None:
    sources = sources_of(program)
    for arch in KNOWN_ARCHS:
        chosen = [source for key, source in sources.items() if arch in archs_of(key)]
        for (name, _), artifact in compiled(chosen, arch).items():
            source, head = next(source for source in chosen if source.name == name), name.startswith("head_")
            assert artifact.spills <= (FAMILIES["head"].spills if head else 0), artifact
            # A head keeps tiles of its matrix there, which are loaded ahead; nothing else needs more than a reduction.
            assert artifact.shared <= (SHARED_BYTES[arch] if head else 4096), artifact
            assert not artifact.global_scratch
            assert not artifact.profile_scratch
            # Warps of 64 lanes: half as many, the same threads; but at least one.
            lanes = KNOWN_ARCHS[arch].lanes
            warps = max(1, source.num_warps * 32 // lanes)
            assert (artifact.num_warps, artifact.threads) == (warps, warps * lanes)
            assert artifact.kind == KNOWN_ARCHS[arch].kind
            assert artifact.binary.startswith(b"\x7fELF")


def test_every_gpu_has_kernels() -> None:
    """Of the programs together: one that is added to the known ones is compiled for."""
    assert {arch for name in PROGRAMS for key in sources_of(name) for arch in archs_of(key)} == {*KNOWN_ARCHS}


@pytest.mark.parametrize("program", ["EAGLE-chain", "EAGLE-tree", "EAGLE-tree-f32-logits"])
def test_penalties_and_biases_do_not_spill(program: str) -> None:
    """In front of the draw, with all that is loaded for them."""
    asked = {"verify": "target_only", "verify_rows": "eager", "sampling": ["penalties", "logit_bias"]}
    sources = kernels_of(load(**PROGRAMS[program] | asked), "draw", phases=("prefill", "verify"))
    assert {artifact.spills for artifact in compiled(sources, *ARCHS).values()} == {0}


@pytest.mark.parametrize("logits", ["bfloat16", "float16", "float32"])
def test_what_drafts_leave_does_not_spill(logits: str) -> None:
    """Of rows that are read where they are carried and where forwards left them; with masks, penalties and a cut."""
    models = {role: MODEL | {"logits_dtype": logits} for role in ("target", "draft")}
    asked = {"verify": "block", "num_steps": 5} | models
    if logits == "float16":
        asked |= {"sampling": ["penalties", "logit_bias", "grammar", "top_p"]}
    sources = [
        source
        for source in build_program(load(**PROGRAMS["EAGLE-chain"] | asked)).generated.sources
        if source.name in ("draft_draw_0", "verify_draw", "verify_residual")
    ]
    assert len(sources) == 3
    assert {artifact.spills for artifact in compiled(sources, *ARCHS).values()} == {0}


def test_cuts_of_changed_logits_do_not_spill() -> None:
    """With everything that may come before them, the choice of a row included."""
    asked: dict[str, Any] = {"verify": "target_only", "verify_rows": "lazy"}
    asked["sampling"] = ["penalties", "logit_bias", "grammar", "top_k", "top_p", "min_p"]
    (source,) = kernels_of(load(**PROGRAMS["EAGLE-tree-f32-logits"] | asked), "cut", phases=("verify",))
    assert {artifact.spills for artifact in compiled([source], *ARCHS).values()} == {0}


@pytest.mark.parametrize("best", [0, 8, 20])
@pytest.mark.parametrize(("drafted", "more"), [("tree", {}), ("chain", BUDGET)])
def test_scores_do_not_spill(drafted: str, more: dict[str, int], best: int) -> None:
    """Of what tokens are drawn from, with everything that may come before it; the best tokens take more warps."""
    asked = {"verify": "target_only", "sampling": ["penalties", "logit_bias", "grammar", "top_k", "top_p", "min_p"]}
    asked |= {"outputs": ["logprobs"], "logprobs": "processed", "best_logprobs": best}
    kernels = kernels_of(load(**PROGRAMS[f"EAGLE-{drafted}-f32-logits"] | more | asked), "score")
    (source,) = [source for source in kernels if source.name == "score"]
    assert source.num_warps == (16 if best > 16 else 4)
    assert {artifact.spills for artifact in compiled([source], *ARCHS).values()} == {0}


def test_rows_of_a_path_do_not_spill() -> None:
    """What a walk does of one row, with everything that may come before it."""
    asked = {"verify": "target_only", "verify_rows": "lazy", "sampling": ["penalties", "logit_bias", "grammar"]}
    sources = kernels_of(load(**PROGRAMS["EAGLE-tree-f32-logits"] | asked), "draw", phases=("verify",))
    assert len(sources) == 2  # all but the last round have one kernel
    assert {artifact.spills for artifact in compiled(sources, *ARCHS).values()} == {0}
