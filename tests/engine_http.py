"""Real engines behind HTTP: a server of theirs in a process of its own, and the clients of a crowd.

Clients are of the standard library, a thread each. What they must be answered is transformers' greedy text.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from engine_job import stop_group
from engine_prompts import PREAMBLES, TAILS
from head_layouts import EXAMPLES
from transformers import AutoModelForCausalLM, AutoTokenizer

START_S, ANSWER_S = 240, 120
LONGEST, TO_LEAVE = 16, 200
"""Most tokens of an answer that is compared, and how many a client asks for who will leave in the middle."""
PROMPTS = [head + tail for head in PREAMBLES for tail in TAILS[:4]]


@dataclass(frozen=True)
class Server:
    """One that runs: its port, and the file of its log."""

    port: int
    log: Path

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def text(self, path: str, body: Any = None) -> str:
        """What it answers on a path, of a POST if there is a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            headers = {"Content-Type": "application/json"}
            given = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, given, headers)
            response = connection.getresponse()
            answer = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, (path, response.status, answer[:500])
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.text("/metrics").splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


def bench(folder: Path, *words: str) -> dict[str, Any]:
    """What `specc bench-serve` finds with a few small prompts, of the servers that the words name or start."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS[:4]))
    command = ("-m", "specc.cli.main", "bench-serve", "--prompts", str(prompts), "--format", "json")
    few = ("--max-new-tokens", "12", "--batch", "2", "--turns", "3", "--requests", "4")
    done = subprocess.run([sys.executable, *command, *few, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@dataclass(frozen=True)
class Start:
    """What starts a server: its command, and the variables of its environment, no others among them."""

    command: list[str]
    settings: dict[str, str]

    @property
    def words(self) -> list[str]:
        """One command line for both, where this process's environment is what there is."""
        without = [f"--unset={name}" for name in os.environ if name not in self.settings]
        return ["env", *without, *(f"{name}={value}" for name, value in self.settings.items()), *self.command]


@contextmanager
def started(command: Sequence[str], settings: Mapping[str, str], folder: Path, port: int) -> Iterator[Server]:
    """Run a server with these variables of the environment until the block ends. RuntimeError if it does not answer."""
    log = folder / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=dict(settings), cwd=folder, stdout=file, stderr=file, start_new_session=True
        )
    server, until = Server(port, log), time.monotonic() + START_S
    try:
        while True:
            try:
                server.text("/v1/models")
                break
            except (OSError, http.client.HTTPException, AssertionError):
                if process.poll() is not None or time.monotonic() > until:
                    tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
                    raise RuntimeError(f"the server does not answer, exit status {process.poll()}\n{tail}") from None
                time.sleep(0.3)
        yield server
    finally:
        stop_group(process)


def ask(server: Server, prompt: str, tokens: int, leave_after: int | None = None, model: str = "target") -> str | None:
    """The text of a request as it streams; None of one whose client leaves after so many pieces of text."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_S)
    pieces: list[str] = []
    try:
        connection.request("POST", "/v1/completions", json.dumps(body | {"ignore_eos": True}), {
            "Content-Type": "application/json",
        })  # fmt: skip
        response = connection.getresponse()
        assert response.status == 200, response.read()[:500]
        for line in response:
            event = line.removeprefix(b"data:").strip()
            if event == b"[DONE]":
                return "".join(pieces)
            if event:
                pieces += [choice["text"] for choice in json.loads(event)["choices"] if choice["text"]]
            if leave_after is not None and len(pieces) >= leave_after:
                return None
    finally:
        connection.close()
    raise AssertionError(f"an answer ends without its end: {''.join(pieces)!r}")


@dataclass(frozen=True)
class Asked:
    """A request of a crowd that stays: its prompt, how many tokens it wants, and what it was answered."""

    prompt: str
    tokens: int
    text: str | None


def crowd(
    server: Server, requests: int, clients: int, leaving: int, seed: int, to_leave: int = TO_LEAVE
) -> list[Asked]:
    """So many requests by so many clients, while others leave in the middle of theirs: those of the ones that stay.

    A client who will leave asks for `to_leave` tokens.
    """
    rng = random.Random(seed)
    wanted = [(rng.choice(PROMPTS), rng.randint(4, LONGEST)) for _ in range(requests)]
    left = [(rng.choice(PROMPTS), rng.randint(1, 3)) for _ in range(leaving)]
    with ThreadPoolExecutor(clients) as stay, ThreadPoolExecutor(max(1, clients // 4)) as leave:
        answers = [stay.submit(ask, server, prompt, tokens) for prompt, tokens in wanted]
        gone = [leave.submit(ask, server, prompt, to_leave, pieces) for prompt, pieces in left]
        assert [request.result() for request in gone] == [None] * leaving
        return [Asked(*request, answer.result()) for request, answer in zip(wanted, answers, strict=True)]


def wrong(answers: Sequence[Asked]) -> list[tuple[Asked, str]]:
    """The answers that are not the target's greedy text by transformers, which needs no drafts, with that text."""
    return [(answer, text) for answer in answers if answer.text != (text := expected(answer.prompt, answer.tokens))]


def expected(prompt: str, tokens: int) -> str:
    """The target's greedy text by transformers."""
    prompt_ids, greedy_ids = _greedy(prompt)
    tokenizer, _ = _target()
    return tokenizer.decode([*prompt_ids, *greedy_ids[:tokens]])[len(tokenizer.decode(prompt_ids)) :]


@cache
def _greedy(prompt: str) -> tuple[list[int], list[int]]:
    tokenizer, model = _target()
    given = tokenizer(prompt, return_tensors="pt")  # with a mask: a prompt begins with what pads
    with torch.inference_mode():
        made = model.generate(**given, do_sample=False, max_new_tokens=LONGEST, eos_token_id=None, pad_token_id=0)
    length = given.input_ids.shape[1]
    return made[0, :length].tolist(), made[0, length:].tolist()


@cache
def _target() -> tuple[Any, Any]:
    folder = EXAMPLES / "target"
    return AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
