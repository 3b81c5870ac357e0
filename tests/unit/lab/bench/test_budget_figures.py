"""bench/sglang/budgets.py: tokens that are computed of requests that are unlike, and what is said of measured times."""

import json
import math
import random
from statistics import NormalDist, mean

import budgets
import pytest
from compare import Points, Session
from variants import BUDGETED

RATES = (0.7, 0.6, 0.5)


def brute(rates, spread, drafts, rows, requests, seed):
    """Tokens of a request of one batch, taking the most probable drafts one after the other."""
    draw = random.Random(seed)
    apart = [draw.gauss(0, 1) for _ in range(requests)]
    chances = budgets.survivals(rates, drafts, spread, apart).tolist()
    taken = [0] * requests
    for _ in range((rows - 1) * requests):
        open_ = [row for row in range(requests) if taken[row] < drafts]
        best = max(open_, key=lambda row: chances[row][taken[row]])
        taken[best] += 1
    return 1 + sum(sum(chance[:count]) for chance, count in zip(chances, taken, strict=True)) / requests


@pytest.mark.parametrize("spread", [0.0, 0.7, 1.5])
def test_requests_differ_around_what_is_published(spread):
    grid = [NormalDist().inv_cdf((number + 0.5) / 4001) for number in range(4001)]
    means = budgets.survivals(RATES, 5, spread, grid).mean(0).tolist()
    published = [math.prod(RATES[: place + 1]) * RATES[-1] ** max(0, place - 2) for place in range(5)]
    assert means == pytest.approx(published, rel=5e-3)


@pytest.mark.parametrize(("drafts", "rows"), [(5, 2), (5, 3), (5, 6), (1, 2), (0, 1)])
def test_rows_go_to_the_most_probable_drafts(drafts, rows):
    """As taking them one by one; alike requests, and chains that are read whole, have what is published."""
    tokens = budgets.expected(RATES, 1.0, drafts, rows, 8)
    assert tokens == pytest.approx(mean(brute(RATES, 1.0, drafts, rows, 8, seed) for seed in range(300)), rel=0.03)
    places = range(1, min(drafts, rows - 1) + 1)
    alike = sum(math.prod(RATES[:place]) * RATES[-1] ** max(0, place - 3) for place in places)
    assert budgets.expected(RATES, 0.0, drafts, rows, 8) == pytest.approx(1 + alike)
    if rows == drafts + 1:
        assert tokens == pytest.approx(1 + alike, rel=0.02)


@pytest.mark.parametrize(("drafts", "rows"), [(5, 2), (5, 3), (5, 6), (1, 2), (0, 1)])
def test_no_choice_of_rows_has_more_tokens_than_one_that_knows_the_drafts(drafts, rows):
    """Rows of batches whose drafts are drawn go to those that are right, one after the other."""
    source, batches, requests = random.Random(0), 200, 64
    total = 0
    for _ in range(batches):
        right = 0
        for _ in range(requests):
            place = 0
            while place < drafts and source.random() < RATES[min(place, len(RATES) - 1)]:
                place += 1
            right += place
        total += min(right, (rows - 1) * requests)
    most = budgets.expected(RATES, math.inf, drafts, rows, requests)
    assert 1 + total / (batches * requests) == pytest.approx(most, rel=0.02)
    assert all(most >= budgets.expected(RATES, spread, drafts, rows, requests) - 0.02 for spread in (0.0, 1.5, 3.0))


def test_a_report_judges_the_best_of_both(tmp_path):
    family = budgets.FAMILIES["eagle3"]
    (tmp_path / "runs").mkdir()
    session = Session(tmp_path, tmp_path, tmp_path, "cuda", 0, 0, {}, None, Points())

    def left(variant, **sides):
        points = {name: {"1024x8": {"ms_per_step": ms}} for name, ms in sides.items()}
        session.path(BUDGETED[variant], budgets.OWN, "json").write_text(
            json.dumps({"up_s": 3.0, "server": {}} | points)
        )

    left(family.program, stock=12.0, **{"3": 11.0, "3b2": 6.0})
    left("budget8_chain1", stock=8.0)
    session.path(BUDGETED["budget8_nospec"], budgets.OWN, "json").write_text(json.dumps({"error": "not run"}))
    made = budgets.report(session, ["eagle3"], [0.0])
    assert made["families"]["eagle3"]["points"] == {
        "1024x8": {"program": {"3": 11.0, "3b2": 6.0}, "SGLang": {"3": 12.0, "1": 8.0}}
    }
    entry = made["families"]["eagle3"]["spreads"]["0.0"]["1024x8"]
    assert entry["best"]["program"] == ("3b2", pytest.approx(8e3 * 1.71 / 6))
    assert entry["best"]["SGLang"] == ("1", pytest.approx(8e3 * 1.71 / 8))
    assert entry["ratio"] == pytest.approx(8 / 6)
    assert "| spread 0.0 | 1.33 (3b2, 1) |" in budgets.tables(made)
