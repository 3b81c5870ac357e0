"""A wheel has the capabilities that its program needs; whoever asks for another is told what brings it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from fakes.plans import chain_plan
from fakes.toy_wheel import PACKAGE, installed, toy_wheel
from programs import planned

import specc.runtime
from specc.compiler.driver.wheel.runtime_files import LISTS, runtime_files
from specc.runtime.plan import capabilities
from specc.runtime.plan.capabilities import CAPABILITIES, Capability
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import Plan
from specc.runtime.program import Program
from specc.runtime.rotated import RotatedStep

ROOT = Path(specc.runtime.__file__).parent
SIZES = {"kind": "GDN", "heads": 2, "rows": 4, "columns": 4, "groups": 1, "kernel": 4}
FOLDED = {"state_layers": 2, "state_form": "fold", "state": SIZES}
SHARDED = {"logits": "sharded", "tensor_parallel": 2}
PROGRAMS: list[tuple[str, dict[str, Any], list[Capability]]] = [
    ("STANDALONE", {}, []),
    ("EAGLE", {}, []),
    ("NGRAM", {}, []),
    ("EAGLE", {"verify": "target_only"}, [capabilities.SAMPLING]),
    ("STANDALONE", {"verify": "rejection", "sampling": ["grammar"]}, [capabilities.SAMPLING]),
    ("EAGLE", {"disaggregation": True}, [capabilities.RECORDS]),
    ("EAGLE", SHARDED, [capabilities.RANKS]),
    ("EAGLE", {"topk": 2, "num_draft_tokens": 6}, [capabilities.MOVES]),
    ("EAGLE", {"target": {"state_layers": 2, "state_form": "select"}}, [capabilities.SELECTED]),
    ("EAGLE", {"target": FOLDED}, [capabilities.FOLDED]),
    ("EAGLE", {"target": {"state_layers": 2, "state_form": "point"}}, [capabilities.POINTED]),
    ("EAGLE", {"step": "rotated", "disaggregation": True}, [capabilities.RECORDS, capabilities.ROTATED]),
    ("EAGLE", {"num_steps": [2, 3]}, [capabilities.SHAPES]),
]
MOST_LINES = 5245
"""Of the runtime of a greedy chain."""


def plans_of(number: int) -> tuple[Plan, ...]:
    algorithm, keys, _ = PROGRAMS[number]
    return planned(algorithm, **keys)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_which_there_are(number: int) -> None:
    """Files, public names, base classes, and nothing that a file imports and that is missing."""
    files, wanted = runtime_files(plans_of(number), "_"), PROGRAMS[number][2]
    for capability in CAPABILITIES:
        assert {f"_/{file}" in files for file in capability.files} == {capability in wanted}
    whole = {path: (ROOT / path.removeprefix("_/")).read_text() for path in files}
    assert {path for path in files if files[path] != whole[path]} <= {f"_/{path}" for path in LISTS}
    for path, text in files.items():
        for dots, module in re.findall(r"^from (\.+)([\w.]+) import ", text, re.MULTILINE):
            found = Path(path).parents[len(dots) - 1] / module.replace(".", "/")
            assert {f"{found}.py", f"{found}/__init__.py"} & files.keys(), (path, module)
    for path in LISTS:
        compile(files[f"_/{path}"], path, "exec")
        assert files[f"_/{path}"].count("Step,\n") <= 1 + len(wanted)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_greedy_chain_has_a_small_runtime(number: int) -> None:
    assert sum(text.count("\n") for text in runtime_files(plans_of(number), "_").values()) <= MOST_LINES


def test_names_are_of_their_files_and_of_no_others() -> None:
    """And nobody else has them, so that what is said of one is true."""
    text = (ROOT / "api.py").read_text()
    api = {
        name: f"{home.replace('.', '/')}.py" for home, name in re.findall(r"^from \.([\w.]+) import (\w+)", text, re.M)
    }
    named = [name for capability in CAPABILITIES for name in capability.names]
    assert len({*named}) == len(named)
    for capability in CAPABILITIES:
        assert all((ROOT / file).is_file() for file in capability.files)
        assert {name for name, home in api.items() if home in capability.files} == api.keys() & {*capability.names}
        for name in capability.names:
            assert name in api or hasattr(Program, name) or hasattr(RotatedStep, name)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[ModuleType]:
    """The package of a greedy chain."""
    with installed(toy_wheel(tmp_path), tmp_path / "site"):
        yield importlib.import_module(PACKAGE)


BROUGHT_BY = {
    "Sampling": "`verify: target_only`, `rejection` or `block`",
    "RecordLayout": "`disaggregation: true`",
    "check_peer": "`disaggregation: true`",
    "schema_digest": "`disaggregation: true`",
    "GroupCollective": "`logits: sharded`, or `draft.head` of several ranks",
    "RotatedStep": "`step: rotated`",
    "AcceptanceShape": "several numbers in `num_steps`, or `shapes`",
}


def test_a_package_says_what_brings_a_name(chain: ModuleType) -> None:
    for name, key in BROUGHT_BY.items():
        message = f"{name}: the program was built without it; {key} in its configuration brings it"
        with pytest.raises(chain.LackingError, match=f"^{re.escape(message)}$"):
            getattr(chain, name)
        assert name not in dir(chain)
        assert not hasattr(chain, name)
    with pytest.raises(
        AttributeError, match=r"^module 'specc_program_toy_chain' has no attribute 'nothing'$"
    ) as caught:
        _ = chain.nothing
    assert type(caught.value) is AttributeError


def test_programs_and_steps_say_it_too(chain: ModuleType) -> None:
    program = chain.load("cpu")
    engine = Engine.of_plan(read_plan(chain_plan()), seed=1)
    step = program.bind(engine, engine.table)
    for owner, names in ((program, ("schema", "record_layout")), (step, ("set_sampling", "count", "pack", "commit"))):
        for name in names:
            with pytest.raises(chain.LackingError, match=f"^{name}: the program was built without it; "):
                getattr(owner, name)
            assert not hasattr(owner, name)
    with pytest.raises(AttributeError, match=r"^'Step' object has no attribute 'nothing'$"):
        _ = step.nothing
    assert isinstance(chain.LackingError("x"), chain.SpeccError)


def test_a_plan_that_the_runtime_was_not_built_for_is_refused(chain: ModuleType) -> None:
    path = Path(str(chain.__file__)).with_name("plan.json")
    path.write_text(path.read_text().replace('"disaggregation": false', '"disaggregation": true'))
    assert read_plan(chain_plan()).disaggregation is False
    with pytest.raises(
        chain.PlanError, match=r"needs capabilities/records\.py, state/peer\.py, state/transfer\.py of the runtime"
    ):
        chain.load("cpu", verify=False)


def test_kv_buffers_of_a_chain_are_left_alone(chain: ModuleType) -> None:
    """Those of a model that the program does not know are a mistake all the same."""
    engine = Engine.of_plan(read_plan(chain_plan()), seed=1)
    program = chain.load("cpu")
    assert program.bind(engine, engine.table, {"target": [torch.zeros(3, 1)]})
    with pytest.raises(
        chain.BindError, match="kv_pools has 'other'; the program knows the KV buffers of draft, target"
    ):
        program.bind(engine, engine.table, {"other": []})
