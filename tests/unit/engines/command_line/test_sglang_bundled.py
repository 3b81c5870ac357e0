"""`specc sglang check` of servers whose draft of blocks is among the files of the target."""

from __future__ import annotations

import json
from pathlib import Path

import published_models
import pytest
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.engines.sglang.kinds import STEPS, TOPK
from specc.engines.sglang.kinds.block_drafts import CORRECTED_BLOCKS

from .sglang_words import config, run, words
from .test_sglang_blocks import CORRECTED, NODES, TARGET, corrected

BUNDLING, BESIDE, LATER = "DeepSeek-V4-Flash-0731", "DeepSeek-V4-Flash", "DeepSeek-V4.1-Flash"
"""Models whose weights have such a draft; that of the second has a module alone."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models are, and the tests run: the first has a draft in a folder of its own."""
    served = {name: read(published_models.PUBLISHED / "served" / name) for name in (BUNDLING, BESIDE, LATER)}
    published_models.write(tmp_path, {TARGET: read(published_models.PUBLISHED / TARGET), **served})
    published_models.write(tmp_path / TARGET, {"dspark": published_models.BLOCK_DRAFTS[CORRECTED]})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(model: Path) -> dict[str, object]:
    """What a model says."""
    return json.loads((model / "config.json").read_text())


def alone(model: str) -> dict[str, str | None]:
    """The arguments of a server of this model that names no draft."""
    return corrected() | {"--model-path": model, "--speculative-draft-model-path": None}


def said(arguments: dict[str, str | None]) -> str:
    """The words in which a server is refused."""
    result = run("--gpu", "b200", "--", *words(arguments))
    assert result.exit_code == 1
    return " ".join(result.stderr.split())


def test_a_draft_in_a_folder_of_the_target(folder: Path) -> None:
    """Programs are those of the server whose command line names it."""
    resolved = config(folder, alone(TARGET), options=("--gpu", "h100"))
    assert resolved.draft is not None
    assert (resolved.algorithm, resolved.num_steps, resolved.draft.markov_rank) == ("DSPARK", 7, 256)
    assert Path(str(resolved.file.draft.model)).name == "dspark"


@pytest.mark.parametrize("named", [False, True])
def test_a_draft_among_the_target_s_weights(folder: Path, named: bool) -> None:
    """SGLang has a class of its own for it, whose layers have the target's attention."""
    more = {"--speculative-draft-model-path": BUNDLING} if named else {}
    resolved = config(folder, alone(BUNDLING) | more, options=("--gpu", "b200"))
    assert resolved.draft is not None
    assert (resolved.algorithm, resolved.num_steps, resolved.draft.markov_rank) == ("DSPARK", 5, 256)
    assert resolved.draft.num_layers == len(resolved.target.aux_layers or ()) == 3
    assert resolved.target.aux_layers == (41, 42, 43)
    assert resolved.target.spec_width == 3 * 4096


@pytest.mark.parametrize("named", [False, True])
def test_the_same_of_a_later_model(folder: Path, named: bool) -> None:
    """Its text model is a part of what its directory says."""
    more = {"--tp-size": "4"} | ({"--speculative-draft-model-path": LATER} if named else {})
    resolved = config(folder, alone(LATER) | more, options=("--gpu", "b200"))
    assert resolved.draft is not None
    assert (resolved.algorithm, resolved.num_steps, resolved.draft.markov_rank) == ("DSPARK", 5, 256)
    assert resolved.target.aux_layers == (40, 41, 42)  # whose outputs go into those that the draft names
    assert resolved.target.spec_width == 3 * 5120


@pytest.mark.parametrize(
    ("changes", "gpu", "reason"),
    [
        ({}, "h100", ""),
        ({}, "b200", "other kernels for compressed keys (dsv4_attn_backend flashmla_mega)"),
        ({"--dsv4-attn-backend": "flashmla"}, "b200", ""),
        ({"--dsv4-attn-backend": "trtllm"}, "b200", "other kernels for compressed keys (dsv4_attn_backend trtllm)"),
        ({"--enable-encoder-swa-bounded-replay": ""}, "h100", "windows that each request keeps for itself"),
        ({"--speculative-algorithm": "EAGLE"}, "h100", "EAGLE for DeepseekV41ForCausalLM"),
    ],
)
def test_what_a_later_model_is_not_served_with(
    folder: Path, changes: dict[str, str | None], gpu: str, reason: str
) -> None:
    """On one B200 SGLang takes other kernels for it by itself, which are named as if somebody had written them."""
    result = run("--gpu", gpu, "-o", folder / "written.yaml", "--", *words(alone(LATER) | changes))
    assert result.exit_code == bool(reason), result.output
    assert f"{reason} is not served" in " ".join(result.stderr.split()) or not reason
    assert "flashmla_mega" not in reason or "write --dsv4-attn-backend flashmla" in result.stderr


def test_a_context_that_is_written_late(folder: Path) -> None:
    """A variable in front of the command asks SGLang for that."""
    server = "SGLANG_DSPARK_DEFER_CONTEXT_KV=1", "sglang", "serve"
    result = run("--gpu", "b200", "--", *server, *words(alone(LATER) | {"--tp-size": "4"}))
    assert result.exit_code == 1
    assert "a block's context that is written a step later" in " ".join(result.stderr.split())


@pytest.mark.parametrize("model", [BUNDLING, LATER])
def test_init_takes_the_draft_among_the_target_s_weights(folder: Path, model: str) -> None:
    """Where the algorithm is wanted: a module is what others of the kind draft with."""
    written = folder / "written.yaml"
    words = ["init", model, "--engine", "sglang", "--gpu", "h100", "-o", str(written)]
    result = CliRunner().invoke(app, [*words, "--algorithm", "DSPARK"])
    assert result.exit_code == 0, result.output
    assert f"sglang serve --model-path {model} --speculative-algorithm DSPARK\n" in result.stderr
    resolved = load_config(written, names(), needs).config
    assert (resolved.algorithm, resolved.num_steps) == ("DSPARK", 5)
    unwanted = CliRunner().invoke(app, [*words, "--force"])
    assert (unwanted.exit_code, "write DSPARK: the target brings what drafts" in unwanted.stderr) == (
        (1, True) if model == LATER else (0, False)
    )


def test_a_shape_that_has_to_be_written(folder: Path) -> None:
    """SGLang starts no server that drafts with this module where nobody says that it drafts a chain."""
    words = ["init", BESIDE, "--engine", "sglang", "--gpu", "h100", "-o", str(folder / "written.yaml")]
    result = CliRunner().invoke(app, [*words, "--algorithm", "EAGLE"])
    assert result.exit_code == 0, result.output
    chain = dict(zip((STEPS, TOPK, NODES), "314", strict=True))
    written = " ".join(f"{name} {size}" for name, size in chain.items())
    assert f"sglang serve --model-path {BESIDE} --speculative-algorithm EAGLE {written}\n" in result.stderr
    server = alone(BESIDE) | {"--speculative-algorithm": "EAGLE"}
    assert config(folder, server | chain, options=("--gpu", "h100")).num_steps == 3
    assert f"{TOPK} is missing" in said(server)
    by_other_name = server | chain | {"--speculative-algorithm": "NEXTN"}
    assert "NEXTN for DeepseekV4ForCausalLM is not served" in said(by_other_name)


def test_init_of_a_target_that_has_no_such_draft(folder: Path) -> None:
    result = CliRunner().invoke(app, ["init", BESIDE, "--algorithm", "DSPARK"])
    assert result.exit_code == 2
    assert "DSPARK drafts with a model" in result.stderr


def test_it_says_how_long_its_blocks_are(folder: Path) -> None:
    assert f"{NODES} is 4, and a block has 5 drafts (dspark_block_size)" in said(alone(BUNDLING) | {NODES: "4"})


def test_a_target_that_brings_a_module_alone(folder: Path) -> None:
    assert "--speculative-draft-model-path is missing" in said(alone(BESIDE))


def test_modules_beside_such_a_draft(folder: Path) -> None:
    """A target may have both, and the algorithm says which drafts."""
    chain = {"--speculative-algorithm": "EAGLE", STEPS: "3", TOPK: "1"}
    resolved = config(folder, alone(BUNDLING) | chain, options=("--gpu", "b200"))
    assert (resolved.algorithm, resolved.num_steps) == ("EAGLE", 3)


def test_the_model_that_sglang_makes_of_it() -> None:
    """It has not all that the others have, and a Markov head of its own."""
    heads = {name: type(name, (), {})() for name in ("DSparkV4MarkovHead", "GatedMarkovHead")}
    sides = {"confidence_head": None, "get_input_embeddings": lambda _: None}
    models = [type("DeepseekV4ForCausalLMDSpark", (), {**sides, "markov_head": head})() for head in heads.values()]
    beside = [CORRECTED_BLOCKS.model_beside(model) for model in models]
    assert beside == ["", "with a Markov head of the class GatedMarkovHead"]
