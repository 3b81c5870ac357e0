"""A server on the OpenAI interface, as SGLang or vLLM has it, whose texts are drawn from a seed; it can be hostile.

It speculates as if: a step has one to four tokens, a chunk each. The program may be switched, as in SGLang, or is told
of in metrics, as in vLLM.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .sglang_settings import validated

MODEL = "some/model"
POSITIONS = 3
PATIENCE_S = 60
"""How long a request waits for others at most."""
DRIPPED = {"pings": b": ping\n\n", "no choices": b'data: {"choices": []}\n\n', "bytes": b"x"}
"""What comes without an end, and is no text."""
WORDS = (" the", " cat", " sat", "\n", " é", " 猫", " x")


def token(prompt: str, place: int) -> str:
    """The most probable token at a place behind a prompt."""
    return random.Random(f"{prompt} {place}").choice(WORDS)


@dataclass
class Fake:
    """What a server is and does.

    Attributes:
        engine: `sglang` or `vllm`.
        program: whether it has a program; an sglang's can be switched.
        fault: what goes wrong with answers, one of those in `Handler.stream` and `Handler.do_GET`.
        said: what it says of a field, whatever is true; a key is the field's name.
        spoil: what becomes of anything that it sends.
        apart: prompts whose text has another token at place 2 where the program runs, with how far apart the two best
            tokens are there.
        token_s: seconds of its own clock, `now`, that a step takes, with the program and without.
        crowd: requests that have to run at a time, once, before any has an answer.

    """

    engine: str = "sglang"
    program: bool = True
    fault: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    spoil: Callable[[bytes], bytes] = bytes
    apart: Mapping[str, float] = field(default_factory=dict)
    token_s: tuple[float, float] = (0.0, 0.0)
    now: float = 0.0
    crowd: int = 0
    on: bool = True
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    running: int = 0
    verified: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})
    lock: threading.Lock = field(default_factory=threading.Lock)
    crowded: threading.Event = field(default_factory=threading.Event)

    def tokens(self, prompt: str, count: int) -> list[str]:
        """The text of a prompt, in tokens."""
        pieces = [token(prompt, place) for place in range(count)]
        if prompt in self.apart and self.on and self.program and count > 2:
            pieces[2] = " OTHER"
        return pieces

    def fields(self, **true: Any) -> dict[str, Any]:
        """Fields of an answer, each as it is or as it is `said` to be."""
        return {name: self.said.get(name, value) for name, value in true.items()}

    def best(self, prompt: str, count: int) -> list[dict[str, float]]:
        """The two most probable tokens of every place."""
        places = [{word: -0.1, " OTHER": -5.0} for word in self.tokens(prompt, count)]
        if prompt in self.apart and count > 2:
            second = " third" if self.fault == "third token" else " OTHER"
            places[2] = {token(prompt, 2): -0.5, second: -0.5 - self.apart[prompt]}
        return places


@contextmanager
def serving(fake: Fake, port: int = 0) -> Iterator[Fake]:
    """Run one on a port, or a free one, until the block ends."""

    class Bound(Handler):
        state = fake

    server = Server(("127.0.0.1", port), Bound)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


class Server(ThreadingHTTPServer):
    """A server that says nothing of a client that has left, as the engines' own do."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: Fake

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def say(self, body: Any, status: int = 200) -> None:
        data = self.state.spoil(body.encode() if isinstance(body, str) else json.dumps(body).encode())
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        fake = self.state
        if self.path == "/v1/models":
            if fake.fault == "html":
                return self.say("<html>")
            if fake.fault == "redirect":
                return self.say("elsewhere", 307)
            if fake.fault == "a lot":
                return self.say(" " * (1 << 24))
            if fake.fault == "no models":
                return self.say({"data": []})
            return self.say(fake.fields(data=[fake.fields(id=MODEL, owned_by=fake.engine)]))
        if self.path == "/health" and fake.fault == "starting":
            return self.say("not yet", 503)
        if self.path == "/server_info" and fake.engine == "sglang":
            steps = {ran: len(lengths) for ran, lengths in fake.verified.items()}
            left = fake.fields(left=fake.fields(off=steps[False]))
            specc = fake.fields(program="specc_program_x", on=fake.on, served=steps[True]) | left
            return self.say(fake.fields(internal_states=[fake.fields(specc=specc) if fake.program else {}]))
        if self.path == "/metrics" and fake.engine == "vllm":
            return self.say({"metrics": "not metrics at all {"}.get(fake.fault) or self.metrics())
        return self.say({"detail": "Not Found"}, 404)

    def metrics(self) -> str:
        steps = [*self.state.verified[True], *self.state.verified[False]]
        if self.state.fault.startswith("counter"):
            return f"x:spec_decode_num_accepted_tokens_per_pos_total{self.state.fault.removeprefix('counter')}\n"
        label, lines = '{model_name="x",engine="0"', [f'vllm:spec_decode_num_drafts_total{{engine="0"}} {len(steps)}.0']
        for place in range(POSITIONS):
            count = sum(accepted > place for accepted in steps)
            lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{label},position="{place}"}} {count}.0')
        if self.state.program:
            lines.append(f'specc:decode_steps_total{{by="program",program="specc_program_y",reason=""}} {len(steps)}.0')
            lines.append('specc:program_active{program="specc_program_y",capture="none"} 1.0')
        return "\n".join(lines) + "\n"

    def do_POST(self) -> None:
        fake = self.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/set_internal_state":
            match validated(body["server_args"]):
                case None:
                    return self.say({"object": "error", "message": "Input should be a valid number"}, 400)
                case {"specc:on": 1} | {"specc:off": 1} as settings:
                    fake.on = "specc:on" in settings if fake.fault != "stuck" else fake.on
                    return self.say(fake.said.get("updated", [fake.fault != "refuses"]))
            return self.say([False])
        fake.asked.append(body | {"ran": fake.on and fake.program})
        if fake.fault == "status":
            return self.say({"object": "error", "message": "\x1b[2Jno\u202e"}, 400)
        chat = self.path == "/v1/chat/completions"
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        if not body.get("stream"):
            tokens, best = (part(prompt, body["max_tokens"]) for part in (fake.tokens, fake.best))
            return self.say(self.scored(tokens, best, chat))
        with fake.lock:
            fake.running += 1
            fake.most_at_once = max(fake.most_at_once, fake.running)
        if fake.running >= fake.crowd:
            fake.crowded.set()
        fake.crowded.wait(PATIENCE_S)
        try:
            whole = self.stream(prompt, body["max_tokens"], chat)
        except (BrokenPipeError, ConnectionResetError):
            whole, self.close_connection = False, True
        with fake.lock:
            fake.running -= 1
        if whole:
            self.chunk(b"" if fake.fault == "no end" else b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        return None

    def scored(self, tokens: Sequence[str], best: Sequence[Mapping[str, float]], chat: bool) -> Any:
        """An answer with log-probabilities, which is not streamed."""
        if self.state.fault == "no scores":
            return {"choices": [{"text": "".join(tokens)}]}
        fields = self.state.fields
        if not chat:
            return fields(choices=[fields(logprobs=fields(tokens=tokens, top_logprobs=best))])
        content = [
            fields(token=piece, top_logprobs=[fields(token=word, logprob=score) for word, score in scores.items()])
            for piece, scores in zip(tokens, best, strict=True)
        ]
        return fields(choices=[fields(logprobs=fields(content=content))])

    def stream(self, prompt: str, count: int, chat: bool) -> bool:
        """Answer up to the end of the stream; whether that is to come."""
        fake, fault = self.state, self.state.fault
        ran, rng = fake.on and fake.program, random.Random(prompt)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens, place, histogram = fake.tokens(prompt, count), 0, [0] * (POSITIONS + 1)
        while place < count or fault == "endless":
            accepted = 0 if place == 0 else rng.randrange(POSITIONS + 1)
            if place:
                histogram[accepted] += 1
                fake.verified[ran].append(accepted)
            text = "".join(tokens[place : place + accepted + 1]) or " more"
            place += accepted + 1
            with fake.lock:
                fake.now += fake.token_s[not ran]
            delta = fake.fields(delta=fake.fields(content=text)) if chat else fake.fields(text=text)
            self.record(fake.fields(choices=[delta]))
            if self.fails(fault):
                return False
        if fake.engine == "sglang":
            details = fake.fields(spec_correct_drafts_histogram=histogram)
            self.record({"choices": [], **fake.fields(sglext=fake.fields(spec_tokens_details=details))})
        if fault != "no usage":
            usage = fake.fields(prompt_tokens=len(prompt.split()), completion_tokens=count)
            self.record({"choices": [], **fake.fields(usage=usage)})
        return True

    def fails(self, fault: str) -> bool:
        """Do in the middle of an answer what goes wrong; whether it has ended."""
        if fault == "cut":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "silent":
            time.sleep(3)
        elif fault == "slow":
            time.sleep(0.2)
            return False
        elif fault == "bad json":
            self.chunk(b"data: {]\n\n")
        elif fault == "no record":
            self.chunk(b"data: [1]\n\n")
        elif fault == "error":
            self.record({"error": {"message": "\x1b[2Jout of memory"}})
        elif fault in DRIPPED:
            while True:  # until the client leaves
                self.chunk(DRIPPED[fault])
                time.sleep(0.02)
        elif fault == "long line":
            self.chunk(b"data: " + b"x" * (1 << 24) + b"\n\n")
        elif fault == "deep":
            self.chunk(b"data: " + b"[" * 100_000 + b"\n\n")
        else:
            return False
        self.close_connection = True
        return True

    def record(self, record: Any) -> None:
        self.chunk(b"data: " + self.state.spoil(json.dumps(record).encode()) + b"\n\n")

    def chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
