"""What `specc run` prints: texts as they finish, and on stderr what is said of them; or one JSON record."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from specc.cli.reporting import Format
from specc.compiler.support.render import printable, to_json

if TYPE_CHECKING:
    from specc.lab.engine.engine import Engine
    from specc.lab.engine.reference import Verdict
    from specc.lab.engine.serving.requests.request import Completion, TokenEvent


class Printer:
    """Prints completions as they finish, or one of them token by token; JSON only at the end.

    Texts go to ``console``; verdicts, log-probabilities and counts to ``notes``.
    """

    def __init__(
        self, console: Console, notes: Console, texts: Sequence[str], format: Format, max_new_tokens: int, *,
        stream: bool, logprobs: int | None = None,
    ) -> None:  # fmt: skip
        """logprobs: how many best tokens to show beside every emitted one; None for none, and no log-probability."""
        self.console, self.notes, self.texts = console, notes, texts
        self.max_new_tokens, self.logprobs = max_new_tokens, logprobs
        self.is_text = format is Format.text
        self.stream = stream and self.is_text
        self._begun = False

    def token(self, event: TokenEvent) -> None:
        """Show what a token adds, when streaming."""
        if not self.stream:
            return
        if not self._begun:
            self._head(0)
        self._begun = True
        self.console.out(self._safe(event.text), end="" if event.finish_reason is None else "\n", highlight=False)

    def completion(self, completion: Completion) -> None:
        """Show a finished completion, unless it was streamed."""
        if self.is_text and not self.stream:
            self._head(completion.request_id)
            self.console.out(self._safe(completion.text or ""), highlight=False)

    def finish(self, completions: Sequence[Completion], verdicts: Sequence[Verdict], engine: Engine) -> None:
        """Show the verdicts and the table of counts, or everything as one JSON record."""
        if not self.is_text:
            record = _record(self.texts, completions, verdicts, engine, self.logprobs)
            typer.echo(json.dumps(record, indent=2))
            return
        self.console.file.flush()  # both streams may end in one place
        context = engine.scheduler.max_context
        for completion, verdict in zip_longest(completions, verdicts):
            label = f"[{completion.request_id}] " if len(completions) > 1 else ""
            if self.logprobs is not None:
                self.notes.print(self._scores(completion, engine, self.logprobs))
            if completion.finish_reason == "length" and len(completion.token_ids) < self.max_new_tokens:
                self.notes.print(f"{label}ended by the context of {context} tokens, see --max-context")
            if completion.error is not None:
                self.notes.print(f"{label}ended by an error: {completion.error}", style="red")
            if verdict is not None:
                style = "green" if verdict.identical else "yellow" if verdict.right else "red"
                self.notes.print(f"{label}identical to generate: {_said(verdict, engine)}", style=style)
        stats, table = engine.stats, Table(show_edge=False)
        for name in ("prompts", "tokens", "steps", "mean accepted length", "tokens/s"):
            table.add_column(name, justify="right")
        counts = (str(stats.requests), str(stats.tokens), str(stats.steps))
        table.add_row(*counts, f"{stats.mean_accept_len:.2f}", f"{stats.tokens_per_second:.1f}")
        self.notes.print(table)

    def _scores(self, completion: Completion, engine: Engine, most: int) -> Table:
        """Return a row for every emitted token."""
        table = Table("token", "log-probability", *(["most probable"] if most else []), show_edge=False)

        def text(token: int) -> str:
            return printable(repr(engine.tokenizer.decode([token])))

        for token, score in zip(completion.token_ids, completion.scores, strict=True):
            best = [f"{text(other)} {logprob:.4f}" for other, logprob in score.best[:most]]
            table.add_row(text(token), f"{score.logprob:.4f}", *(["  ".join(best)] if most else []))
        return table

    def _safe(self, text: str) -> str:
        """Return text that cannot steer a terminal; unchanged where the output is none."""
        if not self.console.is_terminal:
            return text
        return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))

    def _head(self, index: int) -> None:
        label = f"[{index}] " if len(self.texts) > 1 else ""
        self.console.print(f"{label}{self._safe(self.texts[index])}", style="bold", end="" if self.stream else "\n")


def _record(
    texts: Sequence[str], completions: Sequence[Completion], verdicts: Sequence[Verdict], engine: Engine,
    logprobs: int | None,
) -> dict[str, object]:  # fmt: skip
    """Return everything as one JSON-ready record."""
    records = [{"prompt": text, **_described(item, logprobs)} for text, item in zip(texts, completions, strict=True)]
    for record, verdict in zip(records, verdicts, strict=False):
        record["check"] = asdict(verdict)
    stats, warnings = engine.stats.as_dict(), to_json(engine.warnings, {})
    return {"completions": records, "stats": stats, "warnings": warnings}


def _described(completion: Completion, most: int | None) -> dict[str, object]:
    """Return a completion as a record, with log-probabilities and so many best tokens unless None."""
    record = asdict(completion)
    scores = record.pop("scores")
    if most is not None:
        named = [{"token": token, **score} for token, score in zip(completion.token_ids, scores, strict=True)]
        record["logprobs"] = [
            entry | {"logprob": _finite(entry["logprob"]), "best": _best(entry["best"][:most])} for entry in named
        ]
    return record


def _best(best: Sequence[tuple[int, float]]) -> list[dict[str, object]]:
    """Return the best tokens as records."""
    return [{"token": token, "logprob": _finite(logprob)} for token, logprob in best]


def _finite(number: float) -> float | None:
    """Return a number; None for an infinity, which JSON does not have."""
    return number if math.isfinite(number) else None


def _said(verdict: Verdict, engine: Engine) -> str:
    """Return what is printed of a verdict under its completion."""
    if verdict.identical:
        return "yes"
    ties = "; ".join(
        f"new token {tie.position} is {tie.found} (scored {tie.found_score:.9g}) instead of {tie.expected} "
        f"({tie.expected_score:.9g})"
        for tie in verdict.ties
    )
    near = f"near-ties of the target's scores in {engine.target.facts.dtype}: {ties}"
    if verdict.right:
        return f"yes, up to {near}"
    first = f"{_token(verdict.found)} instead of {_token(verdict.expected)}"
    return f"no, first at new token {verdict.position}: {first}" + (f", after {near}" if ties else "")


def _token(token: int | None) -> str:
    """Return a token as shown to people."""
    return "the end" if token is None else str(token)
