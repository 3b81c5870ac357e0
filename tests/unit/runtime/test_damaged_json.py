"""Plans and manifests with anything in the place of anything: read, or refused by name."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.plans import chain_plan, program_of, tree_plan

from specc.runtime.batch import Batch
from specc.runtime.errors import BindError, DamagedWheelError, PlanError, SpeccError, UnsupportedTorchError
from specc.runtime.plan.files.manifest import MANIFEST, PLAN, Manifest
from specc.runtime.plan.files.plan_json import load_plan, read_plan
from specc.runtime.plan.plan import FORMAT, Plan

Json = dict[str, Any]
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 256, 10**6, 1 << 62, 1 << 63, 1 << 64, -(10**30), 10**30, 0.5, -0.0, 1e300),
    *("", "B", "P", "0", "1e9", "\x00", "../../x", "/", "i64", "arena", "health", "x" * 10_000, "\ud800", "prefill"),
    *([], [[]], [None], [1, "a"], {}, {"": None}, {"a": {"b": []}}, [{}], ["B"], [1, 2, 3]),
]


def manifest_json() -> Json:
    """A manifest with machine code and plans of two depths."""
    code = {"kernel": "prepare", "arch": "sm_90", "kind": "cubin", "file": "machine_code/p.cubin", "entry": "prepare"}
    code |= {"num_warps": 4, "shared": 0, "parameters": ["*i64", "i64"], "registers": 40}
    return {
        "name": "toy",
        "version": "0.1.0+p1",
        "digest": "0" * 64,
        "specc": "0.1.0",
        "triton": "3.8.0",
        "plan_format": FORMAT,
        "torch": "2.11",
        "archs": ["sm_90"],
        "artifacts": [code],
        "engine": "sglang",
        "files": {"plan.json": "1" * 64, "plan.1.json": "2" * 64, "machine_code/p.cubin": "3" * 64},
        "plans": {"3": "plan.json", "1": "plan.1.json"},
        "assemblers": {"sm_90": {"version": "12.8.93", "driver": 12000}},
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, by the keys that lead there."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    """Something else in a place: an odd value, nothing, what stands elsewhere, another key, a thing twice."""
    value = json.loads(json.dumps(value))  # a copy, much sooner than by copy.deepcopy
    if not path:
        return rng.choice(ODD)
    holder: Any = value
    for key in path[:-1]:
        holder = holder[key]
    how, last = rng.randrange(8), path[-1]
    if how == 0:
        del holder[last]
    elif how == 1 and isinstance(holder, list):
        holder.insert(last, holder[last])
    elif how == 1:
        holder[rng.choice(["", "a", "-1", "1.5"])] = holder.pop(last)
    elif how == 2:
        place = rng.choice(list(places(value)))
        elsewhere = value
        for key in place:
            elsewhere = elsewhere[key]
        holder[last] = copy.deepcopy(elsewhere)
    elif isinstance(holder[last], int) and how < 5:
        holder[last] += rng.choice([-1, 1, -(1 << 40), 1 << 40])
    else:
        holder[last] = rng.choice(ODD)
    return value


def written(folder: Path, name: str, value: Any) -> Path:
    (folder / name).write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")
    return folder


def test_manifests(tmp_path: Path) -> None:
    """What is read can be used: every method answers, or raises an error of its own."""
    rng, whole, outcomes = random.Random(0), manifest_json(), {"read": 0, "refused": 0}
    Manifest.read(written(tmp_path, MANIFEST, whole))
    for path in [path for path in places(whole) for _ in range(12)]:
        written(tmp_path, MANIFEST, changed(whole, path, rng))
        try:
            manifest = Manifest.read(tmp_path)
        except DamagedWheelError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        for call in (lambda m: m.verify(tmp_path), lambda m: m.check_torch("2.12"), lambda m: m.artifacts_for("sm_90")):
            with suppress(SpeccError):
                call(manifest)
    assert min(outcomes.values()) > 50


@pytest.mark.parametrize("make", [chain_plan, tree_plan])
def test_plans(make: Any, tmp_path: Path) -> None:
    """What is read can be asked and bound, or an error of its own says why not."""
    rng, whole, outcomes = random.Random(1), make(), {"read": 0, "refused": 0}
    everywhere = list(places(whole))
    for path in [(), *((key,) for key in whole for _ in range(3)), *rng.choices(everywhere, k=250)]:
        written(tmp_path, PLAN, changed(whole, path, rng))
        try:
            plan = load_plan(tmp_path)
        except (PlanError, DamagedWheelError):
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        with suppress(SpeccError):
            asked(plan)
    assert min(outcomes.values()) > 50


def asked(plan: Plan) -> None:
    """Everything short of a step."""
    if plan.memory.arena > 1 << 30:
        return  # so much memory may be there
    program = program_of(plan)
    assert program.schema_digest
    kv = {owner: [torch.zeros(4, 4) for _ in range(4)] for owner in plan.kv_pools}
    methods = dict.fromkeys(plan.callbacks(), lambda self, **given: None)
    with suppress(BindError):
        program.bind(type("Callbacks", (), methods)(), torch.zeros(2, 50, dtype=torch.int32), kv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe{}", "decode"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"format": NaN}', "NaN is no number"),
        (b'{"format": -Infinity}', "-Infinity is no number"),
        (b'{"format": 1e999}', "1e999 is too large"),
        (b'{"format": 4, "name": "a", "format": 4}', "key 'format' is there twice"),
        (b'{"format": ' + b"9" * 5000 + b"}", "limit"),
        (b'{"format": 4}\x00', "Extra data"),
        (b'"\n"', "control character"),
    ],
)
def test_texts_that_are_no_json(text: bytes, message: str, tmp_path: Path) -> None:
    for name, read in ((PLAN, load_plan), (MANIFEST, Manifest.read)):
        (tmp_path / name).write_bytes(text)
        with pytest.raises(DamagedWheelError, match=f"(?s)^{name}(: | cannot be read: ).*{message}"):
            read(tmp_path)


@pytest.mark.parametrize("value", ODD, ids=[str(i) for i in range(len(ODD))])
def test_values_that_are_no_plan(value: Any, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="plan format"):
        read_plan(value)
    with pytest.raises(DamagedWheelError, match=MANIFEST):
        Manifest.read(written(tmp_path, MANIFEST, value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["dims"].update(P=True), r"malformed plan: the plan.dims.P is True"),
        (lambda d: d["buffers"][0].update(shape=[-1]), r"the plan.buffers\[0\].shape\[0\] is -1"),
        (lambda d: d["buffers"][0].update(dtype="i7"), "is of the unknown dtype 'i7'"),
        (lambda d: d["buffers"][0].update(strides=[]), "not a stride for every axis"),
        (lambda d: d["buffers"][0].update(bytes=1 << 40), "ends behind the arena"),
        (lambda d: d["kv"].pop("window"), "malformed plan: the plan.kv has no 'window'"),
        (lambda d: d["dims"].pop("A"), "axis 'A' has no size"),
        (lambda d: d["dims"].update(A=1 << 31), "along A, which is 2147483648 long"),
        (lambda d: d["carry"][0].update(limit="9" * 5000), "axis '9+' has no size"),
        (lambda d: d["kernels"]["prepare_rows"].update(source=3), "the plan.kernels.prepare_rows.source is 3"),
        (lambda d: d.update(phases={}), "malformed plan: the plan.phases is {}"),
    ],
)
def test_what_a_plan_says_of_itself(change: Any, message: str) -> None:
    data = chain_plan()
    change(data)
    with pytest.raises(PlanError, match=message):
        read_plan(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("assemblers"), "has no 'assemblers'"),
        (lambda d: d.update(assemblers={}), "code without an assembler, or the reverse, for 'sm_90'"),
        (lambda d: d["assemblers"].update(sm_100=d["assemblers"]["sm_90"]), "or the reverse, for 'sm_100'"),
        (lambda d: d["assemblers"]["sm_90"].pop("driver"), "assemblers.sm_90 has no 'driver'"),
        (lambda d: d["assemblers"]["sm_90"].update(driver="12.0"), "assemblers.sm_90.driver is '12.0'"),
        (lambda d: d["assemblers"]["sm_90"].update(driver=-1), "assemblers.sm_90.driver is -1"),
        (lambda d: d["assemblers"]["sm_90"].update(version=12), "assemblers.sm_90.version is 12"),
    ],
)
def test_what_assembled_machine_code_is_known(change: Any, message: str, tmp_path: Path) -> None:
    data = manifest_json()
    change(data)
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(DamagedWheelError, match=message):
        Manifest.read(tmp_path)


def test_code_for_inspection_has_no_assembler(tmp_path: Path) -> None:
    data = manifest_json()
    data["artifacts"][0]["arch"] = "gfx942"
    data["assemblers"] = {}
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    assert not Manifest.read(tmp_path).assemblers


def test_a_release_of_any_length_is_compared() -> None:
    manifest = replace(program_of(read_plan(chain_plan())).manifest, torch="9" * 5000)
    with pytest.raises(UnsupportedTorchError):
        manifest.check_torch("2.13.0+cpu")
    manifest.check_torch("9" * 5000)


def test_an_op_that_cannot_be_computed_is_told_by_name() -> None:
    data = chain_plan()
    calls = [call for phase in data["phases"] for node in phase["nodes"] for call in node.get("ops", ())]
    (call,) = [call for call in calls if call["op"] == "kv.positions" and call["attrs"]["axis"] == "A"][:1]
    call["attrs"]["axis"] = "nowhere"
    plan = read_plan(data)
    methods = dict.fromkeys(plan.callbacks(), lambda self, **given: None)
    table = torch.zeros(plan.size("P"), 64, dtype=torch.int32)
    step = program_of(plan).bind(type("Callbacks", (), methods)(), table)
    with pytest.raises(PlanError, match=r"kv\.positions in 'prepare_rows' cannot be computed"):
        step.decode(Batch([1], [5]))
