"""`specc vllm check` of servers whose draft is among the weights of the target, which no argument names."""

from __future__ import annotations

import json
from pathlib import Path

import published_models
import pytest
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import Config, load_config

STAGES, MODULE, LATER = "DeepSeek-V4-Flash-0731", "DeepSeek-V4-Flash", "DeepSeek-V4.1-Flash"
"""The first has stages that fill in blocks, the second a module alone, and the third those of a later class."""
PLAIN = "Llama-3.1-8B-Instruct"
ANY, DRAWN = {"num_speculative_tokens": 7}, {"draft_sample_method": "probabilistic"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models are, and the tests run."""
    places = {name: published_models.PUBLISHED / "served" / name for name in (STAGES, MODULE, LATER)}
    places[PLAIN] = published_models.PUBLISHED / PLAIN
    models = {name: json.loads((place / "config.json").read_text()) for name, place in places.items()}
    published_models.write(tmp_path, models)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(target: str, /, *more: str, **drafting: object) -> Result:
    """A check of a server on a B200."""
    words = ("vllm", "serve", target, "-tp", "4", *more, "--speculative-config", json.dumps(drafting))
    return CliRunner().invoke(app, ["vllm", "check", "--gpu", "b200", "-o", "written.yaml", "--", *words])


def config(*words: str, **drafting: object) -> Config:
    """What is written."""
    result = run(*words, **drafting)
    assert result.exit_code == 0, result.output
    return load_config(Path("written.yaml"), names(), needs).config


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("model", "read", "width"), [(STAGES, (41, 42, 43), 4096), (LATER, (40, 41, 42), 5120)])
def test_stages_among_the_target_s_weights(
    folder: Path, model: str, read: tuple[int, ...], width: int, named: bool
) -> None:
    """Blocks may be longer than those that they were trained for: vLLM takes any number.

    Stages of the later class read what goes into layers of the target, which others have put out.
    """
    resolved = config(model, method="dspark", **ANY, **({"model": model} if named else {}))
    assert resolved.draft is not None
    assert (resolved.algorithm, resolved.num_steps, resolved.draft.markov_rank) == ("DSPARK", 7, 256)
    assert (resolved.target.aux_layers, resolved.target.spec_width) == (read, 3 * width)
    assert resolved.file.verify == "target_only"


def test_stages_whose_drafts_are_drawn(folder: Path) -> None:
    assert config(STAGES, method="dspark", **ANY, **DRAWN).file.verify == "rejection"


@pytest.mark.parametrize(
    ("model", "method", "block", "size"),
    [(STAGES, "dspark", "256", 64), (MODULE, "mtp", "256", 64), (MODULE, "mtp", None, 64), (LATER, "dspark", None, 32)],
)
def test_blocks_are_those_of_windows(folder: Path, model: str, method: str, block: str | None, size: int) -> None:
    """Layers of such a draft have no others, whatever the target's have."""
    words = () if block is None else ("--block-size", block)
    assert config(model, *words, method=method, num_speculative_tokens=2).file.page_size == size


@pytest.mark.parametrize(
    ("model", "method", "reason"),
    [
        (LATER, "mtp", 'write --speculative-config.method "dspark"'),
        (MODULE, "dspark", "there is no draft of the method dspark among the target's own weights"),
        (PLAIN, "dspark", "there is no draft of the method dspark among the target's own weights"),
        (STAGES, "dflash", "there is no draft of the method dflash among the target's own weights"),
    ],
)
def test_what_has_no_such_draft(folder: Path, model: str, method: str, reason: str) -> None:
    result = run(model, method=method, **ANY)
    assert result.exit_code == 1
    assert reason in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("name", "there"), [("Qwen3DSparkModel", True), ("K3DSparkModel", False)])
def test_drafts_of_blocks_of_classes_of_their_own(folder: Path, name: str, there: bool) -> None:
    """The adapter knows the biases of some alone."""
    file = json.loads((published_models.PUBLISHED / "served/Qwen3.8-27B-DSpark/config.json").read_text())
    sizes = {"vocab_size": 128256, "hidden_size": 4096, "target_layer_ids": [1, 16, 30]}
    published_models.write(folder, {"draft": file | {"architectures": [name], **sizes}})
    result = run(PLAIN, method="dspark", model="draft", **ANY)
    assert (result.exit_code == 0) == there, result.output
    assert there or f"of the class {name}, is not served" in " ".join(result.stderr.split())
