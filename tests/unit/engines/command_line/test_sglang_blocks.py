"""`specc sglang check` of servers whose draft fills in blocks, and the command of one that `specc init` prints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import published_models
import pytest
from cli.test_init import init

from .sglang_words import config, run, words

TARGET, DRAFT, CORRECTED = "Qwen3-8B", "Qwen3-8B-DFlash-b16", "Qwen3-8B-DSpark-block7"
SELECTED = "Qwen3-8B-DFlash2"
BLOCK, NODES = "--speculative-dflash-block-size", "--speculative-num-draft-tokens"
DRAFTS = "--speculative-dspark-block-size"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models are, and the tests run."""
    target = json.loads((published_models.PUBLISHED / TARGET / "config.json").read_text())
    published_models.write(tmp_path, {TARGET: target, **published_models.BLOCK_DRAFTS})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(draft: str = DRAFT, algorithm: str = "DFLASH") -> dict[str, str | None]:
    """The arguments of a server as people start it."""
    left_out = ("--speculative-num-steps", "--speculative-eagle-topk", "--attention-backend")
    return dict.fromkeys(left_out) | {
        "--model-path": TARGET,
        "--speculative-algorithm": algorithm,
        "--speculative-draft-model-path": draft,
        "--dtype": "bfloat16",
    }


@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        ({}, 16),
        ({BLOCK: "8"}, 8),
        ({NODES: "4", "--speculative-num-steps": "9", "--speculative-eagle-topk": "2"}, 4),
    ],
)
def test_a_program_drafts_a_block_but_for_its_first_token(
    folder: Path, more: dict[str, str | None], nodes: int
) -> None:
    """Whatever is written of steps and branches, which SGLang has one of each."""
    resolved = config(folder, blocks() | more, options=("--gpu", "h100"))
    assert (resolved.algorithm, resolved.num_steps, resolved.file.topk) == ("DFLASH", nodes - 1, 1)
    assert resolved.num_nodes == nodes


@pytest.mark.parametrize(
    ("more", "nodes", "verify"),
    [
        ({}, 16, "greedy"),
        ({BLOCK: "8"}, 8, "greedy"),
        ({"--speculative-use-block-verification": ""}, 16, "block"),
    ],
)
def test_a_draft_with_a_selector_is_of_another_algorithm(
    folder: Path, more: dict[str, str | None], nodes: int, verify: str
) -> None:
    """Of the same name in SGLang, which draws its drafts where requests draw."""
    resolved = config(folder, blocks(SELECTED) | more, options=("--gpu", "h100"))
    assert (resolved.algorithm, resolved.num_steps, resolved.num_nodes) == ("DFLASH2", nodes - 1, nodes)
    assert resolved.draft is not None and resolved.file.verify == verify
    assert (resolved.draft.selector_rank, resolved.draft.selector_top_k) == (64, 8)


def corrected(draft: str = CORRECTED) -> dict[str, str | None]:
    """The same of a draft whose drafts are told of the one before."""
    return blocks(draft, "DSPARK")


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        ({}, 7),
        ({NODES: "8"}, 7),
        ({DRAFTS: "3", "--speculative-num-steps": "9", "--speculative-eagle-topk": "2"}, 3),
        ({DRAFTS: "3", NODES: "4"}, 3),
    ],
)
def test_a_program_drafts_all_of_a_block_that_is_corrected(
    folder: Path, more: dict[str, str | None], steps: int
) -> None:
    resolved = config(folder, corrected() | more, options=("--gpu", "h100"))
    assert (resolved.algorithm, resolved.num_steps, resolved.num_nodes) == ("DSPARK", steps, steps + 1)
    assert resolved.draft is not None and resolved.draft.markov_rank == 256


def test_blocks_have_several_sizes_and_budgets(folder: Path) -> None:
    """The server's own is the largest."""
    resolved = config(folder, blocks(), options=("--gpu", "h100", "--budget", "4,8,all"))
    assert [str(shape) for shape in resolved.shapes] == ["15b4", "15b8", "15"]
    resolved = config(folder, blocks(), options=("--gpu", "h100", "--shapes", "15,7,3,0"))
    assert [str(shape) for shape in resolved.shapes] == ["0", "3", "7", "15"]
    result = run("--gpu", "h100", "--shapes", "7,3", "--", *words(blocks()))
    assert "start the server with --speculative-num-draft-tokens 8" in result.stderr


@pytest.mark.parametrize("shapes", ["7x4x16", "15x2x16", "7x4x16,7,3,0"])
def test_trees_of_products_have_as_many_nodes_as_the_block(folder: Path, shapes: str) -> None:
    """However deep they are, and whatever chains are beside them."""
    resolved = config(folder, blocks(), options=("--gpu", "h100", "--shapes", shapes))
    assert [str(shape) for shape in resolved.shapes] == shapes.split(",")[::-1]
    assert resolved.file.mask == "slots"


@pytest.mark.parametrize(
    ("arguments", "shapes", "said"),
    [
        (blocks(), "3x4x8", "the server's own shape is not the largest of --shapes"),
        (blocks(SELECTED), "7x4x16", "a tree of a draft that fills in blocks is not served"),
        (corrected(), "3x4x8", "a tree of a draft that fills in blocks is not served"),
        (blocks() | {"--attention-backend": "flashinfer"}, "7x4x16", "a tree with flashinfer attention (verify)"),
    ],
)
def test_trees_that_are_not_served(folder: Path, arguments: dict[str, str | None], shapes: str, said: str) -> None:
    result = run("--gpu", "h100", "--shapes", shapes, "--", *words(arguments))
    assert result.exit_code == 1 and said in result.stderr
    if "not served" in result.stderr:
        assert "leave trees out of --shapes" in result.stderr


@pytest.mark.parametrize("name", [BLOCK, NODES])
def test_a_block_of_one_token_has_no_drafts(folder: Path, name: str) -> None:
    result = run("--gpu", "h100", "--", *words(blocks() | {name: "1"}))
    assert result.exit_code == 1
    assert f"a block of 1 tokens ({name}) has no drafts" in result.stderr
    assert config(folder, blocks() | {name: "2"}, options=("--gpu", "h100")).num_steps == 1


def test_a_draft_that_does_not_say_how_many_tokens_it_scores(folder: Path) -> None:
    """It has its target's head."""
    own = config(folder, blocks(), options=("--gpu", "h100"))
    file = Path(DRAFT, "config.json")
    unsaid = {key: value for key, value in json.loads(file.read_text()).items() if key != "vocab_size"}
    file.write_text(json.dumps(unsaid))
    borrowed = config(folder, blocks(), options=("--gpu", "h100"))
    assert own.draft is not None and own.draft == borrowed.draft


def test_what_check_says_of_blocks(folder: Path) -> None:
    result = run("--gpu", "h100", "--", *words(blocks()))
    said = dict(line.split(maxsplit=1) for line in result.stderr.splitlines())
    assert said["drafts"] == "15 steps, a chain, 16 nodes: all of a block but its first token: block_size"
    assert said["attention"].startswith("fa3: SGLang's choice"), "of both roles that there are"
    assert said["draft"] == f"{DRAFT}: --speculative-draft-model-path"


@pytest.mark.parametrize(
    ("gpu", "options", "changes", "reason"),
    [
        ("h100", (), blocks("Qwen3-8B-Domino"), "a draft that fills in blocks, with a domino projector, is not served"),
        ("h100", (), corrected(SELECTED), "of the class DFlash2DraftModel, is not served"),
        ("cpu", (), blocks(SELECTED), "DFLASH2 on a CPU is not served"),
        ("h100", (), {"--speculative-draft-window-size": "64"}, "a window of the draft's"),
        ("h100", (), {"--disaggregation-mode": "decode"}, "of texts that another one prefills is not served"),
        ("h100", (), {BLOCK: "8", NODES: "9"}, f"{NODES} and {BLOCK} differ"),
        (
            "h100",
            ("--head", "int8"),
            {"--tp-size": "2"},
            "--head int8 with a draft that the target's head scores on several ranks",
        ),
        (
            "h100",
            ("--logits", "sharded"),
            {"--tp-size": "2"},
            "--logits sharded with a draft that the target's head scores",
        ),
        ("b200", (), {}, "fa4 attention over blocks (draft) is not served"),
        ("cpu", (), {}, "DFLASH on a CPU is not served"),
        ("cpu", (), corrected(), "DSPARK on a CPU is not served"),
        (
            "b200",
            (),
            corrected() | {"--speculative-eagle-topk": "1"},
            "trtllm_mha attention over blocks (draft) is not served",
        ),
        ("h100", (), corrected() | {NODES: "7"}, f"{NODES} is 7, and a block has 7 drafts (block_size)"),
        ("h100", (), corrected("Qwen3-8B-DSpark-MiniMax"), "of the class DSparkMiniMaxDraftModel, is not served"),
        ("h100", (), corrected(DRAFT), "a draft that fills in blocks, of the class DFlashDraftModel, is not served"),
        ("h100", (), blocks(CORRECTED), "a draft that fills in blocks, of the class Qwen3DSparkModel, is not served"),
    ],
)
def test_servers_with_blocks_that_are_refused(
    folder: Path, gpu: str, options: tuple[str, ...], changes: dict[str, str | None], reason: str
) -> None:
    result = run("--gpu", gpu, *options, "--", *words(blocks() | changes))
    assert result.exit_code == 1
    assert reason in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("draft", "more", "expected"),
    [
        (DRAFT, [], f"--speculative-algorithm DFLASH --speculative-draft-model-path {DRAFT}"),
        (DRAFT, ["--num-steps", 7], f"--speculative-draft-model-path {DRAFT} {NODES} 8"),
        (CORRECTED, [], f"--speculative-algorithm DSPARK --speculative-draft-model-path {CORRECTED}"),
        (SELECTED, [], f"--speculative-algorithm DFLASH --speculative-draft-model-path {SELECTED}"),
    ],
)
def test_init_with_such_a_draft(folder: Path, draft: str, more: list[object], expected: str) -> None:
    """The command that is printed starts a server that `check` writes the same program for."""
    ended = init(TARGET, draft, "--engine", "sglang", "--gpu", "h100", "-o", "c.yaml", *more)
    assert ended.exit_code == 0, ended.output
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("the server: "))
    assert expected in line
    command = shlex.split(line.removeprefix("the server: "))
    name = next(line for line in Path("c.yaml").read_text().splitlines() if line.startswith("name: "))
    asked = ["--verify", "target_only", "--sampling", "top_k,top_p", "--name", name.split()[1], "--gpu", "h100"]
    assert run(*asked, "--", *command).stdout == Path("c.yaml").read_text()
