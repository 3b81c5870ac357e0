"""What a choice changes of a program: its text, its grids, its wheel; and nothing where there is none."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from specc.compiler.codegen.cache import Cache
from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.driver.build import Build, build_program, compile_machine_code
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.tuning.file import Found, Gain, tuning_text
from specc.lab.measure.tuning.variants import kernels_of, knobs_of
from specc.runtime.plan.nodes import Launch

from .conftest import CHAIN, TREE, load

TUNING = Tuning("sm_90", "A GPU: #1", "0.1.0", "3.6.0", ())
GAIN = Gain(4, Ratio(1.25, 1.2, 1.3), 0.02)


def tuned(text: str, folder: Path, *choices: LaunchChoice) -> Build:
    """A program with choices, by way of a file as `specc tune` writes it."""
    findings = [Found((choice,), "what it was", (GAIN,)) for choice in choices]
    (folder / "t.yaml").write_text(tuning_text(replace(TUNING, choices=choices), findings, {2: [GAIN]}))
    return build_program(load(text + "tuning: t.yaml\n", folder))


def test_a_choice_for_all_shapes_holds_where_a_shape_has_its_buckets(tmp_path: Path) -> None:
    shapes = "shapes: [{num_steps: 2}, {num_steps: 1, buckets: [1]}]"
    build = tuned(CHAIN.replace("num_steps: 2", shapes), tmp_path, LaunchChoice("verify_argmax", split={1: 3, 4: 2}))
    splits = [
        {bucket: grid[1] for bucket, grid in node.grid.items()}
        for shape in build.shapes
        for node in shape.plan.nodes("step")
        if isinstance(node, Launch) and node.name == "verify_argmax"
    ]
    assert splits == [{1: 3 * 3, 4: 3 * 2}, {1: 2 * 3}]


def launch(build: Build, name: str) -> Launch:
    return next(node for node in build.plan.nodes("step") if isinstance(node, Launch) and node.name == name)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    choices = (
        LaunchChoice("verify_argmax", None, 1024, 8, split={1: 3, 4: 2}),
        LaunchChoice("prepare_rows", "2", None, 2),
    )
    tuning = tuned(CHAIN, tmp_path, *choices).loaded.config.tuning
    assert tuning is not None
    assert tuple(replace(choice, location=None) for choice in tuning.choices) == choices
    assert replace(tuning, choices=(), text="", file="", path="") == TUNING
    assert "1.25 at 4 (noise 0.02)" in tuning.text


def test_a_file_without_choices_changes_nothing(tmp_path: Path) -> None:
    assert tuned(CHAIN, tmp_path).plan == build_program(load(CHAIN)).plan


def test_a_choice_reaches_kernel_and_grid(tmp_path: Path) -> None:
    plain = build_program(load(CHAIN))
    build = tuned(CHAIN, tmp_path, LaunchChoice("verify_argmax", None, 1024, 8, split={4: 2}))
    kernel, own = build.plan.kernels["verify_argmax"], plain.plan.kernels["verify_argmax"]
    assert (kernel.constants["BLOCK"], kernel.num_warps) == (1024, 8) != (own.constants["BLOCK"], own.num_warps)
    assert launch(build, "verify_argmax").grid[4] == (4, 3 * 2, 1)
    assert launch(build, "verify_argmax").grid[1] != launch(plain, "verify_argmax").grid[1], "nine tiles, not five"
    assert "8 warps" in build.generated.source("verify_argmax").text
    assert build.plan.kernels["extend_argmax"] == plain.plan.kernels["extend_argmax"]
    assert build.plan.buffers == plain.plan.buffers


def test_one_of_two_launches_of_a_kernel_gets_its_own(tmp_path: Path) -> None:
    text = CHAIN.replace("num_steps: 2", "num_steps: 4")
    plain, build = build_program(load(text)), tuned(text, tmp_path, LaunchChoice("draft_argmax_1", None, 512))
    assert len({launch(plain, f"draft_argmax_{i}").kernel for i in (0, 1)}) == 1
    assert len({launch(build, f"draft_argmax_{i}").kernel for i in (0, 1)}) == 2


def test_the_remark_says_what_was_there(tmp_path: Path) -> None:
    build = tuned(CHAIN, tmp_path, LaunchChoice("prepare_rows", None, None, 4))
    messages = [remark.message for remark in build.shapes[0].ctx.remarks if remark.pass_name == "tune-launches"]
    assert messages == ["prepare_rows: tuned: 4 warps instead of 1 warp"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (LaunchChoice("verify_argmax", None, 3000), "tile 3000 cannot be chosen"),
        (LaunchChoice("verify_argmax", None, None, 32), "warps 32 cannot be chosen"),
        (LaunchChoice("verify_argmax", stages=2), "stages 2 cannot be chosen: it multiplies no matrices"),
        (LaunchChoice("verify_argmax", None, None, None, split={1: 6}), "split 6 cannot be chosen: at most 5"),
        (LaunchChoice("prepare_rows", None, None, None, split={1: 2}), "split 2 cannot be chosen"),
        (LaunchChoice("prepare_rows", None, 1024), "tile 1024 cannot be chosen"),
        (LaunchChoice("verify_argmx"), "no launch verify_argmx"),
    ],
)
def test_what_a_launch_cannot_be(choice: LaunchChoice, message: str, tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match=message) as error:
        tuned(CHAIN, tmp_path, choice)
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == ("tuning/no-launch" if "no launch" in message else "tuning/no-choice")
    assert diagnostic.location is not None and diagnostic.location.file == "t.yaml"


def test_a_tile_moves_the_most_programs(tmp_path: Path) -> None:
    """9000 tokens are five tiles of 2048, and eighteen of 512."""
    build = tuned(CHAIN, tmp_path, LaunchChoice("verify_argmax", None, 512, None, split={1: 18}))
    assert launch(build, "verify_argmax").grid[1] == (1, 3 * 18, 1)
    with pytest.raises(DiagnosticError, match="at most 18"):
        tuned(CHAIN, tmp_path, LaunchChoice("verify_argmax", None, 512, None, split={1: 19}))


def test_sums_have_no_knobs() -> None:
    """What adds over a vocabulary: a top-k's probabilities, and the log-probability beside an argmax."""
    built = build_program(load(TREE)).shapes[0]
    assert {nodes[0].name for nodes in kernels_of(built).values()} == {"prepare_rows", "verify_argmax", "compact"}
    built = build_program(load(CHAIN + "outputs: [logprobs]\n")).shapes[0]
    verify = [node.name for nodes in kernels_of(built).values() for node in nodes if "verify" in node.name]
    assert verify == []
    built = build_program(load(CHAIN + "verify: block\n")).shapes[0]
    assert "verify_draw" in {node.name for node in built.plan.nodes("step")}
    assert {nodes[0].name for nodes in kernels_of(built).values()} == {"prepare_rows"}


def test_how_a_row_is_cut_changes_no_draw() -> None:
    built = build_program(load(CHAIN + "verify: target_only\n")).shapes[0]
    knobs = knobs_of(built, "verify_draw")
    assert (knobs.tiles, knobs.warps, knobs.split > 1) == ((), (), True)


def test_copies_are_shared_by_as_many_as_there_are_pieces(tmp_path: Path) -> None:
    built = build_program(load(TREE)).shapes[0]
    knobs = knobs_of(built, "compact")
    build = tuned(TREE, tmp_path, LaunchChoice("compact", None, None, 8, split={4: 3}))
    assert launch(build, "compact").grid[4] == (4, knobs.fixed + 3, 1)
    assert knobs.split_of(launch(build, "compact").grid[4]) == 3


def test_the_wheel_has_the_file_and_another_digest(tmp_path: Path) -> None:
    names: list[str] = []
    for number, choices in enumerate([(), (LaunchChoice("prepare_rows", None, None, 2),)]):
        (wheel,) = emit_wheel(tuned(CHAIN, tmp_path, *choices), tmp_path / str(number))
        names.append(wheel.name)
        with zipfile.ZipFile(io.BytesIO(wheel.read_bytes())) as archive:
            text = archive.read("specc_program_toy/tuning.yaml").decode()
        assert text == (tmp_path / "t.yaml").read_text()
    (plain,) = emit_wheel(build_program(load(CHAIN)), tmp_path / "plain")
    assert len({*names, plain.name}) == 3


def test_it_is_not_compiled_for_another_architecture(tmp_path: Path) -> None:
    build = tuned(CHAIN, tmp_path, LaunchChoice("prepare_rows", None, None, 2))
    for archs in (["sm_80"], ["sm_90", "sm_80"]):
        message = f"measured on sm_90, and kernels are compiled for {', '.join(archs)}"
        with pytest.raises(DiagnosticError, match=message) as error:
            compile_machine_code(build, archs, cache=Cache.disabled())
        assert error.value.diagnostics[0].code == "tuning/arch"


def test_a_choice_may_be_of_one_shape(tmp_path: Path) -> None:
    text = CHAIN.replace("num_steps: 2", "num_steps: [1, 2]")
    build = tuned(text, tmp_path, LaunchChoice("verify_argmax", "1", 1024))
    deep, shallow = (shape.plan for shape in build.shapes)
    tiles = [plan.kernels[launch_of(plan)].constants["BLOCK"] for plan in (deep, shallow)]
    assert tiles == [2048, 1024]


def launch_of(plan) -> str:
    return next(node.kernel for node in plan.nodes("step") if node.name == "verify_argmax")
