"""Several shapes, by `num_steps` as a list or by `shapes`: what they load to, and where they are wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

from specc.compiler.algorithms import names
from specc.compiler.config.schema import json_schema
from specc.runtime.plan.shape import Shape

from .conftest import VALID, Find, Load
from .test_codes import edit, only
from .test_schema import errors

UNSAID = VALID.replace("num_draft_tokens: 4\n", "")


def steps(value: object, text: str = UNSAID) -> str:
    """Return a configuration with another `num_steps`."""
    return text.replace("num_steps: 3", f"num_steps: {value}")


def test_one_shape_needs_no_list(load: Load) -> None:
    for text in (VALID, UNSAID):
        plain, listed = load(text), load(steps("[3]", text))
        assert plain.config == listed.config
        assert [shape.config for shape in plain.shapes()] == [plain.config]


def test_shapes_are_told_deepest_first(load: Load) -> None:
    loaded = load(steps("[1, 3, 16]"))
    assert loaded.config.shapes == (Shape(1, 1, 2), Shape(3, 1, 4), Shape(16, 1, 17))
    assert loaded.config.drafted == "chain of 1, 3 or 16"
    assert load(steps("[0, 3]")).config.drafted == "chain of 0 or 3"
    configs = [shape.config for shape in loaded.shapes()]
    assert configs[0] == loaded.config
    assert [(config.num_steps, config.num_nodes, config.path_slots) for config in configs] == [
        (16, 17, 17),
        (3, 4, 4),
        (1, 2, 2),
    ]


@pytest.mark.parametrize("topk", [2, 4, 8])
def test_shallow_trees_verify_as_many_nodes_as_they_can_draft(load: Load, topk: int) -> None:
    """They are counted here by growing them: topk children of the root, then topk of each of topk branches."""
    for nodes in (2, topk + 1, topk + 2, 1 + topk + 2 * topk**2):
        text = VALID.replace("topk: 1", f"topk: {topk}").replace("tokens: 4", f"tokens: {nodes}")
        loaded = load(steps("[0, 1, 2, 3]", text))
        drafted, wanted = 1, [(0, topk, 1)]
        for step in (1, 2, 3):
            drafted += topk if step == 1 else topk * topk
            wanted.append((step, topk, min(nodes, drafted)))
        assert [shape[:3] for shape in loaded.config.shapes] == wanted
        assert [shape.config.num_nodes for shape in loaded.shapes()] == [size for *_, size in reversed(wanted)]


@pytest.mark.parametrize(
    ("value", "code", "column", "message"),
    [
        ("[]", "config/out-of-range", 12, "at least this many entries: 1"),
        ("0", "config/out-of-range", 12, "nothing is ever drafted"),
        ("[0]", "config/out-of-range", 12, "nothing is ever drafted"),
        ("-1", "config/out-of-range", 12, "at least 0"),
        ("17", "config/out-of-range", 12, "at most 16"),
        ("[-1, 3]", "config/out-of-range", 13, "at least 0"),
        ("[0, 0, 3]", "config/out-of-range", 16, "num_steps must ascend, and 0 follows 0"),
        ("[3, 17]", "config/out-of-range", 16, "at most 16"),
        ("[3, 1]", "config/out-of-range", 16, "num_steps must ascend, and 1 follows 3"),
        ("[1, 3, 3]", "config/out-of-range", 19, "num_steps must ascend, and 3 follows 3"),
        ("three", "config/wrong-type", 12, "an integer"),
        ("[1, three]", "config/wrong-type", 16, "an integer"),
        ("[1, true]", "config/wrong-type", 16, "an integer"),
        ("[1, [3]]", "config/wrong-type", 16, "an integer"),
        ("{a: 1}", "config/wrong-type", 12, "an integer"),
        ("2.0", "config/wrong-type", 12, "an integer"),
    ],
)
def test_what_is_wrong_is_told_once_and_where(find: Find, value: str, code: str, column: int, message: str) -> None:
    found = only(find(steps(value)))
    assert (found.code, str(found.location)) == (code, f"c.yaml:4:{column}")
    assert message in found.message


def test_every_fall_is_told_with_the_number_before_it(find: Find) -> None:
    found = find(steps("[5, 3, 4, 1]"))
    assert [str(finding.location) for finding in found] == ["c.yaml:4:16", "c.yaml:4:22"]
    assert [[str(note.location) for note in finding.notes] for finding in found] == [["c.yaml:4:13"], ["c.yaml:4:19"]]
    assert {finding.hint for finding in found} == {"write [1, 3, 4, 5]"}


def test_the_width_of_a_chain_is_that_of_the_deepest(find: Find) -> None:
    assert find(steps("[1, 3]", VALID)) == ()
    wrong = only(find(steps("[1, 5]", VALID)))
    assert (wrong.code, str(wrong.location)) == ("legal/chain-width", "c.yaml:5:19")
    assert wrong.message == "a chain of 5 steps verifies 6 tokens, and num_draft_tokens is 4"
    tree = edit("topk: 1", "topk: 2").replace("tokens: 4", "tokens: 12")
    assert find(steps("[1, 4]", tree)) == ()
    assert only(find(steps("[1, 3]", tree))).code == "legal/tree-size"


@pytest.mark.parametrize("value", [1, 16, [1], [3], [1, 2, 16], [0, 3]])
def test_the_schema_accepts_both_forms(value: Any) -> None:
    assert _against_the_schema(value) == []


@pytest.mark.parametrize("value", [0, -1, 17, "3", 1.0, True, None, [0], [-1, 3], [1, 17], ["1"], [[1]], {}])
def test_the_schema_refuses_what_loading_refuses(value: Any) -> None:
    assert _against_the_schema(value)


def test_the_schema_bounds_the_list() -> None:
    listed = json_schema(names())["properties"]["num_steps"]["anyOf"][1]
    assert (listed["minItems"], listed["maxItems"]) == (1, 16)


def _against_the_schema(value: Any, key: str = "num_steps") -> list[str]:
    schema = json_schema(names())
    return list(errors(value, schema["properties"][key], schema))


def listed(*shapes: str, more: str = "") -> str:
    """A configuration with a list of shapes in place of the keys of one."""
    text = "".join(f"  - {{{shape}}}\n" for shape in shapes)
    plain = re.sub(r"^(topk|num_steps|num_draft_tokens):.*\n", "", VALID, flags=re.MULTILINE)
    return plain.replace("buckets:", f"{more}shapes:\n{text}buckets:", 1)


def test_shapes_of_any_width(load: Load) -> None:
    tree, small, chain, none = (
        "num_steps: 5, topk: 4, num_draft_tokens: 24",
        "num_steps: 3, topk: 2, num_draft_tokens: 6",
        "num_steps: 3",
        "num_steps: 0",
    )
    loaded = load(listed(chain, tree, none, small))
    assert loaded.config.shapes == (Shape(0, 4, 1), Shape(3, 1, 4), Shape(3, 2, 6), Shape(5, 4, 24))
    assert [str(shape) for shape in loaded.config.shapes] == ["0", "3", "3x2x6", "5x4x24"]
    assert (loaded.config.deepest, loaded.config.widest) == (5, 4)
    assert [config.config.topk for config in loaded.shapes()] == [4, 2, 1, 4]
    lines = [loaded_shape.location("num_steps").line for loaded_shape in loaded.shapes()]
    first = listed(chain).splitlines().index("shapes:") + 2
    assert lines == [first + 1, first + 3, first, first + 2]


@pytest.mark.parametrize(
    ("shapes", "code", "message"),
    [
        (["num_steps: 3, topk: 2"], "config/missing-key", "a tree needs num_draft_tokens"),
        (["num_steps: 3, num_draft_tokens: 5"], "legal/chain-width", "verifies 4 tokens, and num_draft_tokens is 5"),
        (["num_steps: 1, topk: 2, num_draft_tokens: 4"], "legal/tree-size", "has 2 to 3 nodes, and not 4"),
        (["num_steps: 3", "num_steps: 3"], "config/out-of-range", "the shape 3 is listed twice"),
        (["num_steps: 3", "topk: 1, num_steps: 3"], "config/out-of-range", "the shape 3 is listed twice"),
        (["num_steps: 0"], "config/out-of-range", "no shape has a draft step"),
        (["num_steps: 17"], "config/out-of-range", "at most 16"),
        (["num_steps: [1, 3]"], "config/wrong-type", "an integer"),
        (["topk: 2"], "config/missing-key", "num_steps"),
        (["num_steps: 3, depth: 2"], "config/unknown-key", "unknown key 'depth'"),
    ],
)
def test_what_is_wrong_with_a_shape(find: Find, shapes: list[str], code: str, message: str) -> None:
    finding = only(find(listed(*shapes)))
    assert finding.code == code
    assert message in finding.message
    assert finding.location is not None


def test_shapes_stand_in_place_of_other_keys(find: Find) -> None:
    for key in ("num_steps: 3", "topk: 1", "num_draft_tokens: 4"):
        finding = only(find(listed("num_steps: 3", more=f"{key}\n")))
        assert (finding.code, finding.hint) == ("config/out-of-range", "leave it out")
        assert "the shapes say what is drafted" in finding.message
        assert len(finding.notes) == 1


def test_trees_among_shapes_are_refused_as_alone(find: Find) -> None:
    shapes = "num_steps: 3", "num_steps: 3, topk: 2, num_draft_tokens: 6"
    finding = only(find(listed(*shapes).replace("verify: greedy", "verify: rejection")))
    assert (finding.code, finding.message) == ("legal/verify", "verify: rejection is for chains, and topk is 2")
    finding = only(find(listed(*shapes).replace("algorithm: EAGLE", "algorithm: DFLASH2")))
    assert finding.code == "legal/chain-only"


def test_the_schema_has_shapes() -> None:
    assert _against_the_schema([{"num_steps": 3}, {"num_steps": 2, "topk": 2, "num_draft_tokens": 5}], "shapes") == []
    assert _against_the_schema([{}], "shapes")
    assert _against_the_schema([{"num_steps": 3, "depth": 1}], "shapes")


def test_buckets_of_each_shape(load: Load) -> None:
    """Every shape has those that it lists, or all: 64 is of one that lists none. Its memory is for its own largest."""
    tree = "num_steps: 5, topk: 4, num_draft_tokens: 24, buckets: [1]"
    text = listed(tree, "num_steps: 3", "num_steps: 0, buckets: [8]")
    loaded = load(text)
    by_name = {str(shape): buckets for shape, buckets in loaded.config.buckets_of.items()}
    assert by_name == {"0": (8,), "3": (1, 8, 64), "5x4x24": (1,)}
    largest = [(str(shape.config.shape), shape.config.max_batch) for shape in loaded.shapes()]
    assert largest == [("5x4x24", 1), ("3", 64), ("0", 8)]
    assert {shape.config.pool_rows for shape in loaded.shapes()} == {65}
    lines = [shape.location("buckets").line for shape in loaded.shapes()]
    first, all_buckets = (text.splitlines().index(line) for line in ("shapes:", "buckets: [1, 8, 64]"))
    first, all_buckets = first + 2, all_buckets + 1
    assert lines == [first, all_buckets, first + 2]


@pytest.mark.parametrize(
    ("shapes", "message", "column"),
    [
        (["num_steps: 3, buckets: [1, 4]"], "and 4 is none of these", 33),
        (["num_steps: 3, buckets: []"], "there must be at least one bucket", 29),
        (["num_steps: 3, buckets: [8, 1]"], "buckets must ascend, and 1 follows 8", 33),
        (["num_steps: 3, buckets: [0, 1]"], "a bucket is a batch size from 1 to 65536", 30),
    ],
)
def test_what_is_wrong_with_the_buckets_of_a_shape(find: Find, shapes: list[str], message: str, column: int) -> None:
    text = listed(*shapes, "num_steps: 1")
    finding = only(find(text))
    assert finding.code == "config/buckets"
    assert message in finding.message
    assert finding.location is not None
    assert (finding.location.line, finding.location.column) == (text.splitlines().index("shapes:") + 2, column)


def test_every_bucket_needs_a_shape(find: Find) -> None:
    shapes = "num_steps: 3, buckets: [1]", "num_steps: 0, buckets: [1, 64]"
    finding = only(find(listed(*shapes)))
    assert finding.message == "no shape has the bucket 8, so that no step could run it"
    assert (finding.code, finding.hint) == ("config/buckets", "add 8 to the buckets of a shape")
    text = listed(*shapes).splitlines()
    assert finding.location is not None
    assert (finding.location.line, finding.location.column) == (text.index("buckets: [1, 8, 64]") + 1, 14)
    unsaid = listed(*shapes).replace("buckets: [1, 8, 64]\n", "").replace("64]", "2]")
    places = {(str(finding.location), finding.message.split(",")[0]) for finding in find(unsaid)}
    line = unsaid.splitlines().index("shapes:") + 1
    assert places == {(f"c.yaml:{line}:1", f"no shape has the bucket {size}") for size in (4, 8)}
