"""bench/sglang/shapes.py on results that are made here; no engine runs."""

import json
from pathlib import Path

import pytest
import shapes
from compare import HERE

LENGTHS = {"0": 1.0, "1": 1.5, "3": 2.0, "5": 2.5, "3x4x8": 2.5, "5x4x8": 3.0, "3x4x16": 2.6, "5x4x16": 3.5}


def rate(ms, tokens=2.0):
    return {"ms_per_step": ms, "ms_per_step_range": [ms, ms], "tokens_per_step": tokens}


def auto(ms, **steps):
    return {"samples": [{"ms": ms, "steps": {name.removeprefix("of_"): count for name, count in steps.items()}}]}


def test_tokens_are_those_of_the_table_and_each_claim_is_judged():
    sides = {
        "5": {"1024x1": rate(10.0), "1024x32": rate(20.0)},
        "3": {"1024x1": rate(9.0), "1024x32": rate(12.5)},
        "SGLang 5x4x8": {"1024x1": rate(15.0), "1024x32": rate(30.0)},
        "SGLang 3x4x16": {"1024x1": rate(15.0), "1024x32": rate(40.0)},
    }
    chosen = {"1024x1": auto(100.0, of_5=10), "1024x32": auto(162.5, of_5=5, of_3=5)}
    made = shapes.judged(sides, {"": chosen}, LENGTHS)
    assert made["tokens_per_s"]["5"] == pytest.approx({1: 250, 32: 4000})
    assert made["tokens_per_s"]["auto"] == pytest.approx({1: 250, 32: 32 * 22.5 / 0.1625})
    assert made["shares"]["auto"][32] == {"5": 0.5, "3": 0.5}
    assert [
        line.split(":")[0] + line.split(":", 1)[1].split(" of ")[0].split(" times")[0] for line in made["said"]
    ] == [
        "holds batch 1: 1.000",
        "holds batch 1: 1.250",
        "FAILS batch 32: 0.865",
        "holds batch 32: 1.385",
        "holds batch 32: 2.130",
        "holds all batches: 1.316",
    ]


def test_a_program_with_a_map_is_compared_with_servers_that_have_one():
    sides = {
        "map 3": {"1024x1": rate(8.0)},
        "3": {"1024x1": rate(4.0)},
        "SGLang 3": {"1024x1": rate(16.0)},
        "SGLang map 3": {"1024x1": rate(10.0)},
    }
    made = shapes.judged(sides, {"": {"1024x1": auto(40.0, of_3=10)}, "map ": {"1024x1": auto(80.0, of_3=10)}}, LENGTHS)
    assert made["tokens_per_s"]["map auto"] == {1: 250}
    assert made["said"] == [
        "holds: batch 1: 1.000 of the best single shape, 3",
        "holds: all batches: 4.000 times SGLang 3, 1.1 wanted",
        "holds: map batch 1: 1.000 of the best single shape, map 3",
        "holds: map all batches: 1.250 times SGLang map 3, 1.1 wanted",
    ]


def test_accepted_lengths_that_are_not_the_tables_and_far_texts_are_failures():
    made = {
        "texts": {"auto": {"parting": {3: {"near": True}, 7: {"near": False}}}},
        "sides": {"5x4x8": {"1024x1": rate(10.0, 1.5)}, "SGLang 5x4x8": {"1024x1": rate(10.0, 2.95)}},
        "load": {"program": {"short": 0, "left": {"more than 64 requests": 2}}},
    }
    messages = list(shapes.failures(made, LENGTHS))
    assert messages == [
        "texts of prompts 7 at auto differ, and no near tie is there",
        "5x4x8: 1.50 tokens a step, the table has 3.00",
        "load of program: 0 answers are too short, left to SGLang {'more than 64 requests': 2}",
    ]


def test_tables_have_a_length_of_every_shape_and_say_what_is_made_up():
    described = json.loads(Path(HERE, "accepted.json").read_text())
    for table in described.values():
        lengths = table["published"] | table["made_up"]
        assert lengths.keys() == {*shapes.SHAPES, *(server.split()[-1] for server in shapes.SERVERS.values())}
        assert not table["published"].keys() & table["made_up"].keys()
