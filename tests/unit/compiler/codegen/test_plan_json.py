"""plan.json says what docs/plan.md says it does, and everything it names exists."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from programs import ROOT, load, written

from specc.compiler.algorithms import names
from specc.compiler.driver.build import Build, build_program
from specc.compiler.ir.text.printer import print_module
from specc.runtime.plan.files.plan_json import plan_text, read_plan
from specc.runtime.plan.nodes import KINDS, External, Launch

DOC = (ROOT / "docs" / "plan.md").read_text()
SIZES = {"i1": 1, "u8": 1, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4}


TREE: dict[str, Any] = {"topk": 2, "num_draft_tokens": 6, "page_size": 16, "mask": "bitpacked"}
EXTRAS = {"outputs": ["logprobs", "routed_experts"], "target": {"experts_per_token": 2}}


@pytest.fixture(
    scope="module",
    params=[
        ("STANDALONE", {"outputs": ["accept_index"], "overlap": False}),
        ("EAGLE", {"outputs": ["accept_index"]}),
        ("STANDALONE", TREE),
        ("EAGLE", TREE | EXTRAS | {"page_size": 1, "overlap": False}),
    ],
    ids=["standalone", "eagle", "tree", "tree with extras"],
)
def build(request: pytest.FixtureRequest) -> Build:
    """Programs of either algorithm and shape."""
    algorithm, keys = request.param
    return build_program(load(algorithm, **keys))


@pytest.fixture(scope="module")
def plan(build: Build) -> Any:
    """The plan, as a reader of the file sees it."""
    return written(build.plan)


def nodes_of(plan: Any) -> list[Any]:
    """All nodes in order."""
    return [node for phase in plan["phases"] for node in phase["nodes"]]


@pytest.mark.parametrize("algorithm", names())
def test_disaggregation_changes_nothing_else(algorithm: str) -> None:
    """Every program can move its requests, so the key only says what it is meant for."""
    together, apart = (build_program(load(algorithm, disaggregation=apart)) for apart in (False, True))
    assert (together.plan.disaggregation, apart.plan.disaggregation) == (False, True)
    assert written(apart.plan)["disaggregation"] is True
    assert together.plan == replace(apart.plan, disaggregation=False)
    assert together.generated.sources == apart.generated.sources


def test_top_level_keys_are_documented(plan: Any) -> None:
    table = DOC[DOC.index("## Top level") : DOC.index("## Nodes")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == {*plan, "engine", "runs_as"}


@pytest.mark.engines
def test_the_plan_of_an_engine_has_the_engine_and_what_it_settles() -> None:
    """Written out by hand, the same is a plan for any engine."""
    logits = {"logits_dtype": "float32", "dtype": "bfloat16"}
    for_engine = build_program(load("STANDALONE", engine="sglang", target=logits, draft=logits)).plan
    by_hand = {"draft_positions": "shifted", "max_requests": 256, "target": logits, "draft": logits}
    plan = build_program(load("STANDALONE", **by_hand)).plan
    assert "engine" not in written(plan)
    assert for_engine == replace(plan, engine="sglang")
    assert written(for_engine) == written(plan) | {"engine": "sglang"}


def test_the_figures_are_documented(plan: Any) -> None:
    for figures in plan["totals"].values():
        for key in figures:
            assert key in DOC
    assert list(plan["totals"]) == [str(bucket) for bucket in plan["buckets"]]


def test_no_place_or_time_gets_in(build: Build, plan: Any) -> None:
    text = plan_text(build.plan)
    assert str(ROOT) not in text
    assert not re.search(r"20\d\d-\d\d-\d\d", text)
    assert json.loads(text, object_pairs_hook=in_order) == plan


def in_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the text, whose keys are sorted."""
    assert pairs == sorted(pairs, key=lambda pair: pair[0])
    return dict(pairs)


def test_a_record_has_a_line(build: Build, plan: Any) -> None:
    lines = {line.strip().removesuffix(",") for line in plan_text(build.plan).splitlines()}
    records = [*plan["buffers"], *plan["carry"], *(node for phase in plan["phases"] for node in phase["nodes"])]
    assert {json.dumps(record, sort_keys=True) for record in records} <= lines
    named = [f"{json.dumps(name)}: {json.dumps(kernel, sort_keys=True)}" for name, kernel in plan["kernels"].items()]
    assert set(named) <= lines


def test_names_lead_somewhere(plan: Any) -> None:
    buffers = {buffer["name"]: buffer for buffer in plan["buffers"]}
    inputs = {value["name"] for value in plan["inputs"]}
    values = plan["values"]
    for name, value in values.items():
        buffer = buffers[value["buffer"]]
        assert buffer["dtype"] == value["dtype"], name
        assert len(buffer["axes"]) == len(value["axes"]), name
        assert all(axis in plan["dims"] or axis.isdecimal() or axis == "T" for axis in value["axes"]), name
    for output in plan["outputs"]:
        assert output["value"] in values
    for field in plan["carry"]:
        assert buffers[f"relay.{field['name']}"]["axes"] == ["P", *field["axes"][1:]]
    for node in nodes_of(plan):
        for argument in node.get("args", []):
            kinds = {"value": values, "buffer": buffers, "input": inputs, "stride": inputs, "size": inputs}
            kinds["row_stride"] = buffers
            kinds["slot_stride"] = {owner for owner, pool in plan["kv_pools"].items() if pool["bound"]}
            assert {*kinds, "literal"} == set(KINDS)
            if argument["kind"] == "literal":
                assert set(argument) == {"name", "kind", "literal"}, argument
            else:
                assert set(argument) - {"axis"} == {"name", "kind", "target"}, argument
                assert argument["target"] in kinds[argument["kind"]], argument
        for name in [*node.get("operands", {}).values(), *node.get("results", {}).values()]:
            assert name in values or name in inputs, name


def test_buffers_hold_their_shapes(plan: Any) -> None:
    for buffer in plan["buffers"]:
        assert buffer["bytes"] == math.prod(buffer["shape"]) * SIZES[buffer["dtype"]]
        assert (buffer["offset"] is None) == (buffer["owner"] == "engine")
        expected = [math.prod(buffer["shape"][axis + 1 :]) for axis in range(len(buffer["shape"]))]
        assert buffer["strides"] == expected, buffer["name"]


def test_launches(plan: Any) -> None:
    for node in nodes_of(plan):
        if node["kind"] != "launch":
            continue
        kernel = plan["kernels"][node["kernel"]]
        assert [argument["name"] for argument in node["args"]] == [name for name, _ in kernel["arguments"]]
        assert set(node["grid"]) == {str(bucket) for bucket in plan["buckets"]}
        assert all(grid[0] == int(bucket) for bucket, grid in node["grid"].items())
        assert set(kernel["aligned"]) <= {name for name, kind in kernel["arguments"] if kind.startswith("*")}
        assert kernel["source"] == f"kernels/{node['kernel']}.py"


def test_ops_follow_dataflow(plan: Any) -> None:
    """Every op reads inputs, or what an op before it, of either entry, has made."""
    known = {value["name"] for value in plan["inputs"]}
    for node in nodes_of(plan):
        for op in node["ops"]:
            assert set(op["operands"]) <= known, op
            known |= set(op["results"])
            assert "kernel" not in op["attrs"]


def test_captures_name_their_nodes(plan: Any) -> None:
    (capture,) = plan["captures"]
    step = [n["name"] for phase in plan["phases"] if phase["entry"] == "step" for n in phase["nodes"]]
    assert capture["nodes"] == step
    assert all(step.index(before) < step.index(after) for before, after in capture["edges"])
    assert capture["entry"] == "step"


def test_segments_are_the_launches_between_forwards(plan: Any) -> None:
    """Every launch of the step is in one of them, every dependency between two of the same one is there."""
    step = [node for phase in plan["phases"] if phase["entry"] == "step" for node in phase["nodes"]]
    launches = "".join("," if node["kind"] == "external" else f" {node['name']}" for node in step)
    assert [segment["nodes"] for segment in plan["segments"]] == [run.split() for run in launches.split(",") if run]
    assert [segment["name"] for segment in plan["segments"]] == [segment["nodes"][0] for segment in plan["segments"]]
    (whole,) = plan["captures"]
    for segment in plan["segments"]:
        inside = [edge for edge in whole["edges"] if set(edge) <= set(segment["nodes"])]
        assert sorted(segment["edges"]) == sorted(inside)
        assert segment["phases"] == list(dict.fromkeys(phase_of(plan, name) for name in segment["nodes"]))


def phase_of(plan: Any, name: str) -> str:
    """The phase of a node."""
    return next(phase["name"] for phase in plan["phases"] if name in [node["name"] for node in phase["nodes"]])


def test_memory_is_counted_from_buffers(plan: Any) -> None:
    arena = [buffer for buffer in plan["buffers"] if buffer["owner"] == "arena"]
    memory = plan["memory"]
    assert memory["arena"] == max(buffer["offset"] + buffer["bytes"] for buffer in arena)
    assert {figures["arena_bytes"] for figures in plan["totals"].values()} == {memory["arena"]}
    assert memory["relay"] == sum(buffer["bytes"] for buffer in arena if buffer["name"].startswith("relay."))
    used = {value["buffer"] for value in plan["values"].values()} | {value["name"] for value in plan["inputs"]}
    own = [b for b in arena if b["name"] not in used and not b["name"].startswith(("relay.", "kv."))]
    assert memory["scratch"] == len({byte for b in own for byte in range(b["offset"], b["offset"] + b["bytes"])})


def test_the_runtime_reads_it(build: Build, plan: Any) -> None:
    """Every word of it stands where the keys say, and a plan that was written and read is the same plan."""
    read = read_plan(plan)
    assert read == build.plan
    assert read.buckets == tuple(plan["buckets"])
    assert [node.name for node in read.nodes("step")] == plan["captures"][0]["nodes"]
    for owner, pool in read.kv_pools.items():
        assert plan["kv_pools"][owner] == vars(pool)
    step = [node for node in nodes_of(plan) if node["name"] in plan["captures"][0]["nodes"]]
    for node, written_node in zip(read.nodes("step"), step, strict=True):
        assert node.kind == written_node["kind"]
        if isinstance(node, Launch):
            assert [(arg.name, arg.kind, arg.target, arg.axis, arg.literal) for arg in node.args] == [
                (arg["name"], arg["kind"], arg.get("target", ""), arg.get("axis", 0), arg.get("literal"))
                for arg in written_node["args"]
            ]
        else:
            assert isinstance(node, External)
            assert (node.operands, node.results) == (written_node["operands"], written_node["results"])


@pytest.mark.parametrize("algorithm", names())
@pytest.mark.parametrize("keys", [{}, {"num_steps": 1}, {"overlap": False}], ids=["steps", "one step", "apart"])
def test_nothing_is_lost_by_writing_and_reading(algorithm: str, keys: dict[str, Any]) -> None:
    plan = build_program(load(algorithm, **keys)).plan
    again = read_plan(written(plan))
    assert again == plan
    assert plan_text(again) == plan_text(plan)


def test_kv_pools(plan: Any) -> None:
    """A tree's kernels move rows of the target, and of the draft where pages are longer than a token."""
    tree, paged = plan["dims"]["K"] > 1, plan["kv"]["page_size"] > 1
    bound = {owner: pool.pop("bound") for owner, pool in copy.deepcopy(plan["kv_pools"]).items()}
    assert bound == {"target": tree, "draft": tree and paged}
    for pool in plan["kv_pools"].values():
        assert pool | {"bound": 0} == {"layers": 2, "buffers": 2, "row_bytes": 128, "dtype": "float32", "bound": 0}
    assert plan["kv"]["branch_room"] == (3 if tree else 0)
    assert plan["kv"]["longest"] is None


def test_the_target_hands_over_what_the_outputs_ask_for(plan: Any) -> None:
    (target,) = [node for node in nodes_of(plan) if node.get("callback") == "target"]
    outputs = {output["name"]: output["value"] for output in plan["outputs"] if output["entry"] == "step"}
    assert plan["serving"].get("extras", []) == (["routed_experts"] if "routed_experts" in outputs else [])
    assert ("routed_experts" in target["results"]) == ("routed_experts" in outputs)
    if "routed_experts" in outputs:
        assert plan["values"][target["results"]["routed_experts"]]["axes"] == ["B", "N", "2", "2"]
        assert plan["values"][outputs["routed_experts"]]["axes"] == ["B", "A", "2", "2"]
        assert plan["values"][outputs["logprobs"]]["axes"] == ["B", "A"]
    assert ("mask" in target["operands"]) == (plan["dims"]["K"] > 1)
    if "mask" in target["operands"]:
        mask = plan["values"][target["operands"]["mask"]]
        assert (mask["dtype"], mask["axes"]) == ("u8", ["B", "N", "1"])


def test_a_mask_over_the_text_bounds_its_length() -> None:
    keys = TREE | {"mask": "full", "context_length": 100}
    plan = build_program(load("STANDALONE", **keys)).plan
    assert plan.kv.longest == 100
    (target,) = [node for node in plan.externals() if node.callback == "target"]
    assert plan.values[target.operands["mask"]].axes == ("B", str(6 * (100 + 6)))


def test_equal_launches_share_their_kernel() -> None:
    """Of four launches after draft forwards only the last differs: it does not advance."""
    build = build_program(load("STANDALONE", num_steps=5))
    drafts = {name: kernel for name, kernel in build.generated.kernel_of.items() if name.startswith("draft")}
    shared = dict.fromkeys(("draft_argmax_0", "draft_argmax_1", "draft_argmax_2"), "draft_argmax_0")
    assert drafts == {**shared, "draft_argmax_3": "draft_argmax_3"}
    assert build.generated.source("draft_argmax_0").name == "draft_argmax_0"


def test_headers_say_where_a_kernel_comes_from(build: Build) -> None:
    for source in build.generated.sources:
        head = source.text[: source.text.index("import")]
        assert source.name in head
        assert "small.yaml" in head
        assert any(opcode in head for opcode in ("vocab.", "kv.", "tree.", "health.clear"))
        assert str(ROOT) not in source.text


def test_figures_are_those_of_the_module(build: Build, plan: Any) -> None:
    assert plan["name"] == build.module.name
    assert f"module @{plan['name']} {{" in print_module(build.module)
    assert plan["dims"]["A"] == plan["dims"]["S"] + 1 == plan["dims"]["D"] + 2
    assert plan["dims"]["N"] == (plan["dims"]["A"] if plan["dims"]["K"] == 1 else 6)


@pytest.mark.parametrize("algorithm", ["DSPARK", "DFLASH2"])
def test_weights_that_an_engine_has_are_read_in_whole_vectors(algorithm: str) -> None:
    """Kernels are promised where both tables begin, and not where those of slots do, which may be views."""
    plan = build_program(load(algorithm)).plan
    of_input = {
        (node.kernel, argument.name): argument.target
        for node in plan.nodes("step")
        if isinstance(node, Launch)
        for argument in node.args
        if argument.kind == "input"
    }
    promised = {target: name in plan.kernels[kernel].aligned for (kernel, name), target in of_input.items()}
    tables = {"DSPARK": ("markov_w1", "markov_w2"), "DFLASH2": ("selector_before", "selector_after")}[algorithm]
    assert promised == {plan.table: False} | dict.fromkeys(tables, True)
