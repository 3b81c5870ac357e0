"""`specc sglang check` of servers whose drafts are looked up, and the command of one that `specc init` prints."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from cli.test_init import init

from specc.engines.sglang.check.command_line import parse
from specc.engines.sglang.kinds.look_ups import LOOK_UPS
from specc.runtime.plan.shape import Shape

from .sglang_words import MODELS, config, run, words

LOOKED_UP: dict[str, str | None] = {
    "--speculative-algorithm": "NGRAM",
    "--speculative-draft-model-path": None,
    "--speculative-num-steps": None,
    "--speculative-eagle-topk": None,
}
NODES, BREADTH = "--speculative-num-draft-tokens", "--speculative-ngram-max-bfs-breadth"


@pytest.mark.parametrize(
    ("nodes", "breadth", "shape"),
    [
        (None, None, (11, 1, 12)),
        ("6", None, (5, 1, 6)),
        ("6", "1", (5, 1, 6)),
        ("9", "2", (4, 2, 9)),
        ("9", "3", (3, 3, 9)),
        (None, "4", (3, 4, 12)),
        ("4", "10", (1, 3, 4)),
        ("2", "5", (1, 1, 2)),
    ],
)
def test_the_form_of_what_a_program_looks_up(
    tmp_path: Path, nodes: str | None, breadth: str | None, shape: tuple[int, int, int]
) -> None:
    """As many nodes as SGLang's tree: a chain, or branches of one length, cut where the nodes end."""
    resolved = config(tmp_path, LOOKED_UP | {NODES: nodes, BREADTH: breadth})
    assert resolved.draft is None
    assert (resolved.algorithm, resolved.name) == ("NGRAM", "sglang_ngram")
    assert (resolved.num_steps, resolved.file.topk, resolved.num_nodes) == shape
    assert (resolved.file.mask == "full") == (shape[1] > 1), "what triton reads of a tree"


@pytest.mark.parametrize("shape", [Shape(5, 1, 6), Shape(4, 2, 9), Shape(1, 3, 4)])
def test_the_arguments_of_a_shape_have_it(shape: Shape) -> None:
    found = LOOK_UPS.shape(parse(LOOK_UPS.arguments(*shape[:3])), {})
    assert tuple(value for value, _ in found) == shape[:3]


def test_what_check_says_of_look_ups() -> None:
    result = run("--", *words(LOOKED_UP | {"--max-running-requests": "4"}))
    said = dict(line.split(maxsplit=1) for line in result.stderr.splitlines())
    assert said["draft"] == "none, drafts are looked up in texts"
    assert said["attention"] == "triton: --attention-backend", "of the one role that there is"
    assert "draft:" not in result.stdout


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--page-size": "16"}, "pages of 16 tokens (--page-size) under trees that are looked up"),
        ({"--page-size": "16", BREADTH: "1"}, ""),
        ({"--page-size": "16", "--attention-backend": "flashinfer"}, ""),
        ({"--speculative-ngram-external-corpus-path": "a.jsonl"}, "a corpus of the server's"),
        ({"--disaggregation-mode": "decode"}, "looks drafts up in texts that another one prefills"),
        ({"--tp-size": "2", "--dp-size": "2", "--enable-dp-attention": ""}, "data parallelism with NGRAM"),
        ({"--enable-lora": ""}, ""),
    ],
)
def test_servers_that_look_drafts_up(changes: dict[str, str | None], reason: str) -> None:
    result = run("--", *words(LOOKED_UP | changes))
    assert (result.exit_code == 0) == (not reason), result.output
    assert reason in " ".join(result.stderr.split())


def test_a_breadth_of_one_is_served_on_pages(tmp_path: Path) -> None:
    assert config(tmp_path, LOOKED_UP | {"--page-size": "16", BREADTH: "1"}).file.page_size == 16


def test_no_head_is_computed_where_none_drafts() -> None:
    result = run("--head", "int8", "--", *words(LOOKED_UP))
    assert result.exit_code == 1
    assert "--head is of a model that drafts" in " ".join(result.stderr.split())


def test_several_shapes(tmp_path: Path) -> None:
    """The server has their nodes and their breadth; its own number of steps says nothing."""
    of_tree = LOOKED_UP | {NODES: "7", BREADTH: "2"}
    resolved = config(tmp_path, of_tree, options=("--shapes", "3x2x7,6,2,0"))
    assert [str(shape) for shape in resolved.shapes] == ["0", "2", "3x2x7", "6"]
    result = run("--shapes", "3x2x7,3", "--", *words(LOOKED_UP | {NODES: "8", BREADTH: "2"}))
    assert result.exit_code == 1
    hint = f"start the server with {BREADTH} 2 {NODES} 7"
    assert hint in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], f"sglang serve --model-path {MODELS / 'target'} --speculative-algorithm NGRAM"),
        (["--num-steps", 4], f"--speculative-algorithm NGRAM {BREADTH} 1 {NODES} 5"),
        (["--num-steps", 4, "--topk", 2], f"--speculative-algorithm NGRAM {BREADTH} 2 {NODES} 9"),
    ],
)
def test_init_without_a_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[object], expected: str
) -> None:
    """The command that is printed starts a server that `check` writes the same program for."""
    monkeypatch.chdir(tmp_path)
    ended = init(MODELS / "target", "--engine", "sglang", "--gpu", "h100", "-o", "c.yaml", *more)
    assert ended.exit_code == 0, ended.output
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("the server: "))
    assert expected in line
    assert line.endswith("NGRAM") or more
    command = shlex.split(line.removeprefix("the server: "))
    asked = ["--verify", "target_only", "--sampling", "top_k,top_p", "--name", "target_ngram", "--gpu", "h100"]
    assert run(*asked, "--", *command).stdout == Path("c.yaml").read_text()
