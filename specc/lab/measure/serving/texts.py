"""Greedy texts of two sides: equal, or parted where the scores of two tokens are nearly the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.lab.measure.serving.client import Client, TimedText
from specc.lab.measure.serving.figures import Texts
from specc.lab.measure.serving.questions import Prompt, Prompts

NEAR = 0.25
"""Largest difference of the log-probabilities of a near tie: two of bfloat16's steps between 16 and 32, where the
logits of models are. A forward of another batch, or in another order, moves scores by as much."""
ROOM = 8
"""Tokens beyond the place where two texts part that are asked for once more."""


async def compare(client: Client, prompts: Prompts, answers: Sequence[TimedText], others: Sequence[TimedText]) -> Texts:
    """Compare the texts of both sides; where two part, ``client``, on the other side, is asked for its scores there.

    Raises DiagnosticError ``serve/texts-differ`` where any two part at what is no near tie.
    """
    apart, ties = list[str](), 0
    for number, (prompt, answer, other) in enumerate(zip(prompts.listed, answers, others, strict=True), 1):
        if answer.text == other.text:
            continue
        gap = await _gap(client, prompt, answer.text, other.text, whole=prompts.made_up)
        if gap is not None and gap <= NEAR:
            ties += 1
            continue
        place = _parting(answer.text, other.text)
        score = "no scores of the two tokens are known" if gap is None else f"the two tokens are {gap:.3f} apart"
        heard, wanted = (text[place : place + 20] for text in (answer.text, other.text))
        apart.append(f"prompt {number}, character {place}: {heard!r} instead of {wanted!r}; {score}")
    if apart:
        message = f"{len(apart)} of {len(answers)} texts differ, so no times are compared; {'; '.join(apart[:3])}"
        hint = "both servers need the same model, element type and template; if they have, report it with both commands"
        raise DiagnosticError(Diagnostic("serve/texts-differ", message, hint=hint))
    return Texts(len(answers), ties)


async def _gap(client: Client, prompt: Prompt, answer: str, other: str, *, whole: bool) -> float | None:
    """How far apart the log-probabilities of the two tokens are at which two texts part; None if these are others.

    The server's answer is made once more, token by token, up to there.
    """
    place = _parting(answer, other)
    asked = replace(prompt, max_tokens=min(prompt.max_tokens, place + ROOM))
    begin = 0
    for token, best in await client.best(asked, whole=whole):
        text = other[begin : begin + len(token)]
        if begin + len(token) > place or token != text:
            if begin > place or len(best) < 2:
                return None
            likely = sorted(best.items(), key=lambda item: -item[1])[:2]
            known = all(any(text.startswith(word, begin) for word, _ in likely) for text in (answer, other))
            return likely[0][1] - likely[1][1] if known else None
        begin += len(token)
    return None


def _parting(text: str, other: str) -> int:
    """The first character at which two texts differ, or the end of the shorter one."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(text), len(other)))
