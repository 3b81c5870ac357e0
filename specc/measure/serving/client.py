"""A client of a server's OpenAI interface: answers as they stream, with the times at which their tokens came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from specc.measure.serving.questions import Prompt
from specc.support.diagnostics import Diagnostic, DiagnosticError

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 10
"""Seconds in which a server must take a connection."""
LONGEST = 1 << 22
"""Bytes of the longest line of a stream, and of an answer that is none."""
SHOWN = 300
"""Characters that are shown of what a server says."""


@dataclass(frozen=True)
class TimedText:
    """A text, and when it came.

    Attributes:
        text: what the server wrote.
        tokens: how many tokens that is, as the server counts them.
        prompt_tokens: those of the prompt.
        first_s: seconds from the question to the first text.
        last_s: to the last text.
        accepted: by number of accepted drafts, how many verifications of this text had it; empty where a server
            does not say.

    """

    text: str
    tokens: int
    prompt_tokens: int
    first_s: float
    last_s: float
    accepted: tuple[int, ...] = ()

    @property
    def per_token_s(self) -> float | None:
        """Seconds a token behind the first one; None for a text of one token."""
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass
class _Heard:
    """What has come of an answer so far."""

    begin: float
    pieces: list[str] = field(default_factory=list)
    first_s: float | None = None
    last_s: float = 0.0
    usage: Mapping[str, Any] | None = None
    accepted: tuple[int, ...] = ()

    def take(self, piece: str) -> None:
        """Note a piece of the text, and when it came."""
        if piece:
            self.last_s = time.perf_counter() - self.begin
            self.first_s = self.last_s if self.first_s is None else self.first_s
            self.pieces.append(piece)


class Client:
    """Asks one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, chat: bool) -> None:
        """Take an open session; with ``chat`` a prompt is the message of a user, otherwise the text itself."""
        self.url, self.model, self._session, self._chat = url.rstrip("/"), "", session, chat

    async def ask(self, prompt: Prompt, *, whole: bool) -> TimedText:
        """A greedy answer as it streams; with ``whole`` a text goes on where the model would end it.

        Raises DiagnosticError where the server does not answer so.
        """
        body = self._body(prompt) | {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_spec_tokens_details": True,  # of some engines; others do not look at it
        }
        heard, done = _Heard(time.perf_counter()), False
        async with self._asked("POST", self._path, json=body | ({"ignore_eos": True} if whole else {})) as response:
            async for line in response.content:
                data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    done = True
                    break
                if data:
                    self._take(heard, data)
                if len(heard.pieces) > prompt.max_tokens:
                    self.broken(f"an answer has more than the {prompt.max_tokens} tokens that it was asked for")
        return self._answer(heard, done)

    async def best(self, prompt: Prompt, *, whole: bool) -> list[tuple[str, dict[str, float]]]:
        """A greedy answer token by token, each with the log-probabilities of the two most probable tokens."""
        asked = {"logprobs": True, "top_logprobs": 2} if self._chat else {"logprobs": 2}
        body = self._body(prompt) | asked | ({"ignore_eos": True} if whole else {})
        answer = await self.get(self._path, body)
        try:
            logprobs = answer["choices"][0]["logprobs"]
            if self._chat:
                return [(entry["token"], {b["token"]: b["logprob"] for b in entry["top_logprobs"]})
                        for entry in logprobs["content"]]  # fmt: skip
            return list(zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))
        except (KeyError, IndexError, TypeError, ValueError):
            return []  # a server without log-probabilities

    async def get(self, path: str, body: Any = None) -> Any:
        """JSON of a path: of a POST with a body, of a GET without. Raises DiagnosticError where there is none."""
        text = await self.text(path, body)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.broken(f"{path} has answered with no JSON: {text[:SHOWN]!r}")

    async def text(self, path: str, body: Any = None) -> str:
        """The text of a path, as `get`."""
        async with self._asked("GET" if body is None else "POST", path, json=body) as response:
            return await self._body_of(response)

    def broken(self, what: str) -> NoReturn:
        """Raise that the server does not keep to the interface."""
        hint = "its log may say more; what is asked is the OpenAI interface, streamed"
        raise DiagnosticError(Diagnostic("serve/broken-answer", f"{self.url}: {what}", hint=hint))

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if self._chat else "/v1/completions"

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        question = {"messages": [{"role": "user", "content": prompt.text}]} if self._chat else {"prompt": prompt.text}
        return {"model": self.model, **question, "max_tokens": prompt.max_tokens, "temperature": 0}

    def _take(self, heard: _Heard, data: bytes) -> None:
        """One record of a stream."""
        try:
            record = json.loads(data)
            if "error" in record or record.get("object") == "error":
                self.broken(f"it ends an answer with an error: {data[:SHOWN].decode(errors='replace')}")
            for choice in record.get("choices") or ():
                heard.take((choice["delta"].get("content") if self._chat else choice["text"]) or "")
            heard.usage = record.get("usage") or heard.usage
            details = (record.get("sglext") or {}).get("spec_tokens_details") or {}
            heard.accepted = tuple(map(int, details.get("spec_correct_drafts_histogram", heard.accepted)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.broken(f"a record of its stream is none: {data[:SHOWN].decode(errors='replace')!r}")

    def _answer(self, heard: _Heard, done: bool) -> TimedText:
        """What was heard, once the stream has ended."""
        if not done:
            self.broken(f"an answer ends before its end, after {len(heard.pieces)} pieces of text")
        if heard.first_s is None:
            self.broken("an answer has no text")
        try:
            usage = heard.usage or {}
            tokens, prompt_tokens = int(usage["completion_tokens"]), int(usage["prompt_tokens"])
        except (KeyError, TypeError, ValueError):
            self.broken("an answer does not say how many tokens it has (stream_options.include_usage)")
        if tokens < 1:
            self.broken(f"an answer with text says that it has {tokens} tokens")
        return TimedText("".join(heard.pieces), tokens, prompt_tokens, heard.first_s, heard.last_s, heard.accepted)

    async def _body_of(self, response: aiohttp.ClientResponse) -> str:
        """All that a server says, if it is no more than `LONGEST` bytes."""
        content = bytearray()
        async for piece in response.content.iter_any():
            content += piece
            if len(content) > LONGEST:
                self.broken(f"{response.url.path} answers with more than {LONGEST} bytes")
        return content.decode(errors="replace")

    @asynccontextmanager
    async def _asked(self, method: str, path: str, **given: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response that is none of an error; what fails on the way to it, or in it, is a DiagnosticError."""
        import aiohttp
        from aiohttp.http import HttpProcessingError

        try:
            async with self._session.request(method, self.url + path, allow_redirects=False, **given) as response:
                if response.status >= 300:
                    content = (await self._body_of(response))[:SHOWN]
                    message = f"{self.url}{path} answers with status {response.status}: {content!r}"
                    raise DiagnosticError(Diagnostic("serve/refused", message, hint=_HINTS.get(response.status)))
                yield response
        except TimeoutError as error:
            message = f"{self.url} was silent for too long"
            hint = "--timeout says how many seconds it may be; a server that is still starting answers later"
            raise DiagnosticError(Diagnostic("serve/unreachable", message, hint=hint)) from error
        except aiohttp.ClientConnectorError as error:
            message = f"{self.url} takes no connection: {error}"
            hint = "start the server first; --url is the address that its log names, such as http://127.0.0.1:30000"
            raise DiagnosticError(Diagnostic("serve/unreachable", message, hint=hint)) from error
        except (aiohttp.ClientError, HttpProcessingError, ValueError, OSError) as error:
            self.broken(f"the connection has ended in the middle of an answer: {type(error).__name__}: {error}")


_HINTS = {
    401: "servers that want a key are not served yet",
    403: "servers that want a key are not served yet",
    404: "--url is the address of the server alone, without /v1",
}
"""Hints by status."""


@asynccontextmanager
async def connected(urls: Sequence[str], *, chat: bool, silence_s: float) -> AsyncIterator[list[Client]]:
    """A client for each address; ``silence_s`` is how long a server may say nothing."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=LONGEST) as session:
        yield [Client(session, url, chat=chat) for url in urls]


async def all_of(client: Client, prompts: Sequence[Prompt], clients: int, *, whole: bool) -> list[TimedText]:
    """Answers to all prompts, in their order, asked by so many clients at a time; the first failure ends them all."""
    waiting, answers = list(enumerate(prompts))[::-1], dict[int, TimedText]()

    async def one() -> None:
        while waiting:
            number, prompt = waiting.pop()
            answers[number] = await client.ask(prompt, whole=whole)

    tasks = [asyncio.ensure_future(one()) for _ in range(min(clients, len(prompts)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [answers[number] for number in range(len(prompts))]
