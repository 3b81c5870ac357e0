"""Pictures: a block for every node and every buffer, in its place."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from told_pages import CASES, page_of

from specc.compiler.explain.page.figures import arena, drafted
from specc.compiler.explain.page.model import extent
from specc.compiler.explain.page.timeline import timeline
from specc.runtime.plan.nodes import OUTSIDE
from specc.runtime.plan.plan import Buffer

SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[float, float, float, float]


def boxes(svg: str, prefix: str = "") -> list[Box]:
    """The rectangles of a picture whose class begins so: x, y, and where they end."""
    rectangles = [
        element.attrib
        for element in ET.fromstring(svg).iter(f"{SVG}rect")
        if element.attrib["class"].startswith(prefix)
    ]
    sizes = [tuple(float(rectangle[key]) for key in ("x", "y", "width", "height")) for rectangle in rectangles]
    return [(x, y, x + width, y + height) for x, y, width, height in sizes]


def meet(first: Box, second: Box, axis: int) -> bool:
    return first[axis] < second[axis + 2] and second[axis] < first[axis + 2]


@pytest.mark.parametrize("name", CASES)
def test_a_block_for_every_node_in_order(name: str) -> None:
    page = page_of(name)
    for entry in ("step", "prefill"):
        steps = page.of(entry)
        svg = timeline(page, entry, "here", "Here")
        drawn = boxes(svg)
        assert drawn == sorted(drawn)
        assert not any(meet(box, next_box, 0) for box, next_box in combinations(drawn, 2))
        wide = [right - left > 60 for left, _, right, _ in drawn]
        assert wide == [isinstance(step.node, OUTSIDE) for step in steps]
        links = [element.attrib["href"] for element in ET.fromstring(svg).iter(f"{SVG}a")]
        assert links == [f"#node-{step.node.name}" for step in steps]


def share(buffer: Buffer, other_buffer: Buffer) -> bool:
    (begin, end), (other_begin, other_end) = extent(buffer), extent(other_buffer)
    return begin < other_end and other_begin < end


@pytest.mark.parametrize("name", CASES)
def test_buffers_lie_where_their_bytes_and_their_nodes_are(name: str) -> None:
    page = page_of(name)
    drawn = boxes(arena(page), "b-")
    assert len(drawn) == len(page.arena)
    begins, ends = min(box[0] for box in drawn), max(box[2] for box in drawn)
    column = (ends - begins) / len(page.steps)
    heads = [
        element.attrib for element in ET.fromstring(arena(page)).iter(f"{SVG}text") if "transform" in element.attrib
    ]
    middles = [(float(head["x"]) - begins) / column for head in heads]
    assert middles == pytest.approx([step.index - 0.5 for step in page.steps], abs=0.06)
    for box, buffer in zip(drawn, page.arena, strict=True):
        assert (box[0] - begins) / column == pytest.approx(page.alive(buffer)[0] - 1, abs=0.06)
        assert (box[2] - begins) / column == pytest.approx(page.alive(buffer)[1], abs=0.06)
    for (box, buffer), (other_box, other_buffer) in combinations(zip(drawn, page.arena, strict=True), 2):
        assert meet(box, other_box, 1) == share(buffer, other_buffer)
        assert not (meet(box, other_box, 0) and meet(box, other_box, 1)), "two that live together"


@pytest.mark.parametrize("name", CASES)
def test_every_drafted_node_is_drawn(name: str) -> None:
    page = page_of(name)
    svg = drafted(page.drafting)
    words = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    chain = page.drafting.topk == 1
    how = page.drafting
    wanted = [f"draft {n}" for n in range(1, how.num_steps + 1)] if chain else map(str, range(how.nodes))
    assert {"root", *wanted} <= set(words)


def test_a_large_tree_has_no_dots() -> None:
    from specc.compiler.explain.page.drafting import DraftPicture, grown

    makers = ("draft_0", "draft_1")
    small, large = (
        DraftPicture("forwards", k, 3, n, 1, makers, True, {}, False, tuple(grown(k, 3, n)))
        for k, n in ((4, 16), (8, 48))
    )
    circles = [list(ET.fromstring(drafted(how)).iter(f"{SVG}circle")) for how in (small, large)]
    assert [len(drawn) for drawn in circles] == [37, 48]


@pytest.mark.parametrize(("topk", "steps", "nodes"), [(2, 2, 2), (3, 3, 2), (2, 4, 3), (4, 2, 3)])
def test_a_tree_whose_last_nodes_have_candidates_that_were_not_kept(topk: int, steps: int, nodes: int) -> None:
    from specc.compiler.explain.page.drafting import DraftPicture, grown

    how = DraftPicture("forwards", topk, steps, nodes, 1, (), True, {}, False, tuple(grown(topk, steps, nodes)))
    words = [element.text for element in ET.fromstring(drafted(how)).iter(f"{SVG}text")]
    assert {"root", *map(str, range(nodes))} <= set(words)
