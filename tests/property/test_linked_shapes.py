"""Programs of several shapes in one arena: a request finds its state wherever it goes, and nothing else lies there."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import load, written
from strategies import configs, to_yaml

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import Build, build_program
from specc.compiler.driver.compile import compile_shapes
from specc.compiler.ir.core import Module
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.passes.plan_memory import FOREVER
from specc.runtime.memory.arena import Arena, allocate
from specc.runtime.memory.footprint import Memory
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.shape import Shape

Json = dict[str, Any]
TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 16}
MIXED = {
    "shapes": [{"num_steps": 4}, {"num_steps": 2, "topk": 4, "num_draft_tokens": 9}, {"num_steps": 0}],
    "page_size": 16,
}
SEVERAL = [name for name in names() if name != "MULTI_LAYER_EAGLE"]
"""Algorithms that can change their shape."""


def plans_of(build: Build) -> dict[Shape, Json]:
    """The plans by shape."""
    return {built.shape: written(built.plan) for built in build.shapes}


def in_arena(plan: Json) -> dict[str, Json]:
    """The buffers of the arena by name."""
    return {buffer["name"]: buffer for buffer in plan["buffers"] if buffer["owner"] == "arena"}


def keeps(buffer: Json) -> bool:
    """Whether a buffer lives across steps."""
    return buffer["lifetime"][1] >= FOREVER


def end(buffer: Json) -> int:
    return buffer["offset"] + buffer["bytes"]


def share(buffer: Json, other: Json) -> bool:
    """Whether two buffers have a byte in common."""
    return buffer["offset"] < end(other) and other["offset"] < end(buffer)


def check_places(plans: list[Json]) -> None:
    """Buffers that keep their content are in one place everywhere, and apart from all else of any shape."""
    kept: dict[str, list[Json]] = {}
    for plan in plans:
        for name, buffer in in_arena(plan).items():
            if keeps(buffer):
                kept.setdefault(name, []).append(buffer)
    for name, found in kept.items():
        assert len({(b["offset"], b["dtype"], tuple(b["shape"][1:]), b["init"]) for b in found}) == 1, name
    largest = {name: max(found, key=end) for name, found in kept.items()}
    for (name, first), (other, second) in combinations(largest.items(), 2):
        assert not share(first, second), f"{name} and {other}"
    for plan in plans:
        for name, buffer in in_arena(plan).items():
            others = [other for other, place in largest.items() if other != name and share(buffer, place)]
            assert keeps(buffer) or not others, f"{name} and {others}"


def check_live(plan: Json) -> None:
    """Buffers of one plan that live together are apart."""
    for buffer, other in combinations(in_arena(plan).values(), 2):
        together = buffer["lifetime"][0] <= other["lifetime"][1] and other["lifetime"][0] <= buffer["lifetime"][1]
        assert not (together and share(buffer, other)), f"{buffer['name']} and {other['name']}"


def check_bytes(plans: list[Json]) -> None:
    """What plans say of their memory is what their tensors take; one allocation, of the largest, is enough."""
    parsed = [read_plan(plan) for plan in plans]
    memory = allocate(parsed, torch.device("cpu"))
    assert memory.nbytes == max(plan["memory"]["arena"] for plan in plans)
    for plan, own in zip(plans, parsed, strict=True):
        assert plan["memory"]["arena"] == max(end(buffer) for buffer in in_arena(plan).values())
        found = Memory.of(own, Arena(own, torch.device("cpu"), memory=memory), {})
        assert (found.arena, found.graphs) == (memory.nbytes, {})
        assert (found.relay, found.scratch) == (plan["memory"]["relay"], plan["memory"]["scratch"])


def check_carry(plans: list[Json]) -> None:
    """Every shape carries the same, in pool rows of the same size."""
    for plan in plans[1:]:
        assert [sizes(plan, field) for field in plan["carry"]] == [
            sizes(plans[0], field) for field in plans[0]["carry"]
        ]
        assert plan["memory"]["relay"] == plans[0]["memory"]["relay"]
        for field in plan["carry"]:
            pools = [in_arena(of_shape)[f"relay.{field['name']}"] | {"axes": None} for of_shape in (plan, plans[0])]
            assert pools[0] == pools[1]


def sizes(plan: Json, field: Json) -> Json:
    """A carried field with the sizes of its axes: a root's children are branches of the widest shape."""
    axes = [plan["dims"].get(axis, axis) for axis in field["axes"][1:]]
    return field | {"axes": axes}


def check_slots(plans: list[Json]) -> None:
    """Branches are as far apart as the plan says, at every shape alike, and no slot is behind the window.

    An engine that reads any of the plans has room for all.
    """
    for plan in plans:
        kv = plan["kv"]
        assert (kv["reserve"], kv["branch_room"], plan["serving"]) == (
            plans[0]["kv"]["reserve"],
            plans[0]["kv"]["branch_room"],
            plans[0]["serving"],
        )
        assert 2 * kv["window"] <= kv["reserve"]
        for op in [op for phase in plan["phases"] for node in phase["nodes"] for op in node["ops"]]:
            if op["op"] == "kv.branch_slots":
                assert op["attrs"]["room"] == kv["branch_room"]
                assert max(behind(plan, op["attrs"])) <= kv["window"]


def behind(plan: Json, attrs: Json) -> list[int]:
    """Positions from the committed length to the end of the last branch's slots, for every length of a last page."""
    found: list[int] = []
    for length in range(attrs["page"]):
        base = length + attrs["offset"]
        run = -(-(base % attrs["page"] + attrs["room"]) // attrs["page"]) * attrs["page"]
        found.append(base + (plan["dims"]["K"] - 1) * run + plan["dims"]["D"] - length)
    return found


@st.composite
def several(draw: st.DrawFn) -> Json:
    """A configuration of up to three depths, or of shapes; a tree's nodes are at most those of the deepest."""
    keys = draw(configs(SEVERAL, rotates=False))
    deepest = keys["num_steps"]
    others = draw(st.lists(st.integers(0, deepest - 1), max_size=2, unique=True))
    if draw(st.booleans()):
        return keys | {"num_steps": sorted([*others, deepest])}
    widest, nodes = keys.pop("topk"), keys.pop("num_draft_tokens", 2)
    del keys["num_steps"]
    largest = needs(keys["algorithm"]).most_nodes
    shapes: list[Json] = []
    for steps in (*others, deepest):
        topk = draw(st.integers(1, widest)) if steps else 1
        tree = {"topk": topk, "num_draft_tokens": min(nodes, largest(topk, steps))} if topk > 1 else {}
        shapes.append({"num_steps": steps, **tree})
    return keys | {"shapes": shapes}


@settings(max_examples=20)
@given(several())
def test_random_programs_are_linked(keys: Json) -> None:
    plans = list(plans_of(build_program(load_text(to_yaml(keys), Path("random.yaml"), names(), needs))).values())
    steps = keys["num_steps"] if "num_steps" in keys else [shape["num_steps"] for shape in keys["shapes"]]
    assert [plan["dims"]["S"] for plan in plans] == sorted(steps, reverse=True)
    for plan in plans:
        check_live(plan)
    check_places(plans)
    check_bytes(plans)
    check_carry(plans)
    check_slots(plans)


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_branches_of_every_shape_have_room_for_the_deepest(page_size: int) -> None:
    """The runs of branches do not depend on the shape, so that an engine finds them without knowing it."""
    built = build_program(load(topk=4, num_draft_tokens=20, page_size=page_size, num_steps=[1, 2, 4, 6]))
    plans = list(plans_of(built).values())
    check_slots(plans)
    assert [plan["kv"]["branch_room"] for plan in plans] == [6, 6, 6, 6]


@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE"])
@pytest.mark.parametrize("keys", [{}, TREE, MIXED], ids=["chain", "tree", "mixed"])
def test_programs_of_three_shapes_are_linked(algorithm: str, keys: Json) -> None:
    plans = list(
        plans_of(build_program(load(algorithm, **({} if keys is MIXED else {"num_steps": [1, 2, 4]}), **keys))).values()
    )
    check_places(plans)
    check_bytes(plans)
    check_carry(plans)
    check_slots(plans)
    assert len({plan["memory"]["arena"] for plan in plans}) == 3


def test_one_depth_is_as_it_is_without_a_list() -> None:
    plain, listed = (build_program(load(num_steps=steps)) for steps in (3, [3]))
    assert plain.plan == listed.plan


def test_a_shape_carries_what_another_reads() -> None:
    """One draft step never reads hidden states of the last step; alone, it does not carry them."""
    alone = written(build_program(load(num_steps=1)).plan)
    both = {shape.num_steps: plan for shape, plan in plans_of(build_program(load(num_steps=[1, 3]))).items()}
    deep = written(build_program(load(num_steps=3)).plan)
    assert "hidden" not in {field["name"] for field in alone["carry"]}
    assert both[1]["carry"] == both[3]["carry"] == deep["carry"]
    for entry in ("prefill", "step"):
        assert "hidden" in stored(both[1], entry)
        assert "hidden" not in stored(alone, entry)


def stored(plan: Json, entry: str) -> set[str]:
    """Fields that an entry stores."""
    nodes = [node for phase in plan["phases"] if phase["entry"] == entry for node in phase["nodes"]]
    return {op["attrs"]["field"] for node in nodes for op in node["ops"] if op["op"] == "carry.store"}


def test_what_is_kept_says_so() -> None:
    """Only where the depths differ, and at all of them."""
    both = [module for _, module, _ in compile_shapes(load(num_steps=[1, 3]))]
    for module in both:
        assert {carry.name for carry in module.carries.values() if carry.kept} == {"hidden"}
        assert " kept" in next(line for line in print_module(module).splitlines() if "carry @hidden" in line)
    for steps in (1, 3, [2, 3]):
        for _, module, _ in compile_shapes(load(num_steps=steps)):
            assert not any(carry.kept for carry in module.carries.values())


@pytest.mark.parametrize("algorithm", SEVERAL)
def test_modules_of_depths_can_be_read_again(algorithm: str) -> None:
    for _, module, _ in compile_shapes(load(algorithm, num_steps=[1, 3])):
        again = parse_module(print_module(module))
        assert kept_fields(again) == kept_fields(module)
        assert print_module(again) == print_module(module)


def kept_fields(module: Module) -> list[tuple[str, str, bool]]:
    return [(carry.name, str(carry.type), carry.kept) for carry in module.carries.values()]
