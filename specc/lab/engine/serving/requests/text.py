"""Tokens to text as they come, with stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns a growing row of tokens into a growing text.

    Decodes a short tail twice, with and without the new tokens, because what a token adds depends on its
    neighbours. A tail that ends within a character is held back until the character is whole.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        """`tokenizer` is one of transformers'; the text starts after the tokens of `context`."""
        self._tokenizer = tokenizer
        self._ids = list(context)[-8:]
        self._shown = len(self._ids)

    def copy(self) -> Detokenizer:
        """Another one that continues the same text."""
        other = copy(self)
        other._ids = list(self._ids)
        return other

    def push(self, tokens: Sequence[int]) -> str:
        """Append tokens; returns the text that became certain, however many of them came at once."""
        self._ids += tokens
        added = self._pending()
        if added and not added.endswith(REPLACEMENT):
            self._ids = self._ids[self._shown :]
            self._shown = len(self._ids)
            return added
        if len(tokens) < 2:
            return ""
        del self._ids[-len(tokens) :]
        return "".join(self.push([token]) for token in tokens)

    def close(self) -> str:
        """Return what was held back, the way it is."""
        added = self._pending()
        self._shown = len(self._ids)
        return added

    def _pending(self) -> str:
        before = self._decode(self._ids[: self._shown])
        return self._decode(self._ids)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


class StopText:
    """The text of a request, cut before the first stop string that appears in it.

    What `push` and `close` return never contains a part of a stop string: text that may be the beginning of
    one is held back until it is certain.

    Attributes:
        tokens: how many were pushed.
        stopped: whether a stop string has appeared.

    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()) -> None:
        """Watch for the strings in `stop`."""
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._text = ""
        self._sent = 0
        self.tokens = 0
        self.stopped = False

    def copy(self) -> StopText:
        """Another one that continues the same text."""
        other = copy(self)
        other._detokenizer = self._detokenizer.copy()
        return other

    @property
    def text(self) -> str:
        """All text so far, without the stop string."""
        return self._text

    def push(self, tokens: Sequence[int]) -> str:
        """Append tokens, one at a time if there are stop strings; returns the new text that is certain to stay."""
        self.tokens += len(tokens)
        self._append(self._detokenizer.push(tokens))
        return self._take(len(self._text) if self.stopped else len(self._text) - self._held())

    def close(self) -> str:
        """End the text; returns the rest of it."""
        if not self.stopped:
            self._append(self._detokenizer.close())
        return self._take(len(self._text))

    def _append(self, added: str) -> None:
        """Add text and cut it before the first stop string."""
        longest = max(map(len, self._stop), default=1)
        search_from = max(0, len(self._text) - longest + 1)
        self._text += added
        hits = [self._text.find(stop, search_from) for stop in self._stop] if added else []
        hits = [hit for hit in hits if hit >= 0]
        if hits:
            self._text = self._text[: min(hits)]
            self.stopped = True

    def _held(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if self._text.endswith(stop[:n])),
            default=0,
        )

    def _take(self, end: int) -> str:
        """Return what lies between the text already handed out and `end`."""
        added = self._text[self._sent : end]
        self._sent = max(self._sent, end)
        return added
