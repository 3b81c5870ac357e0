"""Any two models: the program is built, or both lines of the configuration are shown; nothing else ever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from programs import MODEL, passes_to
from strategies import DTYPE_NAMES, to_yaml, width

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.driver.compile import start_module
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.invariants import CheckEach
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

SIZES = st.sampled_from([2, 4, 8])
CORRECTED = {"DSPARK": {"markov_rank": 8}, "DFLASH2": {"selector_rank": 8, "selector_top_k": 2}}
"""Keys of drafts whose blocks are corrected."""


@st.composite
def models(draw: st.DrawFn, sources: list[str]) -> dict[str, Any]:
    """A model of few sizes, so that widths are often equal by chance."""
    model = MODEL | {"hidden_size": draw(SIZES), "dtype": draw(st.sampled_from(DTYPE_NAMES)), "num_layers": 5}
    model |= {"hc_mult": draw(st.sampled_from([1, 2, 4])), "hidden_source": draw(st.sampled_from(sources))}
    if model["hidden_source"] == "aux":
        model["aux_layers"] = [2, 3, 5][: draw(st.integers(1, 3))]
    return model


@st.composite
def any_two(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration whose models know nothing of each other but the vocabulary and, as it must be, KV rows."""
    algorithm = draw(st.sampled_from([name for name in names() if needs(name).draft]))
    target, draft = draw(models(["collapsed", "hc_residual", "aux"])), draw(models(["collapsed", "hc_residual"]))
    draft |= draw(
        st.fixed_dictionaries({}, optional={"target_hidden_size": SIZES, "num_aux_layers": st.integers(1, 3)})
    )
    draft |= CORRECTED.get(algorithm, {})
    tree = needs(algorithm).trees and draw(st.booleans())
    steps = draw(st.integers(1, 3))
    shape = {"topk": 2, "num_draft_tokens": 3} if tree else {}
    overlap = {"overlap": draw(st.booleans())}
    models_ = {"target": target, "draft": draft}
    return {"name": "pair", "algorithm": algorithm, "num_steps": steps, **shape, **overlap, **models_}


def offered_and_read(keys: dict[str, Any]) -> tuple[int, int, bool]:
    """Width of the target's rows, width that the draft was made for, and whether both must be of one dtype."""
    target, draft = keys["target"], keys["draft"]
    declared = draft.get("target_hidden_size", draft["hidden_size"])
    reads = {
        "EAGLE": (width(draft), True),
        "MULTI_LAYER_EAGLE": (width(draft), True),
        "EAGLE3": (declared * draft.get("num_aux_layers", 3), False),
        "DFLASH": (declared * draft.get("num_aux_layers", draft["num_layers"]), False),
        "DSPARK": (declared * draft.get("num_aux_layers", draft["num_layers"]), False),
        "DFLASH2": (declared * draft.get("num_aux_layers", draft["num_layers"]), False),
        "FROZEN_KV_MTP": (declared, True),
        "STANDALONE": (width(target), False),
    }
    return width(target), *reads[keys["algorithm"]]


def wrong(loaded: LoadedConfig) -> tuple[Diagnostic, ...]:
    """What the front passes object to."""
    try:
        run_passes(start_module(loaded), passes_to("canonicalize", loaded), Context(loaded), [CheckEach()])
    except DiagnosticError as error:
        return error.diagnostics
    return ()


@settings(max_examples=150)
@given(any_two())
def test_it_builds_or_shows_both_lines(keys: dict[str, Any]) -> None:
    """The expectation is arithmetic on the YAML's numbers."""
    text = to_yaml(keys)
    loaded = load_text(text, Path("pair.yaml"), names(), needs)
    lines = {key: number for number, key in enumerate(keys, start=1)}
    offered, read, one_dtype = offered_and_read(keys)
    dtypes = keys["target"]["dtype"] == keys["draft"]["dtype"] or not one_dtype
    codes = {code for code, fits in (("width", offered == read), ("dtype", dtypes)) if not fits}
    event(f"{keys['algorithm']}: {'+'.join(sorted(codes)) or 'builds'}")
    diagnostics = wrong(loaded)
    assert bool(diagnostics) == bool(codes), diagnostics
    assert {d.code for d in diagnostics} <= {f"type/{code}-mismatch" for code in codes}
    for diagnostic in diagnostics:
        assert diagnostic.hint
        assert diagnostic.location is not None
        assert diagnostic.location.line == lines["draft"], diagnostic
        assert [note.location.line for note in diagnostic.notes if note.location] == [lines["target"]], diagnostic


@pytest.mark.parametrize("algorithm", [name for name in names() if needs(name).draft and name != "STANDALONE"])
def test_every_code_occurs(algorithm: str) -> None:
    """The expectation of the test above is not always the same one."""
    target, draft = MODEL | {"hidden_source": "collapsed", "hc_mult": 1}, MODEL | {"hidden_source": "collapsed"}
    several = {"num_aux_layers": 1} if algorithm in ("EAGLE3", "DFLASH", "DFLASH2", "DSPARK") else {"num_layers": 3}
    several |= CORRECTED.get(algorithm, {})
    keys = {"name": "pair", "algorithm": algorithm, "num_steps": 2, "target": target, "draft": draft | several}

    def codes(**sizes: Any) -> set[str]:
        changed = keys | {"target": target | sizes}
        return {d.code for d in wrong(load_text(to_yaml(changed), Path("pair.yaml"), names(), needs))}

    assert codes() == set()
    assert codes(hidden_size=32) == {"type/width-mismatch"}
    only_projected = algorithm in ("EAGLE3", "DFLASH", "DFLASH2", "DSPARK")
    assert codes(dtype="bfloat16") == (set() if only_projected else {"type/dtype-mismatch"})
