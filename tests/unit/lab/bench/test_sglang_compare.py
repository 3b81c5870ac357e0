"""bench/sglang/compare.py and report.py on results that are made here; no engine runs."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from queue import Queue

import compare
import one
import pytest
import report
import texts
from variants import VARIANTS

CHAIN, PLAIN = VARIANTS["ex_eagle_chain_fa3"], VARIANTS["ex_nospec"]
TIMED = VARIANTS["llama_chain"]


@pytest.fixture
def session(tmp_path):
    (tmp_path / "runs").mkdir()
    gpus = Queue()
    gpus.put("")
    return compare.Session(tmp_path, tmp_path / "programs", tmp_path, "cpu", time.monotonic() + 60, 60, {}, gpus)


def answered(ids, accepted, backend="fa3", served=9):
    return {
        "output_ids": ids,
        "accept_lengths": accepted,
        "server": {"attention_backend": backend},
        "program": {"served": served},
    }


def timed(milliseconds, launches, accepted=2.5):
    kinds = {"metadata": 3, "forward": 800, "torch": 50}
    trace = {"launches_per_step": launches, "glue_us": launches * 2, "gpu_busy_us": 900, "us_by_kind": kinds}
    trace |= {"run_ahead_us": {"first": 400, "least": 90}}
    rate = {"ms_per_step": milliseconds, "tokens_per_s": 2500 / milliseconds, "tokens_per_step": accepted}
    rate |= {"ms_per_step_range": [milliseconds, milliseconds + 0.01]}
    run = {"1024x1": rate, "trace 1024x1": trace, "8192x1": rate, "trace 8192x1": {"error": "too\nfew steps"}}
    return run | {"server": {"attention_backend": "fa3"}, "program": {"served": 9}}


def reported(variant, stock, specc, plain=None, models=Path()):
    results = {variant.name: {"stock": stock, "specc": specc}}
    return report.report([variant], results, {variant.plain: plain or {"error": "not run"}}, models)


def test_ratios_are_the_programs_over_stock():
    result = reported(TIMED, timed(1.0, 50), timed(0.5, 5))
    (record,) = result["records"]
    assert list(record["points"]) == ["1024x1", "8192x1"]
    ratio = record["points"]["1024x1"]["ratio"]
    assert (ratio["ms a step"], ratio["tokens/s"], ratio["launches"]) == pytest.approx((0.5, 2.0, 0.1))
    figures = record["points"]["1024x1"]["specc"]
    assert (figures["step / GPU"], figures["forwards us"], figures["least"]) == pytest.approx((500 / 900, 850, 90))
    assert record["points"]["8192x1"]["ratio"]["launches"] is None
    assert record["errors"].keys() == {"stock trace 8192x1", "specc trace 8192x1"}
    text = report.tables(result)
    assert "| llama_chain | 1024 | 1 | specc | fa3 | 0.5 (0.50 to 0.51) | 5000 |" in text
    assert "| llama_chain | 1024 | 1 | **specc / stock** |  | 0.5 | 2 |" in text
    assert "FAILED llama_chain: specc trace 8192x1: few steps" in text


def test_ratios_of_time_are_those_of_turns():
    """Here a slow turn was slow for both sides."""
    stock, specc = (timed(ms, 5) for ms in (4.0, 3.0))
    stock["1024x1"]["ms_per_step_each"], specc["1024x1"]["ms_per_step_each"] = [4, 8, 4], [3, 6, 2]
    ratio = reported(TIMED, stock, specc)["records"][0]["points"]["1024x1"]["ratio"]
    assert (ratio["ms a step"], ratio["range"]) == (0.75, [0.5, 0.75])


def test_the_machine_and_what_is_made_up_are_said():
    result = reported(TIMED, timed(1.0, 50), timed(0.5, 5))
    assert result["machine"]["torch"]
    assert "SGLANG_SIMULATE_ACC_LEN=2.5" in report.tables(result)


@pytest.mark.parametrize(
    ("specc", "failure"),
    [
        ({"server": {"attention_backend": "triton"}}, "attention backends differ"),
        ({"program": {"served": 0}}, "the program served no step"),
        ({"program": {"served": 9, "left": {"switched off": 9, "grammar": 2}}}, "left steps to SGLang: {'grammar': 2}"),
        ({"1024x1": {"tokens_per_step": 2.2}}, "1024x1: 2.50 and 2.20 tokens a step"),
    ],
)
def test_what_must_be_the_same_is_a_failure_where_it_is_not(specc, failure):
    """Figures of another server, of SGLang's own step, or of other accepted lengths."""
    own = {name: what for name, what in timed(1.0, 50).items() if not name.startswith("trace 8192")}
    assert reported(TIMED, own, own)["failures"] == []
    (message,) = reported(TIMED, own, own | specc)["failures"]
    assert failure in message


def test_backends_of_roles_are_named_where_they_differ():
    server = {"attention_backend": "fa3", "decode_attention_backend": "triton"}
    assert report.attention(server) == "fa3/triton"
    assert report.attention({}) == "-"


def test_accepted_lengths_count_where_texts_are_the_same(monkeypatch):
    monkeypatch.setattr(report, "explain_ties", lambda *_: None)
    ids = [[1, 2], [3, 4], [5, 6]]
    stock, specc = answered(ids, [2.0, 3.0, 2.0]), answered([[1, 2], [3, 4], [5, 7]], [2.0, 2.5, 1.0])
    result = reported(CHAIN, stock, specc, answered([[1, 2], [3, 9], [5, 6]], [None] * 3))
    (record,) = result["records"]
    assert record["accepted"] == {"same": 1, "of": 2, "mean": pytest.approx(7 / 3)}
    assert record["texts"] == {"same": 2, "of": 3, "first_difference": [None, None, 1]}
    assert record["texts_of_no_speculation"]["stock"]["same"] == 2
    assert result["failures"] == ["ex_eagle_chain_fa3: accepted lengths of 1 prompts with the same text differ"]
    assert "| ex_eagle_chain_fa3 | fa3 | 2/3, others differ from token 1 on | 1/2 | 2.33 | - | 2/3" in report.tables(
        result
    )


def test_texts_that_part_at_a_near_tie_are_named_and_no_failure(monkeypatch):
    """And those that part where one score is clearly the best are."""
    import prompts
    import ties

    class Target:
        def __init__(self, folder):
            assert folder.name == "ex_target"

        def parting(self, prompt, tokens, reference, place):
            return {
                "place": place,
                "tokens": [tokens[place], reference[place]],
                "gap": prompt[0],
                "near": prompt[0] < 0.1,
            }

    monkeypatch.setattr(ties, "Target", Target)
    monkeypatch.setattr(prompts, "text_prompts", lambda _: [[0.01], [0.02], [3.0]])
    stock = answered([[1, 2], [3, 4], [5, 6]], [2.0] * 3)
    near = reported(CHAIN, stock, answered([[1, 9], [3, 4], [5, 6]], [1.0, 2.0, 2.0]))
    assert near["failures"] == []
    assert near["records"][0]["parting"][0]["tokens"] == [9, 2]
    assert "| 1 (gaps 0.010) |" in report.tables(near)
    far = reported(CHAIN, stock, answered([[1, 2], [3, 4], [9, 6]], [2.0] * 3))
    assert far["failures"] == ["ex_eagle_chain_fa3: texts of prompts 2 differ, and no near tie is there"]


def test_what_did_not_run_is_named_and_not_left_out():
    result = reported(CHAIN, answered([[1]], [2.0]), {"error": "not run"}, answered([[1]], [None]))
    (record,) = result["records"]
    assert record["texts"] is None
    assert record["texts_of_no_speculation"]["stock"]["same"] == 1
    assert "FAILED ex_eagle_chain_fa3: specc: not run" in report.tables(result)


@pytest.mark.parametrize(
    ("tokens", "reference", "place"), [([1, 2], [1, 2], None), ([1, 2], [1], 1), ([], [1], 0), ([5, 2], [6, 2], 0)]
)
def test_where_answers_differ_first(tokens, reference, place):
    assert texts.differs(tokens, reference) == place


def test_a_near_tie_is_one_of_the_targets_two_best_tokens():
    """Of a model that is made here: its scores are those of a table."""
    import torch
    from ties import Target

    target = Target.__new__(Target)
    scores = torch.tensor([0.0, 8.0, 7.95, 4.0])
    target._device, target._model = "cpu", lambda ids: type("Found", (), {"logits": scores.expand(*ids.shape, 4)})
    assert target.parting([0], [3, 1], [3, 2], 1) == {
        "place": 1, "tokens": [1, 2], "gap": pytest.approx(0.05, rel=1e-4), "near": True,
    }  # fmt: skip
    assert not target.parting([0], [1], [3], 0)["near"]
    scores[2] = 7.5
    assert not target.parting([0], [1], [2], 0)["near"]


def test_a_process_past_its_limit_ends_with_all_that_it_started(tmp_path):
    script = "import os, subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    log = tmp_path / "log"
    assert compare.run_process([sys.executable, "-c", script], dict(os.environ), log, 2) == -9
    child = Path("/proc", log.read_text().strip(), "stat")
    for _ in range(50):
        if not child.exists() or child.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("its child is still there")


def test_a_missing_program_is_an_error_before_an_engine_starts(session, monkeypatch):
    def never(*_):
        raise AssertionError("an engine was started")

    monkeypatch.setattr(compare, "run_process", never)
    compare.run_engine(session, CHAIN, compare.SIDES, "")
    assert all("no program" in result["error"] for result in session.results(CHAIN).values())


def test_sides_are_of_one_server_or_of_two(session):
    both = {"stock": {"output_ids": [[1]]}, "specc": {"output_ids": [[2]]}, "server": {"page_size": 1}}
    session.path(CHAIN, compare.SIDES, "json").write_text(json.dumps(both))
    assert session.results(CHAIN) == {engine: both[engine] | {"server": both["server"]} for engine in compare.SIDES}
    alone = {"specc": {"output_ids": [[3]]}, "server": {"page_size": 16}}
    session.path(CHAIN, ["specc"], "json").write_text(json.dumps(alone))
    apart = replace(session, apart=True)
    assert apart.results(CHAIN) == {
        "stock": {"error": "not run"},
        "specc": {"output_ids": [[3]], "server": {"page_size": 16}},
    }
    assert apart.runs(PLAIN) == session.runs(PLAIN) == [("stock",)]


class Clock:
    """A server whose generations take as long as is said, by side."""

    def __init__(self, tenths):
        self.tenths, self.turns, self.side = tenths, [], ""

    def turn(self, engine):
        self.turns.append(engine)
        self.side = engine

    def generate(self, prompts, tokens):
        answer = {"meta_info": {"spec_verify_ct": tokens // 2}}
        return [answer] * len(prompts), tokens // 2 * self.tenths[self.side].pop() / 1e4


def test_sides_take_turns():
    """Eight tokens more than 32 are four steps: forwards and backwards, and the first two generations are not timed."""
    server = Clock({"stock": [9, 9, 5, 5, 4, 4, 99, 99], "specc": [7, 7, 3, 3, 2, 2, 99, 99]})
    job = one.Job({}, tokens=40, repeats=3, sides=["stock", "specc"])
    measured = one.rates(server, [[1]], job, server.turn)
    assert server.turns == ["stock", "specc", "stock", "specc", "specc", "stock", "stock", "specc"]
    assert measured["stock"]["ms_per_step_each"] == pytest.approx((0.4, 0.5, 0.9))
    assert measured["specc"]["ms_per_step"] == pytest.approx(0.3)
    assert measured["specc"]["tokens_per_step"] == 2.0


def test_results_that_are_there_are_not_made_again(session, monkeypatch):
    session.path(PLAIN, ["stock"], "json").write_text(json.dumps(answered([[1]], [None])))
    monkeypatch.setattr(compare, "run_process", lambda *_: 1 / 0)
    compare.run_variant(session, PLAIN)


def test_the_program_is_found_by_path_and_name_and_stock_sees_none(session):
    program = session.programs / CHAIN.program
    variables = compare.environment(session, CHAIN, program, "3")
    assert variables["SPECC_PROGRAM"] == "specc_program_bench_ex_eagle_chain"
    assert variables["PYTHONPATH"].endswith(str(program))
    assert variables["CUDA_VISIBLE_DEVICES"] == "3"
    stock = compare.environment(session, CHAIN, None, "")
    assert "SPECC_PROGRAM" not in stock
    assert str(program) not in stock["PYTHONPATH"]


def test_batches_are_timed_for_which_a_server_has_room():
    points = compare.Points().of(TIMED, 256)
    assert [8192, 32] in points
    assert [8192, 64] not in points
    assert [1024, 64] in points
    assert [8192, 64] in compare.Points().of(VARIANTS["mla_chain"], 256)


def test_a_job_asks_for_texts_or_for_times(session, monkeypatch):
    monkeypatch.setattr(compare.Session, "prompts", [[1, 2]])
    texts_, times = (
        compare.make_job(session, variant, compare.SIDES, None) for variant in (CHAIN, VARIANTS["llama_chain_drawn"])
    )
    assert texts_["prompts"] == [[1, 2]]
    assert "points" not in texts_
    assert times["sampling"] == {"temperature": 1.0, "top_p": 0.9}
    assert times["environment"] == {"SGLANG_SIMULATE_ACC_LEN": "2.5"}
    assert times["traced"] == []  # there is no GPU


def test_names_stand_for_all_that_match():
    assert [variant.name for variant in compare.chosen(["mla_*", "llama_chain"])] == [
        "llama_chain",
        "mla_nospec",
        "mla_chain",
    ]
    with pytest.raises(ValueError, match="no variant lama"):
        compare.chosen(["lama"])
