"""Tokens drawn: what a program to draw them is made of, and noise next to the ends of its range."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from formed import FORMS, formed, launches

from specc.compiler.algorithms import needs
from specc.compiler.ir.declarations import Reference
from specc.runtime.semantics import sample

LARGE: dict[str, Any] = {"vocab_size": 128256}
EXCEPT = ("NGRAM", True, "full")


@pytest.mark.parametrize("mask", [{"mask": "qlen"}, {"mask": "full", "context_length": 64}], ids=["qlen", "full"])
@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_to_draw_takes_no_launch_more(algorithm: str, form: dict[str, Any], mask: dict[str, Any]) -> None:
    """Of a step, by a large vocabulary; only looked-up trees with a full mask take one. A prefill begins with one."""
    tree = form.get("topk", 1) > 1
    keys = {"target": LARGE, **form, "page_size": 4} | ({"draft": LARGE} if needs(algorithm).draft else {})
    keys |= mask if tree else {}
    greedy, drawing = (launches(formed(algorithm, verify=verify, **keys)) for verify in ("greedy", "target_only"))
    more = kinds(drawing) - kinds(greedy) - Counter(["prefill_rows"])
    assert more == Counter(["tree_rows"] if (algorithm, tree, mask["mask"]) == EXCEPT else [])
    assert kinds(greedy) <= kinds(drawing)
    assert drawing["prefill_rows"][-1] == "sample.keys"
    assert drawing["verify_draw"][0] == "sample.draw"
    assert sorted([*greedy["verify_argmax"][1:], "walk.bad"]) == sorted(drawing["verify_draw"][1:])


def kinds(nodes: Iterable[str]) -> Counter[str]:
    """Names of launches without their numbers; a draw is in the place of an argmax."""
    return Counter(re.sub(r"_\d+$", "", name).replace("_draw", "_argmax") for name in nodes)


@pytest.mark.parametrize(("algorithm", "form"), FORMS)
def test_penalties_and_biases_take_no_launch_more(algorithm: str, form: dict[str, Any]) -> None:
    """They are read where they are carried, by the draw, and nothing of them is copied."""
    keys = {"target": LARGE, **form} | ({"draft": LARGE} if needs(algorithm).draft else {})
    plain = launches(formed(algorithm, verify="target_only", **keys))
    module = formed(algorithm, verify="target_only", sampling=["penalties", "logit_bias"], **keys)
    changing = launches(module)
    assert changing.keys() == plain.keys()
    assert not module.decls_of(Reference)
    tables = [op for op in module.find("carry.load") if op.attrs["field"] in ("sampling_counts", "sampling_logit_bias")]
    readers = [op for load in tables for op in module.users(load.result)]
    assert [op.opcode for op in readers] == ["sample.penalize", "sample.bias", "sample.penalize_nodes", "sample.bias"]
    for load, reader in zip(tables, readers, strict=True):
        assert load.attrs["kernel"] == reader.attrs["kernel"]
    assert "carry.count" in changing["verify_draw"]


def test_beside_filters_they_are_read_in_place_too() -> None:
    """Cuts and the draw change logits on their own, and nothing is copied or computed by torch."""
    module = formed("EAGLE", verify="target_only", sampling=["penalties", "logit_bias", "top_k", "top_p"])
    assert not module.decls_of(Reference)
    opcodes = [launches(module)[name] for name in ("cut", "verify_draw")]
    assert [ops[:4] for ops in opcodes] == [["carry.load", "sample.penalize_nodes", "carry.load", "sample.bias"]] * 2


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("algorithm", [name for name, form in FORMS if form.get("topk", 1) == 1 and needs(name).draft])
def test_drafts_that_are_drawn_take_one_launch_more(algorithm: str, mode: str) -> None:
    """What is left after them is drawn in it; masses are made by the draws. Carried rows are read where they are."""
    keys = {"target": LARGE, "draft": LARGE, "num_steps": 3}
    drawing = launches(formed(algorithm, verify="target_only", **keys))
    module = formed(algorithm, verify=mode, **keys)
    assert not module.decls_of(Reference)
    rejecting = launches(module)
    # A draft that knows the one before is drawn from scores that are stored, in a launch of its own, which puts it into
    # the chain. The best ones of DSPARK are put there by one launch.
    drawn = 3 * (algorithm in ("DSPARK", "DFLASH2"))
    assert kinds(rejecting) - kinds(drawing) == Counter(verify_residual=1, draft_argmax=drawn)
    assert kinds(drawing) - kinds(rejecting) == Counter(draft_rows=int(algorithm == "DSPARK"))
    assert {op.attrs["kernel"] for op in module.find("sample.weigh")} == {"verify_draw"}
    for mass in module.find("sample.mass"):
        assert mass.attrs["kernel"] in {op.attrs["kernel"] for op in module.find("sample.draw")}
    loads = [op for op in module.find("carry.load") if str(op.attrs["field"]).startswith("draft_logits")]
    assert {op.attrs["kernel"] for op in loads} <= {"verify_residual"}


@pytest.mark.parametrize("word", [0, 1, 1 << 31, 0xFFFFFF00, 0xFFFFFFFF])
def test_noise_is_finite(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's, of the least and the largest words."""
    words = torch.tensor([[word]])
    monkeypatch.setattr(sample, "philox2x32", lambda *_: (words, words))
    noise = sample.gumbel(torch.zeros(1), torch.zeros(1, 1, dtype=torch.int64))
    uniform = min((word + 0.5) * 2.0**-32, 1 - 2.0**-24)
    assert noise.item() == pytest.approx(-math.log(-math.log1p(-uniform)), rel=1e-6)
