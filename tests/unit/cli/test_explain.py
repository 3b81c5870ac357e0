"""`specc explain`: the key facts of a configuration, as text and as JSON, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, config_text, written
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.config.models.remembered import RememberedFacts
from specc.compiler.driver.build import build_program

TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "standalone_chain": ("STANDALONE", {}),
    "eagle_chain": ("EAGLE", {"page_size": 16}),
    "eagle_tree": ("EAGLE", TREE),
}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The configurations as files."""
    folder = tmp_path_factory.mktemp("configs")
    for name, (algorithm, keys) in CASES.items():
        (folder / f"{name}.yaml").write_text(config_text(algorithm, name=name, **keys))
    return {name: folder / f"{name}.yaml" for name in CASES}


@pytest.fixture(scope="module")
def texts(configs: dict[str, Path]) -> dict[str, str]:
    """All of the stories as text, with blanks and line ends made one blank each."""
    return {name: " ".join(done(path, "--full").stdout.split()) for name, path in configs.items()}


@pytest.fixture(scope="module")
def documents(configs: dict[str, Path]) -> dict[str, Any]:
    """The stories as JSON."""
    return {name: json.loads(done(path, "--format", "json").stdout) for name, path in configs.items()}


def explain(*words: object) -> Result:
    """Run ``specc explain``."""
    return CliRunner().invoke(app, ["explain", *map(str, words)])


def done(*words: object) -> Result:
    """Run it where nothing is wrong."""
    result = explain(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result


def messages(document: Any, name: str) -> str:
    """All that a pass said, a remark a line."""
    (entry,) = [entry for entry in document["passes"] if entry["name"] == name]
    return "\n".join(remark["message"] for remark in entry["remarks"])


def nodes(document: Any) -> dict[str, Any]:
    """Nodes by name."""
    return {node["name"]: node for phase in document["phases"] for node in phase["nodes"]}


def setting(settings: list[Any], key: str) -> Any:
    """A setting by its key."""
    return next(entry for entry in settings if entry["key"] == key)


def test_a_standalone_chain(texts: dict[str, str], documents: dict[str, Any]) -> None:
    """No hidden state is captured, carried or counted, and it is told why."""
    text, document = texts["standalone_chain"], documents["standalone_chain"]
    assert text.startswith("standalone_chain: STANDALONE, a separate, smaller language model drafts; a chain")
    gone = (
        "nothing reads %target_hidden of model.target: removed; its only reader, commit.path %path_hidden, is removed"
    )
    assert gone in text
    assert gone in messages(document, "prune-dead-dataflow")
    assert "nothing reads carry @hidden: removed; no live op loads it" in messages(document, "prune-dead-dataflow")
    assert {capture["mode"] for capture in document["captures"]} == {"null"}
    assert "model.target in verify captures nothing: nothing reads its hidden states" in text
    assert [field["name"] for field in document["carry"]] == ["bonus", "topk_index", "seq_lens"]
    assert (document["carry_bytes"], "carried between steps: 20 bytes per request" in text) == (20, True)
    assert {figures["hidden_state_bytes"] for figures in document["totals"].values()} == {0}
    assert document["form"] == "chain"


def test_an_eagle_chain(texts: dict[str, str], documents: dict[str, Any]) -> None:
    """Hidden states are captured where they are read; compaction is the identity; windows merge."""
    text, document = texts["eagle_chain"], documents["eagle_chain"]
    captures = {capture["forward"]: capture for capture in document["captures"]}
    modes = {name: capture["mode"] for name, capture in captures.items()}
    assert modes == {
        "prefill_target": "full",
        "prefill_draft": "last",
        "draft_0": "last",
        "draft_1": "null",
        "target": "full",
        "extend": "last",
    }
    assert captures["target"]["readers"] == ["extend"]
    assert (captures["target"]["width"], captures["target"]["bytes"]) == (64, 4 * 4 * 64 * 4)
    assert (captures["prefill_target"]["bytes"], "by length" in text) == (None, True)
    assert "%path_hidden already lies along the accepted path" in messages(document, "select-compaction")
    assert "%extend_slots is %verify_slots: computed once, kv.slots of the same operands" in text
    (hidden,) = [field for field in document["carry"] if field["name"] == "hidden"]
    assert (hidden["dtype"], hidden["width"], hidden["bytes"]) == ("f32", 64, 256)
    assert (document["kv"]["window"], document["kv"]["reserve"]) == (4, 8)
    assert "window 4, reserve 8" in text
    assert document["totals"]["4"]["launches_in_graph"] == 5
    assert document["totals"]["4"]["host_syncs"] == 0


def test_a_paged_eagle_tree(texts: dict[str, str], documents: dict[str, Any]) -> None:
    """Nodes are compacted, the tail is duplicated, and a launch is told with its family and ops."""
    text, document = texts["eagle_tree"], documents["eagle_tree"]
    assert document["form"] == "tree"
    assert "%target_hidden has the node axis: 4 of 6 rows are kept, as %path_hidden" in text
    assert "page_size 16: the partly filled page is duplicated into every other branch" in text
    assert "2 branches draft on pages of their own" in messages(document, "bind-kv-layout")
    assert nodes(document)["duplicate_tail"]["ops"] == ["kv.duplicate_tail"]
    assert nodes(document)["compact"]["ops"] == ["commit.compact", "kv.move"]
    assert nodes(document)["target"]["operands"]["mask"] == "mask"
    grown = "draft_topk_0: topk over health.raise, kv.advance, tree.gather, tree.grow, vocab.topk: "
    assert grown in messages(document, "form-kernels")
    assert grown in text


@pytest.mark.parametrize("name", CASES)
def test_what_runs_is_the_plan(name: str, configs: dict[str, Path], documents: dict[str, Any]) -> None:
    plan = written(build_program(load_config(configs[name], names(), needs)).plan)
    phases = documents[name]["phases"]
    assert [(p["name"], p["entry"]) for p in phases] == [(p["name"], p["entry"]) for p in plan["phases"]]
    graphs = {node: capture["name"] for capture in plan["captures"] for node in capture["nodes"]}
    for phase, planned in zip(phases, plan["phases"], strict=True):
        for node, planned_node in zip(phase["nodes"], planned["nodes"], strict=True):
            assert (node["name"], node["kind"]) == (planned_node["name"], planned_node["kind"])
            assert node["graph"] == graphs.get(node["name"])
            if node["kind"] == "launch":
                assert node["ops"] == [op["op"] for op in planned_node["ops"]]
                assert node["grid"] == planned_node["grid"]["4"]
                assert node["family"] == plan["kernels"][planned_node["kernel"]]["family"]
                assert node["bytes"] > 0
            else:
                assert (node["operands"], node["capture"]) == (planned_node["operands"], planned_node["capture"])
    assert documents[name]["totals"] == plan["totals"]
    assert documents[name]["kv"].items() <= plan["kv"].items()
    assert [(f["name"], f["dtype"]) for f in documents[name]["carry"]] == [
        (f["name"], f["dtype"]) for f in plan["carry"]
    ]


@pytest.mark.parametrize("name", CASES)
def test_text_and_json_tell_the_same(name: str, texts: dict[str, str], documents: dict[str, Any]) -> None:
    text, document = texts[name], documents[name]
    for entry in document["passes"]:
        assert entry["remarks"]
        assert f"{entry['name']}: {entry['summary']}" in text
        for remark in entry["remarks"]:
            assert remark["message"] in text
            assert (remark["place"] or "") in text
    for word in (*nodes(document), *(field["name"] for field in document["carry"])):
        assert f" {word} " in text


def test_where_values_come_from(configs: dict[str, Path], documents: dict[str, Any]) -> None:
    document, lines = documents["eagle_tree"], configs["eagle_tree"].read_text().splitlines()
    for key, symbol, value in (("topk", "K", 2), ("num_steps", "S", 3), ("num_draft_tokens", "N", 6)):
        entry = setting(document["settings"], key)
        assert (entry["symbol"], entry["value"], entry["origin"]) == (symbol, value, "written")
        file, line, column = entry["place"].split(":")
        assert (file, lines[int(line) - 1][int(column) - 1 :]) == ("eagle_tree.yaml", str(value))
    assert setting(document["settings"], "max_requests")["origin"] == "the largest bucket"
    assert setting(document["settings"], "verify") == {
        "key": "verify", "symbol": None, "value": "greedy", "origin": "default", "place": None,
    }  # fmt: skip
    target, draft = document["models"]
    assert (target["side"], target["model"], draft["side"]) == ("target", None, "draft")
    assert setting(draft["settings"], "kv_dtype")["origin"] == "dtype"
    width = setting(draft["settings"], "spec_width")
    assert (width["symbol"], width["value"]) == ("W", 64)
    assert width["place"] == setting(draft["settings"], "hidden_size")["place"]


def test_what_a_model_says_has_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of transformers is made up: importing it takes longer than all the rest."""
    sizes = {"hidden_size": 64, "num_layers": 2, "num_kv_heads": 1, "head_dim": 16, "vocab_size": 96, "hc_mult": 4}
    sizes["num_mtp_modules"] = 2
    facts = {key: [value, f"its_{key}"] for key, value in sizes.items()} | {"dtype": ["float32", "dtype"]}
    monkeypatch.setattr(
        "specc.compiler.config.models.remembered", lambda content, ask: RememberedFacts("deepseek_v4", True, facts)
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "deepseek_v4"}')
    path = tmp_path / "deep.yaml"
    path.write_text("name: deep\nalgorithm: EAGLE\ntarget: {model: model}\ndraft: {model: model, head_dim: 16}\n")
    draft = json.loads(done(path, "--format", "json").stdout)["models"][1]
    origins = {entry["key"]: (entry["origin"], entry["place"]) for entry in draft["settings"]}
    assert draft["model"] == "model"
    assert origins["num_kv_heads"] == ("model/config.json: its_num_kv_heads", "deep.yaml:4:16")
    assert origins["hidden_source"] == ("model/config.json: model_type deepseek_v4", "deep.yaml:4:16")
    assert origins["spec_width"] == ("hidden_size * hc_mult, because hidden_source is hc_residual", "deep.yaml:4:16")
    assert origins["head_dim"] == ("written", "deep.yaml:4:33")
    modules = "model/config.json: modules that are used, of 2 (its_num_mtp_modules)"
    assert origins["num_layers"] == (modules, "deep.yaml:4:16")


def test_streams_widen_what_is_handed_over(tmp_path: Path) -> None:
    path = tmp_path / "streams.yaml"
    streams = {"hc_mult": 4, "hidden_source": "hc_residual"}
    path.write_text(config_text("EAGLE", target=streams, draft=streams))
    for model in json.loads(done(path, "--format", "json").stdout)["models"]:
        width = setting(model["settings"], "spec_width")
        assert (width["value"], width["origin"]) == (
            256,
            "hidden_size * hc_mult, because hidden_source is hc_residual",
        )


def test_one_pass(configs: dict[str, Path]) -> None:
    document = json.loads(done(configs["eagle_tree"], "--pass", "plan-memory", "--format", "json").stdout)
    assert [entry["name"] for entry in document["passes"]] == ["plan-memory"]
    text = done(configs["eagle_tree"], "--pass", "plan-memory").stdout
    assert "plan-memory: " in text
    assert [line for line in text.splitlines() if line[:1].isalpha()] == [text.splitlines()[0]]
    wrong = explain(configs["eagle_tree"], "--pass", "plan-memroy")
    assert wrong.exit_code == 2
    assert "no pass named 'plan-memroy'" in wrong.output


def test_some_lines_say_the_form(configs: dict[str, Path]) -> None:
    text = done(configs["standalone_chain"]).stdout
    assert " form      chain of 4 nodes: topk is 1: nothing is ranked\n" in text
    assert "the configuration" not in text


def test_what_one_pass_did_not_choose(configs: dict[str, Path]) -> None:
    text = " ".join(done(configs["eagle_tree"], "--pass", "select-compaction").stdout.split())
    assert "not every node's row (6,144 bytes): rows that were not accepted lie between those that were" in text
    assert "what runs" not in text
    assert "not every node's row" not in done(configs["eagle_tree"], "--full").stdout


@pytest.mark.parametrize("full", [(), ("--full",)])
def test_plain_text_where_there_is_no_terminal(full: tuple[str, ...], configs: dict[str, Path]) -> None:
    text = done(configs["eagle_tree"], *full).stdout
    assert "\x1b" not in text
    assert all(line == line.rstrip() and len(line) <= 160 for line in text.splitlines())


def test_one_of_several_shapes(tmp_path: Path) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(config_text("EAGLE", num_steps=[1, 3]))
    deep, shallow = (json.loads(done(path, "--shape", steps, "--format", "json").stdout) for steps in (3, 1))
    assert json.loads(done(path, "--format", "json").stdout) == deep
    for document, steps in ((deep, 3), (shallow, 1)):
        assert (document["shape"], document["shapes"]) == (str(steps), ["1", "3"])
        forwards = [name for name, node in nodes(document).items() if node["kind"] == "external"]
        assert sum(name.startswith("draft") for name in forwards) == steps - 1
        assert setting(document["settings"], "num_steps")["value"] == steps
        assert setting(document["settings"], "num_draft_tokens")["value"] == steps + 1
    assert "hidden" in {field["name"] for field in shallow["carry"]}
    text = " ".join(done(path, "--shape", 1, "--full").stdout.split())
    assert "a chain of shape 1, compiled for 1, 3" in text


@pytest.mark.parametrize(("steps", "listed"), [([1, 3], "1, 3"), (3, "3")])
def test_a_shape_that_is_not_there(steps: object, listed: str, tmp_path: Path) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(config_text("EAGLE", num_steps=steps))
    result = explain(path, "--shape", 2)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"there is {listed}, and not 2" in result.stderr


def test_a_wrong_configuration(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(config_text(topk="many"))
    result = explain(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error[config/wrong-type]")
    assert f"--> {path}:" in result.stderr
    result = explain(path, "--format", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    assert [finding["code"] for finding in json.loads(result.stdout)] == ["config/wrong-type"]


def test_a_program_that_cannot_be_built(tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text(config_text("EAGLE", target={"hidden_size": 128}))
    result = explain(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[type/width-mismatch]" in result.stderr
    assert "Traceback" not in result.output


def test_warnings(tmp_path: Path) -> None:
    path = tmp_path / "warned.yaml"
    path.write_text(config_text("STANDALONE", target={"hc_mult": 2}))
    result = explain(path)
    assert result.exit_code == 0
    assert result.stderr.startswith("warning[config/hc-mult-default]")
    document = json.loads(explain(path, "--format", "json").stdout)
    assert [finding["code"] for finding in document["warnings"]] == ["config/hc-mult-default"]


def keys(value: Any) -> set[str]:
    """All keys of a document, but those that are names of its own: buckets, and parameters of forwards."""
    if isinstance(value, list):
        return {key for inner in value for key in keys(inner)}
    if not isinstance(value, dict):
        return set()
    return {*value}.union(*(keys(inner) for key, inner in value.items() if key not in ("totals", "operands")))


def test_every_key_is_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "explain.md").read_text()
    (tmp_path / "ranks.yaml").write_text(config_text("EAGLE", logits="sharded", tensor_parallel=4))
    own = keys(json.loads(done(tmp_path / "ranks.yaml", "--format", "json").stdout))
    assert {"settings", "rejected", "readers", "place", "family", "ranks", "operands", "reserve"} <= own
    assert {key for key in own if not re.search(rf"\b{key}\b", page)} == set()
