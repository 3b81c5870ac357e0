"""`specc bench-serve -- COMMAND`: servers that it starts, measures and stops; none of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_server import MODEL, Fake, serving
from ports import free_port

from specc.engines import _plugin
from specc.lab.measure.serving import apart, process

from .test_bench_serve import code, run

SERVER = Path(__file__).parents[3] / "fakes" / "server_process.py"
QUICK = ("--count", "3", "--max-new-tokens", "8", "--batch", "2", "--requests", "3")


class Started:
    """The command of a made-up server, and what its processes have left behind."""

    def __init__(self, folder: Path) -> None:
        self.record = folder / "record.jsonl"

    def command(self, *words: str) -> list[str]:
        return ["--", sys.executable, str(SERVER), "--record", str(self.record), *words]

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []

    @property
    def left(self) -> list[int]:
        """Processes that still run."""
        return [pid for start in self.starts for pid in start["pids"] if runs(pid)]


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    monkeypatch.setattr(process, "GONE_S", 0.2)
    monkeypatch.setattr(process, "LOOK_S", 0.02)
    return Started(tmp_path)


def failed(server: Started, *words: str, options: Sequence[str] = ()) -> Any:
    """A command that ends with a finding, and of whose server nothing is left."""
    done = run(*QUICK, *options, *server.command(*words))
    assert done.exit_code == 1, done.output
    assert server.left == [] and done.stdout == "" and "\x1b" not in done.stderr
    return done


def test_a_server_is_started_with_its_program_and_without_it(server: Started, tmp_path: Path) -> None:
    port = free_port()
    done = run(*QUICK, "--format", "json", "--plot", str(tmp_path / "x.svg"), *server.command("--port", str(port)))
    assert done.exit_code == 0, done.output
    report, url = json.loads(done.stdout), f"http://127.0.0.1:{port}"
    assert report["program"] == "specc_program_y" and report["model"] == MODEL and report["warnings"] == []
    assert report["how"] == "apart" and report["addresses"] == [url, url] and report["engines"] == ["vllm", "vllm"]
    assert report["texts"] == {"compared": 3, "near_ties": 0, "equal": 3}
    [batch] = report["batches"]
    assert batch["program"]["program_steps"] == 1 and batch["other"]["program_steps"] is None
    assert batch["program"]["tokens"] == batch["other"]["tokens"] > 0
    assert (tmp_path / "x.svg").stat().st_size > 1000
    first, second = server.starts
    assert [first["port"], second["port"]] == [port, port]
    assert [first["choice"], second["choice"]] == [None, _plugin.NONE]
    assert first["figures"] != second["figures"] and not Path(first["figures"]).exists()
    assert server.left == []


def test_a_program_that_is_switched_needs_one_server(server: Started) -> None:
    done = run(*QUICK, *server.command("--engine", "sglang"))
    assert done.exit_code == 0, done.output
    [start] = server.starts
    assert f"specc_program_x: {MODEL}, http://127.0.0.1:{start['port']}, switched on and off" in done.stdout
    assert server.left == []


def test_the_table_says_that_one_server_followed_the_other(server: Started) -> None:
    done = run(*QUICK, *server.command("--port=0", f"--port={free_port()}", "--host", "0.0.0.0"))
    assert done.exit_code == 0, done.output
    [first, second] = server.starts
    assert f"http://127.0.0.1:{first['port']}, with it and then without it" in done.stdout
    assert first["port"] == second["port"]


def test_the_word_for_no_program_is_the_adapters() -> None:
    assert {_plugin.CHOICE: _plugin.NONE} == apart.WITHOUT


@pytest.mark.parametrize(
    ("words", "url"),
    [
        (["--port", "1", "--port=8000"], "http://127.0.0.1:8000"),
        (["--port=8000", "--port", "30000", "--host=10.0.0.7"], "http://10.0.0.7:30000"),
        (["--port", "80", "--host", "::"], "http://[::1]:80"),
        (["--port", "80", "--host", "0.0.0.0", "--portable", "7"], "http://127.0.0.1:80"),
    ],
)
def test_where_a_server_will_be(words: Sequence[str], url: str) -> None:
    command = process.ServerCommand.of(["x", *words], 1)
    assert command.url == url and command.words == ("x", *words)


def test_a_free_port_is_added() -> None:
    command = process.ServerCommand.of(["x", "--served-model-name=a"], 1)
    assert command.words[:3] == ("x", "--served-model-name=a", "--port")
    assert command.url == f"http://127.0.0.1:{int(command.words[3])}"


def test_a_server_that_ends_at_once(server: Started) -> None:
    done = failed(server, "--fault", "ends")
    assert code(done) == "serve/not-running" and "with status 1, before it answered" in done.stderr
    assert "its log: out of memory" in done.stderr and "--fault ends" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("fault", ["silent", "starting"])
def test_a_server_that_never_answers(server: Started, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = process._process

    def begin_and_print(command: process.ServerCommand, variables: Mapping[str, str], output: int) -> Any:
        """On a busy machine a process may print nothing for longer than the command waits."""
        started, until = begin(command, variables, output), time.monotonic() + 60
        while os.fstat(output).st_size == 0 and time.monotonic() < until:
            time.sleep(0.01)
        return started

    monkeypatch.setattr(process, "_process", begin_and_print)
    done = failed(server, "--fault", fault, options=["--start-timeout", "1"])
    assert code(done) == "serve/not-running" and "has not answered" in done.stderr and "for 1 s" in done.stderr
    assert "loading weights" in done.stderr and len(server.starts) == 1


def test_a_server_that_ends_while_it_is_measured(server: Started) -> None:
    done = failed(server, "--fault", "dies")
    assert code(done) == "serve/not-running" and "ended while it was measured, with status 7" in done.stderr


def test_a_server_that_runs_no_program(server: Started) -> None:
    done = failed(server, "--fault", "no program")
    assert code(done) == "serve/no-program" and "specc_program_y does not run here" in done.stderr
    assert len(server.starts) == 1


def test_texts_that_differ_are_not_shown_with_times(server: Started, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(["one", "two"]))
    done = failed(server, "--apart", "two", options=["--prompts", str(tmp_path / "p.json")])
    assert code(done) == "serve/texts-differ" and len(server.starts) == 2


def test_a_server_that_does_not_end_is_killed(server: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_S", 0.2)
    done = run(*QUICK, *server.command("--fault", "stubborn"))
    assert done.exit_code == 0, done.output
    assert len(server.starts) == 2 and server.left == []


def test_a_port_at_which_somebody_listens(server: Started) -> None:
    with serving(Fake()) as fake:
        done = failed(server, "--port", fake.url.rpartition(":")[2])
    assert code(done) == "serve/not-running" and "listens at" in done.stderr and server.starts == []


def test_a_command_that_is_none() -> None:
    done = run(*QUICK, "--", "no-such-server-\x1b[2J", "serve")
    assert done.exit_code == 1 and code(done) == "serve/not-running" and "\x1b" not in done.output
    assert "cannot be started: No such file" in done.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_is_stopped_stops_the_server(server: Started, ending: signal.Signals) -> None:
    """While it starts, in a process of its own."""
    words = ("-m", "specc.cli.main", "bench-serve", *QUICK, *server.command("--fault", "starting"))
    running = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not server.starts and time.monotonic() < until:
        time.sleep(0.05)
    assert len(server.left) == 2
    os.kill(running.pid, ending)
    out, err = running.communicate(timeout=60)
    assert running.returncode not in (0, 70) and out == "" and "Traceback" not in err, err
    assert server.left == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--url", "http://x", "--", "x"], "--url"),
        (["--against", "http://x", "--", "x"], "--against"),
        (["--", "x", "--port", "http"], "http"),
        (["--", "x", "--port"], "--port"),
        (["--", "x", "--port=65536"], "65536"),
        (["--"], "--url"),
    ],
)
def test_wrong_words(words: Sequence[str], expected: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and expected in done.output.replace("\n", "")
