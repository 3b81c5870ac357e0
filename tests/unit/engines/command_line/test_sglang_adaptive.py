"""`specc sglang check` of servers that change the number of steps while they run (`--speculative-adaptive`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specc.engines.sglang.check.command_line import ANSWERS

from .published_heads import heads
from .sglang_words import MODELS, TREE, config, run, words

__all__ = ["heads"]
ON: dict[str, str | None] = {
    "--speculative-adaptive": "",
    "--speculative-algorithm": "EAGLE",
    "--speculative-draft-model-path": "eagle",
}
OWN = tuple(sorted({steps for of_size in ANSWERS.tables["candidates"].values() for steps in of_size}))
"""The candidates where no file says others."""


def written(tmp_path: Path, said: object) -> dict[str, str | None]:
    """Arguments with a file of candidates."""
    path = tmp_path / "adaptive.json"
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    return {**ON, "--speculative-adaptive-config": str(path)}


def test_candidates_are_the_shapes(tmp_path: Path) -> None:
    """Those of SGLang itself, whatever the server begins with; memory is that of the most steps."""
    for begun in ("3", "5", None):
        resolved = config(tmp_path, {**ON, "--speculative-num-steps": begun})
        assert tuple(sorted(shape.num_steps for shape in resolved.shapes)) == OWN
        assert all(shape.topk == 1 and shape.num_nodes == shape.num_steps + 1 for shape in resolved.shapes)
        assert (resolved.num_steps, resolved.num_nodes) == (max(OWN), max(OWN) + 1)
    result = run("--", *words({**ON, "--speculative-eagle-topk": None, "--speculative-num-draft-tokens": "77"}))
    assert "drafts     7 steps, a chain, 8 nodes: the most of 0, 1, 3, 5, 7" in result.stderr
    assert "shapes: # --speculative-adaptive\n  - {num_steps: 7}\n" in result.stdout


def test_candidates_of_a_file(tmp_path: Path) -> None:
    """All of any batch, once; what else stands there says how SGLang chooses."""
    changes = written(
        tmp_path, {"ema_alpha": 0.5, "1": {"candidate_steps": [4, 2], "x": 1}, "8": {"candidate_steps": [2, 0]}}
    )
    resolved = config(tmp_path, {**changes, "--speculative-num-steps": "2"})
    assert sorted(shape.num_steps for shape in resolved.shapes) == [0, 2, 4]
    resolved = config(tmp_path, {**written(tmp_path, {"1": {"candidate_steps": [3]}})})
    assert [shape.num_steps for shape in resolved.shapes] == [3]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("{", "cannot be read: it is no JSON"),
        ("[" * 100_000, "cannot be read: it is no JSON"),
        ([], "no batch has numbers of steps"),
        ({"ema_alpha": 1}, "no batch has numbers of steps"),
        ({"1": {"candidate_steps": [1, -3]}}, "the batch 1 has no numbers of steps"),
        ({"1": {"candidate_steps": [3]}, "8": {"candidate_steps": []}}, "the batch 8 has no numbers of steps"),
        ({"1": {"candidate_steps": [3, "1"]}}, "the batch 1 has no numbers of steps"),
        ({"1": {"candidate_steps": [3.0]}}, "the batch 1 has no numbers of steps"),
        ({"1": {"candidate_steps": 3}}, "the batch 1 has no numbers of steps"),
        ({"1": [3]}, "the batch 1 has no numbers of steps"),
        ({"1": {"candidate_steps": [0, 4]}}, "--speculative-num-steps 3 is none of the candidates"),
    ],
)
def test_files_and_steps_with_which_sglang_starts_no_server(tmp_path: Path, said: object, message: str) -> None:
    result = run("--", *words(written(tmp_path, said)))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[config/engine-argument]: " in result.stderr and message in result.stderr
    assert result.stderr.count("error[") == 1


def test_a_file_that_is_not_there() -> None:
    result = run("--", *words({**ON, "--speculative-adaptive-config": "nowhere.json"}))
    assert "--speculative-adaptive-config 'nowhere.json' cannot be read: No such file" in result.stderr


def test_shapes_are_all_candidates_or_left_out(tmp_path: Path) -> None:
    names = ",".join(map(str, OWN))
    assert len(config(tmp_path, ON, options=("--shapes", names)).shapes) == len(OWN)
    for shapes in ("3", f"{names},2", "7,3,1,0"):
        result = run("--shapes", shapes, "--", *words(ON))
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"--shapes '{shapes}' is not 0, 1, 3, 5, 7, the candidates of --speculative-adaptive" in result.stderr


@pytest.mark.parametrize(
    "changes",
    [
        TREE,
        {"--speculative-algorithm": "STANDALONE", "--speculative-draft-model-path": str(MODELS / "standalone")},
        {"--enable-two-batch-overlap": ""},
        {"--tp-size": "2", "--dp-size": "2", "--enable-dp-attention": ""},
        {"--tp-size": "2", "--attn-dp-size": "2"},
    ],
)
def test_sglang_leaves_the_number_of_steps_as_it_is(tmp_path: Path, changes: dict[str, str | None]) -> None:
    """The server has steps of one number, as without the argument, and the log says why."""
    resolved = config(tmp_path, {**ON, **changes})
    assert [shape.num_steps for shape in resolved.shapes] == [3]
    assert "leaves the number of steps as it is" in run("--", *words({**ON, **changes})).stderr


def test_what_goes_with_one_shape_alone() -> None:
    result = run("--", *words({**ON, "--enable-lora": ""}))
    assert "adaptive speculation with LoRA is not served" in result.stderr
    assert "leave --speculative-adaptive out" in result.stderr
    result = run("--states", "select", "--", *words(ON))
    assert "--states select with several shapes is not served" in result.stderr
