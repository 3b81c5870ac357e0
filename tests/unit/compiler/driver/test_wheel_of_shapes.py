"""What is written of a program of several shapes: every file once, every plan with all that it launches."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from programs import load

from specc.compiler.driver.build import Build, build_program
from specc.compiler.driver.files import emit_kernels, emit_plan, emit_specir
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import plan_text
from specc.runtime.plan.nodes import Launch
from specc.runtime.program import load as load_program

FILES = (("plan", "json"), ("module", "specir"))
STEPS = [1, 2, 4]
TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 16}
PROGRAMS: list[tuple[str, dict[str, Any]]] = [
    ("EAGLE", {}),
    ("EAGLE", TREE),
    ("STANDALONE", {}),
    ("FROZEN_KV_MTP", TREE),
    ("DFLASH", {}),
    ("NGRAM", {}),
]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda p: f"{p[0].lower()}-{'tree' if p[1] else 'chain'}")
def built(request: pytest.FixtureRequest) -> Build:
    algorithm, keys = request.param
    return build_program(load(algorithm, num_steps=STEPS, **keys))


@pytest.fixture
def package(built: Build, tmp_path: Path) -> Path:
    """The unpacked package of its wheel."""
    (wheel,) = emit_wheel(built, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "specc_program_small"


def test_equal_code_is_one_kernel(built: Build) -> None:
    """No two have the same code for the same arguments, and every name is of one kernel."""
    code = [
        (source.function, _body(source.text), source.arguments, source.constants, source.aligned, source.num_warps)
        for source in built.sources
    ]
    assert len(set(code)) == len(code)
    names = [source.name for source in built.sources]
    assert len({name.lower() for name in names}) == len(names)
    by_name = {source.name: source for source in built.sources}
    for shape in built.shapes:
        assert all(by_name[source.name] == source for source in shape.generated.sources)


def _body(text: str) -> str:
    """A kernel without the comment above it, which says for what it was made."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(("import ", "from ")))
    return "\n".join(lines[first:])


def test_shapes_share_what_does_not_depend_on_them(built: Build) -> None:
    """Prefill is the same for all; a step of another shape verifies another number of tokens."""
    launched = {shape.shape: shape.generated.kernel_of for shape in built.shapes}
    prefill = [{k for node, k in nodes.items() if node.startswith("prefill")} for nodes in launched.values()]
    assert prefill[0] == prefill[1] == prefill[2] != set()
    assert [nodes["verify_argmax"] for nodes in launched.values()] == [
        "verify_argmax",
        *(f"verify_argmax_of_{shape}" for shape in list(launched)[1:]),
    ]


def test_every_plan_finds_its_kernels(built: Build, package: Path) -> None:
    launched = set[str]()
    for shape in built.shapes:
        plan = shape.plan
        nodes = [node for phase in plan.phases for node in phase.nodes if isinstance(node, Launch)]
        assert {node.kernel for node in nodes} == plan.kernels.keys()
        for name, kernel in plan.kernels.items():
            assert (package / kernel.source).name == f"{name}.py"
            assert (package / kernel.source).is_file()
        launched |= plan.kernels.keys()
    assert launched == {source.name for source in built.sources}


def test_the_package_has_a_plan_and_a_module_of_every_shape(built: Build, package: Path) -> None:
    manifest = Manifest.read(package)
    deepest, *others = (str(shape.shape) for shape in built.shapes)
    assert dict(manifest.plans) == {deepest: "plan.json"} | {name: f"plan.{name}.json" for name in others}
    for shape in built.shapes:
        file = manifest.plans[str(shape.shape)]
        assert (package / file).read_text() == plan_text(shape.plan)
        text = (package / file.replace("plan", "module").replace("json", "specir")).read_text()
        assert text == print_module(shape.module)
        assert parse_module(text).size("A") == shape.shape.num_steps + 1
    assert {f"{stem}.{name}.{kind}" for name in others for stem, kind in FILES} <= manifest.files.keys()


def test_it_loads(built: Build, package: Path) -> None:
    program = load_program(package, "cpu")
    assert [shape.num_steps for shape in program.plans] == [4, 2, 1]
    assert program.plan is next(iter(program.plans.values()))
    for shape in built.shapes:
        plan = program.plans[shape.shape]
        assert plan == shape.plan
        assert (plan.size("S"), plan.size("A"), plan.size("N")) == (
            shape.shape.num_steps,
            shape.shape.num_steps + 1,
            shape.loaded.config.num_nodes,
        )


def test_bytes_are_reproducible(built: Build, tmp_path: Path) -> None:
    config = built.loaded.config
    keys = TREE if config.file.topk > 1 else {}
    (wheel,) = emit_wheel(built, tmp_path / "one")
    (other,) = emit_wheel(build_program(load(config.algorithm, num_steps=STEPS, **keys)), tmp_path / "other")
    assert wheel.read_bytes() == other.read_bytes()


def test_files_beside_the_wheel(built: Build, tmp_path: Path) -> None:
    plans = [path.name for path in emit_plan(built, tmp_path)]
    others = [str(shape.shape) for shape in built.shapes[1:]]
    assert plans == ["plan.json", *(f"plan.{name}.json" for name in others)]
    assert [json.loads((tmp_path / name).read_text())["dims"]["S"] for name in plans] == [4, 2, 1]
    assert [p.name for p in emit_specir(built, tmp_path)] == [
        "module.specir",
        *(f"module.{name}.specir" for name in others),
    ]
    written = {path.relative_to(tmp_path).as_posix() for path in emit_kernels(built, tmp_path)}
    assert {f"kernels/{source.name}.py" for source in built.sources} <= written
