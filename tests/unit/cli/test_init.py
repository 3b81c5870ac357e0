"""`specc init`: what it writes for two directories, what it refuses, and that whatever it writes passes a check."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_config
from specc.compiler.config.archs import NoGpuError
from specc.compiler.driver.compile import check_config
from specc.compiler.support.diagnostics import DiagnosticError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "dtype": "bfloat16",
}
SMALL = LLAMA | {"num_hidden_layers": 2}
HEAD = LLAMA | {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle"]}
HEAD3 = LLAMA | {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"]}
ONE_MODULE = LLAMA | {"num_nextn_predict_layers": 1}
FILE = "target_standalone.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a target and a smaller model, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specc.compiler.config.proposal.gpus", list)
    model("target", LLAMA)
    model("small", SMALL)
    return tmp_path


def model(path: str, keys: dict[str, Any], *without: str) -> Path:
    """A model directory with these keys in its config.json."""
    Path(path).mkdir(parents=True, exist_ok=True)
    left = {key: value for key, value in keys.items() if key not in without}
    Path(path, "config.json").write_text(json.dumps(left))
    return Path(path)


def init(*words: object) -> Result:
    """Run ``specc init``."""
    return CliRunner().invoke(app, ["init", *map(str, words)])


def written(*words: object) -> dict[str, Any]:
    """Run it where nothing is wrong; what the file says that it names, which is the only one and passes a check."""
    before = set(Path().rglob("*.yaml"))
    result = init(*words)
    assert result.exit_code == 0, result.output
    path = Path(result.stdout.strip())
    assert set(Path().rglob("*.yaml")) - before == {path}
    loaded(path)
    return YAML(typ="safe").load(path.read_text())


def loaded(path: Path) -> LoadedConfig:
    """A configuration, checked."""
    config = load_config(path, names(), needs)
    check_config(config)
    return config


def refused(*words: object) -> str:
    """What is said where nothing is written."""
    before = sorted(Path().rglob("*"))
    result = init(*words)
    assert result.exit_code in (1, 2), result.output
    assert (result.stdout, sorted(Path().rglob("*"))) == ("", before)
    return " ".join(result.stderr.split())


def test_a_file_says_the_keys_that_were_chosen() -> None:
    assert written("target", "small") == {
        "name": "target_standalone",
        "algorithm": "STANDALONE",
        "topk": 1,
        "num_steps": 3,
        "page_size": 1,
        "buckets": [1, 2, 4, 8],
        "verify": "greedy",
        "archs": ["sm_90"],
        "target": {"model": "target"},
        "draft": {"model": "small"},
    }


def test_every_key_has_a_comment() -> None:
    written("target", "small")
    parts = Path(FILE).read_text().split("\n\n")[1:]
    assert len(parts) == 10
    assert all(part.startswith("# ") and part.splitlines()[-1][0] != "#" for part in parts)


def test_stdout() -> None:
    result = init("target", "small", "-o", "-")
    assert result.exit_code == 0
    assert list(Path().rglob("*.yaml")) == []
    written("target", "small")
    assert result.stdout == Path(FILE).read_text()
    assert "algorithm  STANDALONE" in result.stderr


def test_a_target_given_as_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("target")
    config = written(".", "../small")
    assert (config["name"], config["target"]) == ("target_standalone", {"model": "."})


def test_steps_that_are_wanted() -> None:
    assert written("target", "small", "--num-steps", 5)["num_steps"] == 5


def test_steps_that_the_draft_was_made_for() -> None:
    model("head", HEAD3 | {"architectures": ["DFlashDraftModel"], "block_size": 9})
    assert written("target", "head")["num_steps"] == 8


def test_no_more_steps_than_there_may_be() -> None:
    model("head", HEAD3 | {"architectures": ["DFlashDraftModel"], "block_size": 64})
    assert written("target", "head")["num_steps"] == 16


def test_steps_with_a_module_for_each() -> None:
    model("target", LLAMA | {"num_nextn_predict_layers": 2})
    config = written("target")
    assert (config["algorithm"], config["num_steps"]) == ("MULTI_LAYER_EAGLE", 2)
    assert config["draft"] == config["target"]
    assert loaded(Path("target_multi_layer_eagle.yaml")).config.models["draft"].num_layers == 2


@pytest.mark.parametrize(("steps", "nodes"), [(3, 16), (1, 5)])
def test_steps_of_a_tree(steps: int, nodes: int) -> None:
    config = written("target", "small", "--topk", 4, "--num-steps", steps)
    assert (config["topk"], config["num_draft_tokens"]) == (4, nodes)


def test_a_tree_where_only_chains_are_drafted() -> None:
    model("head", HEAD3 | {"architectures": ["DFlash2DraftModel"], "selector_rank": 8, "selector_top_k": 4})
    assert "error[legal/chain-only]" in refused("target", "head", "--topk", 2)


@pytest.mark.parametrize("option", ["--topk", "--num-steps"])
@pytest.mark.parametrize("number", ["0", "17", "x"])
def test_steps_out_of_range(option: str, number: str) -> None:
    assert f"Invalid value for '{option}'" in refused("target", "small", option, number)


@pytest.mark.parametrize("words", [["target"], ["target", "target"], ["target", "./small/../target"]])
def test_one_module_is_a_head(words: list[str]) -> None:
    model("target", ONE_MODULE)
    config = written(*words)
    assert (config["algorithm"], config["draft"]) == ("EAGLE", {"model": "target"})
    assert loaded(Path("target_eagle.yaml")).config.models["draft"].num_layers == 1


def test_one_module_as_another_algorithm() -> None:
    model("target", ONE_MODULE)
    config = written("target", "--algorithm", "multi_layer_eagle")
    assert (config["algorithm"], config["num_steps"]) == ("MULTI_LAYER_EAGLE", 1)


def test_a_target_without_modules_as_its_draft() -> None:
    message = refused("target", "target")
    assert "error[init/which-algorithm]: 'target' is the target itself" in message


def test_modules_that_are_not_wanted() -> None:
    model("target", ONE_MODULE)
    config = written("target", "--algorithm", "NGRAM")
    assert (config["algorithm"], "draft" in config) == ("NGRAM", False)


def test_a_draft_that_nothing_recognises() -> None:
    model("heads", LLAMA | {"architectures": ["MedusaModel"]})
    message = refused("target", "heads")
    assert "error[init/which-algorithm]: nothing in 'heads/config.json' says which algorithm drafts" in message
    assert "hint: give --algorithm NAME, one of STANDALONE, EAGLE" in message
    assert written("target", "heads", "--algorithm", "standalone")["algorithm"] == "STANDALONE"


def test_another_algorithm_than_is_recognised() -> None:
    assert written("target", "small", "--algorithm", "EAGLE3")["algorithm"] == "EAGLE3"


def test_a_draft_that_is_missing() -> None:
    for name in ("STANDALONE", "EAGLE", "EAGLE3"):
        assert f"{name} drafts with a model: give its directory" in refused("target", "--algorithm", name)


def test_a_draft_that_nobody_uses() -> None:
    assert "NGRAM has no draft model: leave it out" in refused("target", "small", "--algorithm", "NGRAM")


def test_an_algorithm_that_is_none() -> None:
    assert "no algorithm 'EAGEL' is installed; did you mean 'EAGLE'?" in refused(
        "target", "small", "--algorithm", "EAGEL"
    )


def test_a_target_without_element_type() -> None:
    model("target", LLAMA, "dtype")
    config = written("target", "small")
    assert (config["target"]["dtype"], "dtype" in config["draft"]) == ("bfloat16", False)


def test_a_draft_without_element_type() -> None:
    model("small", SMALL, "dtype")
    model("target", LLAMA | {"dtype": "float16"})
    assert written("target", "small")["draft"]["dtype"] == "float16"


def test_a_head_of_another_element_type() -> None:
    """It reads rows of the target, so it runs in the target's; what reads its own or projects them need not."""
    half = {"dtype": "float16"}
    model("head", HEAD | half)
    assert written("target", "head")["draft"] == {"model": "head", "dtype": "bfloat16"}
    assert "config/model-override" in init("target", "head", "--force").stderr
    model("head3", HEAD3 | half)
    assert written("target", "head3")["draft"] == {"model": "head3"}
    model("small", SMALL | half)
    assert written("target", "small")["draft"] == {"model": "small"}


@pytest.mark.parametrize(
    ("gpus", "archs", "reason"),
    [
        ([("NVIDIA A100", "sm_80")], ["sm_80"], "this machine has NVIDIA A100"),
        ([("NVIDIA H200", "sm_90"), ("NVIDIA H200", "sm_90")], ["sm_90"], "this machine has NVIDIA H200"),
        (
            [("NVIDIA A100", "sm_80"), ("NVIDIA B200", "sm_100")],
            ["sm_80", "sm_100"],
            "this machine has NVIDIA A100 and NVIDIA B200",
        ),
        (
            [("Tesla V100", "sm_70")],
            ["sm_90"],
            "programs are not compiled for the Tesla V100 here, so that of H100",
        ),
        ([("Tesla V100", "sm_70"), ("NVIDIA L4", "sm_89")], ["sm_89"], "this machine has NVIDIA L4"),
        ([], ["sm_90"], "no GPU was found here, so that of H100 and H200 is taken"),
        (None, ["sm_90"], "no GPU was found here, so that of H100 and H200 is taken"),
    ],
)
def test_archs(
    gpus: list[tuple[str, str]] | None, archs: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> list[tuple[str, str]]:
        if gpus is None:
            raise NoGpuError("torch is not installed")
        return gpus

    monkeypatch.setattr("specc.compiler.config.proposal.gpus", listed)
    result = init("target", "small", "-o", "-")
    assert YAML(typ="safe").load(result.stdout)["archs"] == archs
    assert reason in " ".join(result.stderr.split())


UNREADABLE = [
    (["nowhere", "small"], "model directory 'nowhere' does not exist"),
    (["target", "nowhere"], "model directory 'nowhere' does not exist"),
    (["target/config.json"], "is a file, not a directory"),
    (["."], "model directory '.' has no config.json"),
    (["~no_such_user/x"], "is not a path"),
]


@pytest.mark.parametrize(("words", "message"), UNREADABLE)
def test_what_is_no_model(words: list[str], message: str) -> None:
    errors = refused(*words)
    assert "error[config/model-unreadable]" in errors
    assert message in errors


def test_what_a_check_refuses_is_not_written() -> None:
    model("small", SMALL | {"vocab_size": 1000})
    message = refused("target", "small")
    assert "error[legal/vocab-mismatch]" in message
    assert f"{FILE}:3" in message
    model("target", LLAMA | {"vocab_size": 0})
    assert "error[config/missing-key]" in refused("target")


def test_warnings_are_shown() -> None:
    model("target", LLAMA | {"model_type": "no_such_type", "head_dim": 64})
    assert "warning[config/unknown-architecture]" in init("target").stderr


@pytest.mark.parametrize("head", [HEAD, HEAD3])
@pytest.mark.parametrize("words", [(), ("--topk", 2, "-o", "a b.yaml")])
def test_a_head_in_the_targets_place(head: dict[str, Any], words: tuple[object, ...]) -> None:
    """The hint is a line that works."""
    model("head", head)
    message = refused("head", "target", *words)
    assert "error[init/reversed]: 'head' is what drafts, and 'target' its target: EAGLE" in message
    line = shlex.split(message.split("type: ")[1])
    assert line[:4] == ["specc", "init", "target", "head"]
    written(*line[2:])


@pytest.mark.parametrize(
    "given", [("target", "head3", "EAGLE"), ("target", "head", "EAGLE3"), ("head", "target", "EAGLE")]
)
def test_a_file_says_what_models_are_not(given: tuple[str, str, str]) -> None:
    """By every command that compiles: a head of another algorithm, and a head in the target's place."""
    target, draft, algorithm = given
    model("head", LLAMA | {"num_hidden_layers": 1})  # of a language model's class, as SafeAILab's is
    model("head3", HEAD3)
    keys = {"name": "given", "algorithm": algorithm, "num_steps": 2, "page_size": 1, "buckets": [1], "archs": ["sm_90"]}
    layers = {"aux_layers": [1, 2, 3]} if algorithm == "EAGLE3" else {}
    keys |= {"target": {"model": target, **layers}, "draft": {"model": draft}}
    Path("given.yaml").write_text(json.dumps(keys, indent=1))
    with pytest.raises(DiagnosticError) as raised:
        loaded(Path("given.yaml"))
    (error,) = raised.value.diagnostics
    assert error.location is not None and error.location.file == "given.yaml"
    if target == "head":
        assert error.code == "init/reversed" and error.hint == "write each where the other is"
        keys |= {"target": {"model": draft}, "draft": {"model": target}}
    else:
        other = {"EAGLE": "EAGLE3", "EAGLE3": "EAGLE"}[algorithm]
        assert error.code == "init/other-algorithm" and error.hint == f"write algorithm: {other}"
        keys |= {"algorithm": other, "target": {"model": target, "aux_layers": [1, 2, 3]}}
        keys["target"] = keys["target"] if other == "EAGLE3" else {"model": target}
    Path("given.yaml").write_text(json.dumps(keys))
    loaded(Path("given.yaml"))


def test_the_larger_of_two_language_models_is_no_draft() -> None:
    assert "type: specc init target small --engine vllm" in refused("small", "target", "--engine", "vllm")
    assert written("small", "target", "--algorithm", "STANDALONE")["draft"] == {"model": "target"}


@pytest.mark.parametrize(("head", "wanted", "is_of"), [(HEAD3, "eagle", "EAGLE3"), (HEAD, "EAGLE3", "EAGLE")])
def test_a_head_of_another_algorithm(head: dict[str, Any], wanted: str, is_of: str) -> None:
    model("head", head)
    message = refused("target", "head", "--algorithm", wanted, "--num-steps", 2)
    assert (
        f"error[init/other-algorithm]: 'head' is no head of {wanted.upper()} but of {is_of}: the draft's class is"
        in message
    )
    line = shlex.split(message.split("type: ")[1])
    assert written(*line[2:])["algorithm"] == is_of
