"""vLLM as people start it, behind HTTP, with a program: a crowd of clients, some of whom leave, and the benchmark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_http import LONGEST, PROMPTS, TO_LEAVE, Server, Start, ask, bench, crowd, expected, started, wrong
from engine_job import by_init, environment, first_program
from head_layouts import EXAMPLES
from ports import free_port
from vllm_files import ENVIRONMENT, HERE, ON_GPU, PYTHON
from vllm_server import BLOCK, NUM_STEPS

pytestmark = pytest.mark.skipif(ON_GPU, reason="the environment of GPUs has no HTTP server")
REQUESTS, CLIENTS, LEAVING = 160, 24, 60
ROWS, BLOCKS, MODEL_LEN = 16, 200, 512
IDLE_S = 30
PROGRAM = "specc_program_target_eagle"


@pytest.fixture(scope="module")
def start(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """From two models by the commands of specc, with what a small CPU needs beside them."""
    folder = tmp_path_factory.mktemp("start")
    given = {
        "served-model-name": "target", "host": "127.0.0.1", "dtype": "float32", "max-num-seqs": ROWS,
        "max-num-batched-tokens": 256, "max-model-len": MODEL_LEN, "block-size": BLOCK, "seed": 1,
        "num-gpu-blocks-override": BLOCKS,
    }  # fmt: skip
    flags = ("--enforce-eager", "--no-async-scheduling", "--no-enable-prefix-caching")
    words = [*(f"--{name}={value}" for name, value in given.items()), *flags]
    command, wheel = first_program("vllm", models / "target", models / "eagle", words, folder)
    settings = variables(folder, wheel)
    assert settings.pop("SPECC_PROGRAM") == PROGRAM
    return Start(run_here(command), settings)


def variables(folder: Path, wheel: Path) -> dict[str, str]:
    """A server's environment, with a wheel in a folder, and a backend of Triton's for CPUs."""
    settings = environment(folder, wheel) | {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1",
    }
    return settings | {"PYTHONPATH": f"{settings['PYTHONPATH']}:{HERE / 'stand_ins'}"}


def counted(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """The same for a server whose processes share their metrics, in a folder."""
    figures = folder / "figures"
    figures.mkdir()
    return settings | {"PROMETHEUS_MULTIPROC_DIR": str(figures)}


def run_here(command: list[str]) -> list[str]:
    """A command of `vllm` by the environment's Python."""
    assert command[0] == "vllm"
    return [str(PYTHON), "-m", "vllm.entrypoints.cli.main", *command[1:]]


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests but that of the command which starts its own."""
    folder, port = tmp_path_factory.mktemp("http"), free_port()
    with started([*start.command, f"--port={port}"], counted(start.settings, folder), folder, port) as running:
        yield running


def test_two_models_become_a_server_with_a_program(server: Server) -> None:
    """By `init`, `build` and the command that these print; the program is chosen by nobody."""
    assert f"specc: {PROGRAM} runs the decode steps" in server.log.read_text()


def test_the_examples_are_served_after_four_commands(tmp_path: Path) -> None:
    """`init`, `build`, what pip does, and the command that `init` prints: as they are, without a flag of anybody's.

    Blocks have vLLM's 128 tokens, and models its 16 bits. One argument is the test's alone: without it vLLM compiles
    for minutes, and warms up all of its kernels in Triton's interpreter.
    """
    command, wheel = by_init("vllm", EXAMPLES / "target", EXAMPLES / "standalone", tmp_path, ENVIRONMENT.site)
    settings, port, program = (
        counted(variables(tmp_path, wheel), tmp_path),
        free_port(),
        "specc_program_target_standalone",
    )
    assert settings.pop("SPECC_PROGRAM") == program
    with started([*run_here(command), "--enforce-eager", f"--port={port}"], settings, tmp_path, port) as running:
        assert f"specc: {program} runs the decode steps" in running.log.read_text()
        before, _, _ = steps(running)
        assert ask(running, PROMPTS[0], LONGEST, model=str(EXAMPLES / "target")) is not None
        wait(running)
        assert steps(running)[0] > before


def wait(server: Server) -> None:
    """Until nothing runs and nothing waits."""
    for _ in range(10 * IDLE_S):
        if not sum(server.metric(f"vllm:num_requests_{state}") for state in ("running", "waiting")):
            return
        time.sleep(0.1)
    raise AssertionError(f"something still runs {IDLE_S} s after the last client has left")


def steps(server: Server) -> tuple[float, float, float]:
    """Of the program, left to vLLM, and those of them that were left for a prefill beside the drafts."""
    name = "specc:decode_steps_total"
    reason = "a prefill in the batch"
    return tuple(server.metric(name, **labels) for labels in ({"by": "program"}, {"by": "vllm"}, {"reason": reason}))


def test_a_crowd_has_the_texts_of_the_target_and_leaves_nothing_behind(server: Server) -> None:
    """Those who leave are aborted, the program runs steps, and no block of the KV cache is in use.

    vLLM counts no aborts of clients that have left: their tokens tell, of which each had asked for `TO_LEAVE`.
    """
    answers = crowd(server, REQUESTS, CLIENTS, LEAVING, seed=1)
    assert wrong(answers) == []
    wait(server)
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    stayed = sum(answer.tokens for answer in answers)
    assert stayed < server.metric("vllm:generation_tokens_total") < stayed + LEAVING * TO_LEAVE / 2
    assert server.metric("specc:program_active", program=PROGRAM) == 1
    served, left, prefills = steps(server)
    assert served > 0 and left == prefills


def test_a_client_alone_is_the_program_s(server: Server) -> None:
    """But for the prompt, no step of its text is vLLM's."""
    before = steps(server)
    text = ask(server, PROMPTS[0], LONGEST)
    wait(server)
    served, left, _ = (now - then for now, then in zip(steps(server), before, strict=True))
    assert text == expected(PROMPTS[0], LONGEST)
    assert served >= (LONGEST - 1) / (NUM_STEPS + 1) and left <= 1


def test_the_benchmark_of_two_servers_that_are_one(server: Server, tmp_path: Path) -> None:
    """Both sides are this server: what is the same is found to be, and that a program ran on the other side is told."""
    report = bench(tmp_path, "--url", server.url, "--against", server.url)
    assert report["program"] == PROGRAM and report["engines"] == ["vllm", "vllm"]
    assert report["texts"] == {"compared": 4, "near_ties": 0, "equal": 4}
    assert [warning["code"] for warning in report["warnings"]] == ["serve/program-idle"]
    [batch] = report["batches"]
    assert batch["program"]["program_steps"] > 0 and batch["other"]["program_steps"] > 0
    assert batch["program"]["tokens"] == batch["other"]["tokens"] > 100
    assert batch["program"]["accept_length"] == pytest.approx(batch["other"]["accept_length"], rel=0.05)
    assert len(batch["program"]["by_position"]) == NUM_STEPS and 1.5 < batch["program"]["accept_length"] < 4


def test_the_benchmark_starts_servers(start: Start, tmp_path: Path) -> None:
    """By the server's own command line: one with the program, then one in which the variable says that none runs."""
    report = bench(tmp_path, "--", *start.words)
    assert report["how"] == "apart" and report["program"] == PROGRAM and report["warnings"] == []
    assert report["texts"] == {"compared": 4, "near_ties": 0, "equal": 4}
    [batch] = report["batches"]
    assert batch["program"]["program_steps"] > 0 and batch["other"]["program_steps"] is None
    assert batch["program"]["tokens"] == batch["other"]["tokens"] > 100
    assert batch["program"]["accept_length"] == pytest.approx(batch["other"]["accept_length"], rel=0.05)
