"""A client of a server's OpenAI interface: answers as they stream, with the times at which their tokens came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.lab.measure.serving.answers import SHOWN, Field, broken_answer
from specc.lab.measure.serving.questions import Prompt

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 10
"""Seconds in which a server must take a connection."""
LONGEST = 1 << 22
"""Bytes of the longest line of a stream, and of an answer that is none."""
LONGEST_TOKEN = 1 << 13
"""Bytes that a stream may take for each token beside."""
TOKENS_IN_SILENCE = 16
"""Tokens for which a whole answer may take as long as a server may say nothing."""
MOST_POSITIONS = 1024
"""More drafts than any program has in a row."""


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
    usage: Field | None = None
    accepted: tuple[int, ...] = ()

    def take(self, piece: str) -> None:
        """Note a piece of the text, and when it came."""
        if piece:
            self.last_s = time.perf_counter() - self.begin
            self.first_s = self.last_s if self.first_s is None else self.first_s
            self.pieces.append(piece)


class _Patience:
    """How long one answer is waited for: so many seconds for each next piece of its text, and so many for the whole."""

    def __init__(self, silence_s: float, tokens: int) -> None:
        """Begin to wait for an answer of at most so many tokens."""
        self._silence_s, self._whole_s = silence_s, silence_s * (2 + tokens / TOKENS_IN_SILENCE)
        self._end = asyncio.get_running_loop().time() + self._whole_s
        self.limit = asyncio.timeout(silence_s)

    def go_on(self) -> None:
        """Wait on, since a piece of the text has come."""
        self.limit.reschedule(min(asyncio.get_running_loop().time() + self._silence_s, self._end))

    def __str__(self) -> str:
        """What has run out."""
        if asyncio.get_running_loop().time() < self._end:
            return f"was silent for too long: {self._silence_s:g} s without any text"
        return f"takes too long for one answer: it has not ended after {self._whole_s:g} s"


class Client:
    """Asks one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, chat: bool, silence_s: float) -> None:
        """Take an open session; with ``chat`` a prompt is the message of a user, otherwise the text itself."""
        self.url, self.model, self._session, self._chat = url.rstrip("/"), "", session, chat
        self._silence_s = silence_s

    async def ask(self, prompt: Prompt, *, whole: bool) -> TimedText:
        """A greedy answer as it streams; with ``whole`` a text goes on where the model would end it.

        Raises DiagnosticError where the server does not answer so.
        """
        body = self._body(prompt) | {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_spec_tokens_details": True,  # of some engines; others do not look at it
        }
        heard, patience = _Heard(time.perf_counter()), _Patience(self._silence_s, prompt.max_tokens)
        body |= {"ignore_eos": True} if whole else {}
        done, room = False, LONGEST + LONGEST_TOKEN * prompt.max_tokens
        async with self._asked("POST", self._path, patience, json=body) as response:
            async for line in response.content:
                if (room := room - len(line)) < 0:
                    self.broken(f"an answer of {prompt.max_tokens} tokens takes more bytes than so many can")
                data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    done = True
                    break
                if data and self._take(heard, data, prompt.max_tokens):
                    patience.go_on()
                if len(heard.pieces) > prompt.max_tokens:
                    self.broken(f"an answer has more than the {prompt.max_tokens} tokens that it was asked for")
        return self._answer(heard, done, prompt.max_tokens)

    async def best(self, prompt: Prompt, *, whole: bool) -> list[tuple[str, dict[str, float]]]:
        """A greedy answer token by token, each with the log-probabilities of the two most probable tokens.

        Nothing of a server that does not tell them.
        """
        asked = {"logprobs": True, "top_logprobs": 2} if self._chat else {"logprobs": 2}
        body = self._body(prompt) | asked | ({"ignore_eos": True} if whole else {})
        choices = (await self.get(self._path, body, prompt.max_tokens)).at("choices").items()
        logprobs = choices[0].get("logprobs") if choices else None
        if logprobs is None:
            return []
        if self._chat:
            of_chat = logprobs.at("content").items(prompt.max_tokens)
            return [
                (entry.at("token").text(), dict(map(_scored, entry.at("top_logprobs").items()))) for entry in of_chat
            ]
        tokens, best = (logprobs.at(name).items(prompt.max_tokens) for name in ("tokens", "top_logprobs"))
        if len(tokens) != len(best):
            self.broken(f"{logprobs.name} are of {len(tokens)} tokens, and best ones of {len(best)}")
        return [
            (token.text(), {text: score.log_probability() for text, score in place.entries().items()})
            for token, place in zip(tokens, best, strict=True)
        ]

    async def get(self, path: str, body: Any = None, tokens: int = 0) -> Field:
        """JSON of a path: of a POST with a body, of a GET without. Raises DiagnosticError where there is none."""
        return Field.of_json(self.url, f"the answer of {path}", await self.text(path, body, tokens))

    async def text(self, path: str, body: Any = None, tokens: int = 0) -> str:
        """The text of a path, as `get`; the server writes at most so many tokens for it."""
        patience = _Patience(self._silence_s, tokens)
        async with self._asked("GET" if body is None else "POST", path, patience, json=body) as response:
            return await self._body_of(response)

    def broken(self, what: str) -> NoReturn:
        """Raise that the server does not keep to the interface."""
        raise broken_answer(self.url, what)

    @property
    def _path(self) -> str:
        return "/v1/chat/completions" if self._chat else "/v1/completions"

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        question = {"messages": [{"role": "user", "content": prompt.text}]} if self._chat else {"prompt": prompt.text}
        return {"model": self.model, **question, "max_tokens": prompt.max_tokens, "temperature": 0}

    def _take(self, heard: _Heard, data: bytes, most_tokens: int) -> bool:
        """Hear one record of a stream of at most so many tokens; whether it has any text."""
        record = Field.of_json(self.url, "a record of its stream", data)
        kind = record.get("object")
        if record.get("error") is not None or (kind is not None and kind.text() == "error"):
            self.broken(f"it ends an answer with an error: {data[:SHOWN].decode(errors='replace')}")
        before, choices = len(heard.pieces), record.get("choices")
        for choice in [] if choices is None else choices.items():
            said = choice.at("delta").get("content") if self._chat else choice.at("text")
            heard.take("" if said is None else said.text())
        heard.usage = record.get("usage") or heard.usage
        details = (extra := record.get("sglext")) and extra.get("spec_tokens_details")
        if details and (by_count := details.get("spec_correct_drafts_histogram")):
            heard.accepted = tuple(count.count(most_tokens) for count in by_count.items(MOST_POSITIONS))
        return len(heard.pieces) > before

    def _answer(self, heard: _Heard, done: bool, most_tokens: int) -> TimedText:
        """What was heard, once the stream has ended."""
        if not done:
            self.broken(f"an answer ends before its end, after {len(heard.pieces)} pieces of text")
        if heard.first_s is None:
            self.broken("an answer has no text")
        if heard.usage is None:
            self.broken("an answer does not say how many tokens it has (stream_options.include_usage)")
        tokens = heard.usage.at("completion_tokens").count(most_tokens, 1)
        prompt_tokens = heard.usage.at("prompt_tokens").count()
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
    async def _asked(
        self, method: str, path: str, patience: _Patience, **given: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response that is none of an error; what fails on the way to it, or in it, is a DiagnosticError."""
        import aiohttp
        from aiohttp.http import HttpProcessingError

        asked = self._session.request(method, self.url + path, allow_redirects=False, **given)
        try:
            async with patience.limit, asked as response:
                if response.status >= 300:
                    content = (await self._body_of(response))[:SHOWN]
                    message = f"{self.url}{path} answers with status {response.status}: {content!r}"
                    raise DiagnosticError(Diagnostic("serve/refused", message, hint=_HINTS.get(response.status)))
                yield response
        except TimeoutError as error:
            message = f"{self.url} {patience}"
            hint = "--timeout says how many seconds it may be silent; a server that is still starting answers later"
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

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=LONGEST) as session:
        yield [Client(session, url, chat=chat, silence_s=silence_s) for url in urls]


def _scored(best: Field) -> tuple[str, float]:
    """One of the most probable tokens of a place, and its log-probability."""
    return best.at("token").text(), best.at("logprob").log_probability()


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
