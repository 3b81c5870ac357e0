"""What a page tells is what the plan says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from programs import config_text
from told_pages import CASES, page_of, plan_of

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.compiler.explain.page.model import extent, gather
from specc.compiler.explain.page.page import render
from specc.compiler.explain.page.timeline import hint as hover
from specc.compiler.explain.page.timeline import kind_of
from specc.runtime.plan.nodes import OUTSIDE, Launch


@pytest.mark.parametrize("name", CASES)
def test_nodes_are_those_of_the_plan(name: str) -> None:
    page, plan = page_of(name), plan_of(name)
    planned = [(phase, node) for phase in plan["phases"] for node in phase["nodes"]]
    assert [step.index for step in page.steps] == list(range(1, len(planned) + 1))
    for step, (phase, node) in zip(page.steps, planned, strict=True):
        assert (step.node.name, step.node.kind) == (node["name"], node["kind"])
        assert (step.phase.name, step.phase.entry) == (phase["name"], phase["entry"])
        assert isinstance(step.node, Launch) == bool(page.story.about(step.node.name))
        assert isinstance(step.node, OUTSIDE) == (node["kind"] in ("external", "given"))
        assert not (isinstance(step.node, OUTSIDE) and page.why(step.node.name))


@pytest.mark.parametrize("name", CASES)
def test_the_arena_is_that_of_the_plan(name: str) -> None:
    page, plan = page_of(name), plan_of(name)
    end = len(page.steps)
    for placed in page.arena:
        (buffer,) = [b for b in plan["buffers"] if b["name"] == placed.name]
        (first, last), (begin, ends) = buffer["lifetime"], extent(placed)
        taken = ends - begin
        assert (placed.offset, placed.bytes) == (buffer["offset"], buffer["bytes"])
        assert page.alive(placed) == ((max(first, 1), last) if last <= end else (1, end))
        assert taken % 256 == 0 and placed.bytes <= taken < placed.bytes + 256
        assert (page.kind(placed) == "carried") == placed.name.startswith("relay.")
    assert len(page.arena) == sum(b["owner"] == "arena" for b in plan["buffers"])
    assert asdict(page.plan.memory) == plan["memory"]
    assert page.plan.memory.arena == max(extent(placed)[0] + placed.bytes for placed in page.arena)


@pytest.mark.parametrize("name", CASES)
def test_what_is_reused_byte_by_byte(name: str) -> None:
    page = page_of(name)
    owners = [0] * max(extent(placed)[1] for placed in page.arena)
    for placed in page.arena:
        for byte in range(*extent(placed)):
            owners[byte] += 1
    assert page.reused() == sum(count > 1 for count in owners) > 0


@pytest.mark.parametrize("name", CASES)
def test_who_touches_what_is_carried(name: str) -> None:
    """Against the arguments of the plan's launches."""
    page, plan = page_of(name), plan_of(name)
    launches = [node for phase in plan["phases"] for node in phase["nodes"] if node["kind"] == "launch"]
    for field in plan["carry"]:
        name = field["name"]
        touching = {node["name"] for node in launches if any(a.get("target") == f"relay.{name}" for a in node["args"])}
        assert {*page.written(name), *page.read(name)} == touching
        assert page.read(name) and (page.written(name) or field.get("given"))
        assert page.why_carried(name).startswith("a step needs it in ")
        assert "prefill" not in page.why_carried(name)


def test_why_a_field_is_carried() -> None:
    page = page_of("eagle_tree")
    assert page.why_carried("hidden") == "a step needs it in draft_0"
    assert page.why_carried("topk_p") == "a step needs it in draft_topk_0..1"
    assert page.why_carried("seq_lens").endswith("target, verify_argmax, compact, extend, extend_topk"), "in order"


@pytest.mark.parametrize(
    ("name", "source", "carried", "makers", "selected"),
    [
        ("standalone_chain", "forwards", 1, ("draft_0", "draft_1"), False),
        ("eagle_tree", "forwards", 1, ("draft_0", "draft_1"), True),
        ("modules", "forwards", 3, (), False),
        ("block", "block", 0, ("block",), False),
        ("look_up_chain", "look-up", 0, ("ngram_propose",), False),
        ("look_up_tree", "look-up", 0, ("ngram_propose",), False),
    ],
)
def test_how_drafts_are_made(name: str, source: str, carried: int, makers: tuple[str, ...], selected: bool) -> None:
    how, dims = page_of(name).drafting, plan_of(name)["dims"]
    assert (how.source, how.carried, how.makers, how.selected) == (source, carried, makers, selected)
    assert (how.topk, how.num_steps, how.nodes) == (dims["K"], dims["S"], dims["N"])
    assert sum(node.column is not None for node in how.drawn) == how.nodes
    assert bool(how.lookup) == (source == "look-up")


def test_a_chain_of_two_is_no_block() -> None:
    """It has one forward besides the target's, as a block has; the first draft is carried."""
    how = page_of("two").drafting
    assert (how.source, how.carried, how.makers) == ("forwards", 1, ("draft_0",))


def test_a_look_up_in_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("to be or not to be")
    text = config_text("NGRAM", options={"corpus": "corpus.txt"})
    loaded = load_text(text, tmp_path / "small.yaml", names(), needs)
    page = gather(build_program(loaded).shapes[0])
    assert page.drafting.corpus and not page_of("look_up_chain").drafting.corpus
    assert "The text and a corpus are looked through" in render(page)
    assert "The text is looked through" in render(page_of("look_up_chain"))


@pytest.mark.parametrize(
    ("name", "node", "text", "forwards"),
    [
        ("rotated", "given_logits", "what the engine hands over", 3),
        ("rotated", "extend", "a forward of the engine, captures last; reads tokens", 3),
        ("masks", "grammar_end", "a call of the host; reads begun, rows", 4),
    ],
)
def test_what_the_engine_does(name: str, node: str, text: str, forwards: int) -> None:
    """Models are counted as forwards, neither what the host is asked nor what is handed over."""
    page = page_of(name)
    (step,) = [step for step in page.of("step") if step.node.name == node]
    assert hover(page, step).startswith(f"{node}: {text}")
    assert (kind_of(step.node) == "host") == (name == "masks")
    assert f"and {forwards} forwards" in render(page)
