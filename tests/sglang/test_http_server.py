"""SGLang as people start it, behind HTTP, with a program: a crowd of clients, some of whom leave, and the benchmark."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_http import LONGEST, PROMPTS, Server, Start, ask, bench, crowd, expected, started, wrong
from engine_job import by_init, environment, first_program
from fakes.sglang_settings import validated
from head_layouts import EXAMPLES
from ports import free_port
from sglang_family import all_accounted_for
from sglang_files import ENVIRONMENT, ON_GPU, PYTHON
from sglang_programs import SERVED
from sglang_server import SERVER

pytestmark = pytest.mark.skipif(ON_GPU, reason="the environment of GPUs has no HTTP server")
REQUESTS, CLIENTS, LEAVING = 160, 24, 60
TO_LEAVE = 900
"""Tokens that a client asks for who will leave: SGLang aborts a request two seconds later, if it still runs."""
ROWS, NUM_STEPS = 16, 5
"""Requests of a step, and the drafts of a branch of the tree that is SGLang's default."""
PROGRAM = "specc_program_target_eagle"
SGLANG = PYTHON.parent / "sglang"
FEW = ("--max-total-tokens=65536",)
IDLE_S = 30
KEPT = {"llama", "llama_eagle"}
"""Modules of models that are imported; SGLang would import some two hundred more."""


@pytest.fixture(scope="module")
def start(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """From two models by the commands of specc, with what a small CPU needs beside them."""
    return start_of(models, tmp_path_factory.mktemp("start"))


def start_of(models: Path, folder: Path, *options: str) -> Start:
    """What starts the server of a program with these options of `check`."""
    given = {
        **SERVED, **SERVER, "max_running_requests": ROWS, "max_total_tokens": 8192, "sampling_backend": "pytorch",
        "grammar_backend": "none", "mem_fraction_static": 0.3,
    }  # fmt: skip
    flags = ("--disable-cuda-graph", "--skip-server-warmup", "--enable-metrics")
    words = [*(f"--{name.replace('_', '-')}={value}" for name, value in given.items()), *flags]
    (sglang, *command), wheel = first_program("sglang", models / "target", models / "eagle", words, folder, *options)
    assert sglang == "sglang"
    settings = variables(folder, wheel) | {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1"}
    assert settings.pop("SPECC_PROGRAM") == PROGRAM
    return Start([str(SGLANG), *command], settings)


def variables(folder: Path, wheel: Path) -> dict[str, str]:
    """A server's environment, with a wheel in a folder. SGLang imports those of its models that are in `KEPT`."""
    architectures = {path.stem for path in (ENVIRONMENT.site / "sglang" / "srt" / "models").glob("*.py")}
    return environment(folder, wheel) | dict(ENVIRONMENT.variables) | {
        "SGLANG_DISABLED_MODEL_ARCHS": ",".join(sorted(architectures - KEPT)),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests but that of the command which starts its own."""
    folder, port = tmp_path_factory.mktemp("http"), free_port()
    with started([*start.command, f"--port={port}"], start.settings, folder, port) as running:
        yield running


def test_two_models_become_a_server_with_a_program(server: Server) -> None:
    """By `init`, `build` and the command that these print; the program is chosen by nobody."""
    assert f"specc: {PROGRAM} runs the decode steps" in server.log.read_text()


def test_a_plugin_leaves_metrics_to_sglang(start: Start) -> None:
    """Prometheus_client reads where processes leave their figures when it is imported, and SGLang says so later."""
    code = "import sys; from sglang.srt.plugins import load_plugins; load_plugins(); print(*sys.modules)"
    done = subprocess.run([PYTHON, "-c", code], env=start.settings, capture_output=True, text=True)
    loaded = done.stdout.split()
    assert f"{PROGRAM}._sglang.workers" in loaded, done.stderr
    assert "prometheus_client" not in loaded


@pytest.mark.parametrize("algorithm", ["standalone", "eagle"])
def test_two_models_are_served_after_four_commands(algorithm: str, models: Path, tmp_path: Path) -> None:
    """`init`, `build`, what pip does, and the command that `init` prints: as they are, without a flag of anybody's.

    A chain of the examples', and the tree that SGLang takes for a head, in the server's 16 bits. One argument is the
    test's alone: without it SGLang fills half of the memory with zeros, for keys and values of four million tokens.
    """
    folder = EXAMPLES if algorithm == "standalone" else models
    target, draft = folder / "target", folder / algorithm
    (sglang, *command), wheel = by_init("sglang", target, draft, tmp_path, ENVIRONMENT.site)
    settings, port, program = variables(tmp_path, wheel), free_port(), f"specc_program_target_{algorithm}"
    assert sglang == "sglang" and settings.pop("SPECC_PROGRAM") == program
    with started([str(SGLANG), *command, *FEW, f"--port={port}"], settings, tmp_path, port) as running:
        assert f"specc: {program} runs the decode steps" in running.log.read_text()
        before = served(running)
        assert ask(running, PROMPTS[0], LONGEST, model=str(target)) is not None
        assert served(running) > before


def served(server: Server) -> int:
    """How many steps the program has run."""
    return json.loads(server.text("/server_info"))["internal_states"][0]["specc"]["served"]


def state(server: Server) -> Mapping[str, Any]:
    """The scheduler's state, once nothing runs."""
    for _ in range(10 * IDLE_S):
        internal = json.loads(server.text("/server_info"))["internal_states"][0]
        if internal["specc_testing"]["idle"]:
            return internal
        time.sleep(0.1)
    raise AssertionError(f"something still runs {IDLE_S} s after the last client has left")


def test_a_crowd_has_the_texts_of_the_target_and_leaves_nothing_behind(server: Server) -> None:
    """Those who leave are aborted, the program runs the steps, and every KV slot and pool row is free or cached."""
    answers = crowd(server, REQUESTS, CLIENTS, LEAVING, seed=1, to_leave=TO_LEAVE)
    assert wrong(answers) == []
    internal = state(server)
    all_accounted_for(internal["specc_testing"])
    program = internal["specc"]
    assert program["program"] == PROGRAM and program["left"] == {}
    assert sum(answer.tokens for answer in answers) <= program["served"] * ROWS * (NUM_STEPS + 1)
    assert server.metric("specc:decode_steps_total", by="program") == program["served"]
    assert server.metric("sglang:num_aborted_requests_total") > LEAVING / 2


def test_the_benchmark_of_a_server(server: Server, tmp_path: Path) -> None:
    """Its program is off for one side's turns and on again in the end."""
    before = state(server)["specc"]["served"]
    report = bench(tmp_path, "--url", server.url)
    assert report["program"] == PROGRAM and report["engines"] == ["sglang", "sglang"]
    assert report["texts"] == {"compared": 4, "near_ties": 0, "equal": 4} and report["warnings"] == []
    [batch] = report["batches"]
    assert batch["program"]["program_steps"] == 1 and batch["other"]["program_steps"] == 0
    assert batch["program"]["tokens"] == batch["other"]["tokens"] > 100
    assert batch["program"]["accept_length"] == pytest.approx(batch["other"]["accept_length"], rel=0.05)
    assert 0 < len(batch["program"]["by_position"]) <= NUM_STEPS and 1.5 < batch["program"]["accept_length"] < 4
    after = state(server)["specc"]
    assert after["on"] and after["served"] > before and sum(after["left"].values()) > 0


def test_the_benchmark_starts_a_server(start: Start, tmp_path: Path) -> None:
    """By the server's own command line: one of SGLang, whose program is switched."""
    report = bench(tmp_path, "--", *start.words)
    assert report["how"] == "switched" and report["program"] == PROGRAM and report["warnings"] == []
    assert report["texts"] == {"compared": 4, "near_ties": 0, "equal": 4}
    [batch] = report["batches"]
    assert batch["program"]["program_steps"] == 1 and batch["other"]["program_steps"] == 0


def test_a_server_is_told_its_shape_over_http(models: Path, tmp_path: Path) -> None:
    """SGLang lets through settings that are numbers, so that the name of a shape is in the key."""
    start, port = start_of(models, tmp_path, "--shapes", "5x4x8,3,0"), free_port()

    def told(running: Server, **settings: object) -> bool:
        [updated] = json.loads(running.text("/set_internal_state", {"server_args": settings}))
        return updated

    with started([*start.command, f"--port={port}"], start.settings, tmp_path, port) as running:
        for shape in ("3", "5x4x8", "0"):
            assert told(running, **{f"specc:{shape}": 1})
            before = Counter(state(running)["specc"]["served_by_shape"])
            assert ask(running, PROMPTS[0], LONGEST) == expected(PROMPTS[0], LONGEST)
            after = state(running)["specc"]
            assert after["shape"] == shape and {*(Counter(after["served_by_shape"]) - before)} == {shape}
        for value in ("0", 0, "3"):  # the shape 0, or off: SGLang has made a number of either
            assert not told(running, specc=value)
        assert not told(running, **{"specc:7": 1})
        with pytest.raises(AssertionError, match="400"):
            told(running, specc="5x4x8")
        assert state(running)["specc"]["on"] and state(running)["specc"]["shape"] == "0"
        assert told(running, **{"specc:off": 1})
        before = state(running)["specc"]["served"]
        assert ask(running, PROMPTS[0], LONGEST) == expected(PROMPTS[0], LONGEST)
        assert state(running)["specc"]["served"] == before
        assert told(running, **{"specc:auto": 1}) and state(running)["specc"]["on"]


VALUES = (0, 1, 3, "0", "1", "3", "5x4x8", "auto", " 1", "1e3", "nan", "", 1.0, 0.5, True, False, None, [], [1], {})


def test_the_stand_ins_settings_are_validated_as_sglang_does() -> None:
    """The type that SGLang says of them, as its HTTP server reads it, beside the stand-in's."""
    code = """
import json, sys
from pydantic import TypeAdapter, ValidationError
from sglang.srt.managers.io_struct import SetInternalStateReq
def validated(posted):
    try:
        return TypeAdapter(SetInternalStateReq).validate_python({"server_args": posted}).server_args
    except ValidationError:
        return None
print(repr([validated(posted) for posted in json.loads(sys.argv[1])]))
"""
    posted = [*({key: value} for key in ("specc", "specc:5x4x8") for value in VALUES), {}, [], 3, "x", None]
    done = subprocess.run([PYTHON, "-c", code, json.dumps(posted)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == repr([validated(settings) for settings in posted]), done.stderr
