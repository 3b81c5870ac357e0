"""Figures of servers: what is counted, made up and summed up, against plain counting."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path

import pytest

from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.serving import questions
from specc.lab.measure.serving.client import TimedText
from specc.lab.measure.serving.endpoint import ServerCounts, counted, of_answers, samples_of
from specc.lab.measure.serving.figures import BESIDE, BatchFigures, Served, SideFigures, Texts, Turn
from specc.lab.measure.serving.table import tables

METRICS = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_drafts_total{engine="1"} 5.0
vllm:spec_decode_num_drafts_created{engine="1"} 1e9
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",position="0"} 1.0
specc:decode_steps_total{by="program",program="p",reason=""} 7.0
specc:decode_steps_total{by="vllm",program="p",reason="prefill"} 2.0
specc:decode_steps_total{by="vllm",program="p",reason="other"} 1.0
"""


def answer(tokens: int, first_s: float, last_s: float, accepted: tuple[int, ...] = ()) -> TimedText:
    return TimedText("x", tokens, 5, first_s, last_s, accepted)


def test_counters_of_metrics() -> None:
    counts = counted("", samples_of(METRICS))
    assert counts == ServerCounts(15, (9, 4), 7, 3)
    assert counts.accept_length == pytest.approx(1 + 13 / 15)
    assert counts.by_position == pytest.approx((9 / 15, 4 / 15))
    assert (
        counted("", []) == ServerCounts() and ServerCounts().accept_length is None and ServerCounts().by_position == ()
    )


def test_what_was_counted_between_two_times() -> None:
    assert ServerCounts(9, (5, 2, 1), 4, 3).since(ServerCounts(2, (1,), 1, 3)) == ServerCounts(7, (4, 2, 1), 3, 0)
    assert ServerCounts(9, (5,)).since(ServerCounts(2, (1, 0))) == ServerCounts(7, (4, 0), None, None)
    assert ServerCounts(1, (1,), 4, 0).plus(ServerCounts(2, (1, 2))) == ServerCounts(3, (2, 2), 4, 0)


def test_metrics_that_nobody_reads_cost_nothing() -> None:
    """The parser takes time by the square of a label's quotes, and by every line."""
    quotes = 'vllm:other{a="' + '\\"' * (1 << 20) + '"} 1.0\n'
    assert counted("", samples_of(quotes + METRICS)) == ServerCounts(15, (9, 4), 7, 3)
    assert samples_of(quotes.replace("other", "spec_decode_num_drafts_total") + METRICS) == []


def test_counters_that_become_less() -> None:
    before = ServerCounts(9, (5, 2), 4, 3)
    for after in (ServerCounts(8, (5, 2), 4, 3), ServerCounts(9, (5, 1), 4, 3), ServerCounts(9, (5, 2), 3, 3)):
        assert not after.since(before).is_possible
    assert before.since(before).is_possible and ServerCounts().is_possible
    assert ServerCounts(19, (15, 2), 4, 3).since(before).is_possible
    assert not ServerCounts(19, (16, 2), 4, 3).since(before).is_possible, "more than were verified"


def test_what_answers_say_of_their_verifications() -> None:
    """Against a list of all verifications, each with how many drafts it accepted."""
    rng = random.Random(3)
    verified = [[rng.randrange(5) for _ in range(rng.randrange(9))] for _ in range(20)]
    answers = [
        answer(9, 0, 1, tuple(lengths.count(k) for k in range(1 + max(lengths, default=0)))) for lengths in verified
    ]
    every = [accepted for each in verified for accepted in each]
    counts = of_answers(answers)
    assert counts.verifications == len(every)
    assert counts.accept_length == pytest.approx(1 + statistics.mean(every))
    assert counts.by_position == pytest.approx([sum(accepted > k for accepted in every) / len(every) for k in range(4)])
    assert of_answers([answer(2, 0, 1)]) == ServerCounts()


def test_figures_of_a_side() -> None:
    first = (answer(11, 0.5, 1.5), answer(1, 0.1, 0.1), answer(3, 0.2, 0.8))
    second = (answer(5, 0.4, 0.8),)
    turns = [Turn(2, 3.0, first, ServerCounts(10, (5, 3), 6, 2)), Turn(2, 1.0, second, ServerCounts(2, (1, 0), 0, 0))]
    figures = SideFigures.of(turns)
    assert figures.tokens == 20 and figures.tokens_per_s == pytest.approx((15 / 3 + 5) / 2)
    assert figures.per_token_ms == pytest.approx(100) and figures.first_token_ms == pytest.approx(300)
    assert figures.per_token_ms_p90 == pytest.approx(260)
    assert figures.accept_length == pytest.approx(1 + 9 / 12) and figures.by_position == pytest.approx((0.5, 0.25))
    assert figures.program_steps == pytest.approx(0.75)


def test_a_side_that_tells_little() -> None:
    """No request has more than one token, and the server counts nothing."""
    figures = SideFigures.of([Turn(1, 2.0, (answer(1, 0.5, 0.5),), ServerCounts())])
    assert (figures.per_token_ms, figures.per_token_ms_p90, figures.accept_length, figures.program_steps) == (None,) * 4
    batch = BatchFigures(1, 1, figures, figures, Ratio(1, 1, 1))
    addresses, engines = ("http://a", "http://b"), ("", "")
    served = Served(None, "m", BESIDE, addresses, engines, "\x1b[2J", 3, 3, Texts(2, 1), (batch,))
    texts = [str(table) for table in tables(served)]
    assert "the program (the server does not name it): m, http://a against http://b" in texts[0]
    assert "\x1b" not in "".join(texts) and "1 of 2 are equal, 1 part at a near tie" in texts[2]


def test_made_up_prompts() -> None:
    prompts, again, reseeded = (questions.made_up(4000, seed, 50) for seed in (1, 1, 2))
    assert prompts == again != reseeded and prompts.made_up and "seed 1" in prompts.about
    words = [len(prompt.text.split()) for prompt in prompts.listed]
    assert min(words) >= 4 and max(words) <= 800
    mean, deviation = questions.PROMPT_WORDS
    assert statistics.median(map(math.log, words)) == pytest.approx(mean, abs=0.1)
    low, high = (statistics.quantiles(map(math.log, words), n=100)[at] for at in (49 - 34, 49 + 34))
    assert (high - low) / 2 == pytest.approx(deviation, rel=0.1)
    assert all(4 <= prompt.max_tokens <= 50 for prompt in prompts.listed)
    assert sum(prompt.max_tokens == 50 for prompt in prompts.listed) > 1000


class _File:
    """A file of a package, as importlib.metadata has it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return self.path.as_posix()

    def locate(self) -> Path:
        return self.path


def test_questions_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mt_bench" / "question.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"turns": [f"question {n}\u2028", "more"]}) + "\n" for n in range(80)))
    monkeypatch.setattr(questions.importlib.metadata, "files", lambda name: [_File(tmp_path / "x.py"), _File(path)])
    prompts = questions.mt_bench(8, 20)
    assert [prompt.text for prompt in prompts.listed] == [f"question {n}\u2028" for n in range(0, 80, 10)]
    assert not prompts.made_up and "8 first turns of MT-Bench" in prompts.about
    assert len(questions.mt_bench(500, 20).listed) == 80


def test_a_file_of_prompts(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a\\nb"}\n\n{"turns": ["c", "d"]}\n{"prompt": "e"}\n')
    prompts = questions.of_file(path, 2, 7)
    assert [(prompt.text, prompt.max_tokens) for prompt in prompts.listed] == [("a\nb", 7), ("c", 7)]
    assert prompts.about == "the first 2 of p.jsonl"
    path.write_text("\n")
    with pytest.raises(ValueError, match="has no prompt"):
        questions.of_file(path, 2, 7)
