"""bench/sglang/compare.py on results that are made here; no engine runs."""

import json
import os
import sys
import time
from pathlib import Path
from queue import Queue

import compare
import pytest
import texts
from variants import VARIANTS

CHAIN, PLAIN = VARIANTS["ex_eagle_chain"], VARIANTS["ex_nospec"]


@pytest.fixture
def session(tmp_path):
    (tmp_path / "runs").mkdir()
    gpus = Queue()
    gpus.put("")
    return compare.Session(tmp_path, tmp_path / "programs", tmp_path, "cpu", time.monotonic() + 60, 60, {}, gpus)


def run(speed, launches, ids):
    trace = {"launches_per_step": launches, "glue_us": launches * 2, "us_by_kind": {"torch": 1}}
    rate = {"tokens_per_s": speed, "ms_per_step": 1000 / speed, "tokens_per_step": 2.5}
    return {"output_ids": ids, "bs1": rate, "trace_bs1": trace, "trace_bs8": {"error": "too\nfew steps"}}


def keep(session, variant, side, result):
    session.path(variant, side, "json").write_text(json.dumps(result))


def test_ratios_are_the_programs_over_stock(session):
    keep(session, CHAIN, "stock", run(100, 50, [[1, 2], [3, 4]]))
    keep(session, CHAIN, "specc", run(150, 5, [[1, 2], [3, 5]]))
    (record,) = compare.compare(session, [CHAIN])
    ratio = record["bs1"]["ratio"]
    assert (ratio["tokens/s"], ratio["launches"], ratio["glue us"]) == pytest.approx((1.5, 0.1, 0.1))
    assert record["bs8"]["ratio"]["tokens/s"] is None
    assert record["texts"] == {"same": 1, "of": 2, "first_difference": [None, 1]}
    assert record["errors"].keys() == {"stock trace_bs8", "specc trace_bs8"}
    text = compare.table([record])
    assert "| ex_eagle_chain | 1/2, others differ from token 1 on | - |" in text
    assert "| ex_eagle_chain | 1 | **specc / stock** | 1.5 | 0.667 |" in text


def test_what_did_not_run_is_named_and_not_left_out(session):
    keep(session, CHAIN, "stock", run(100, 50, [[1]]))
    keep(session, PLAIN, "stock", run(90, 20, [[1]]))
    (record,) = compare.compare(session, [CHAIN])
    assert record["errors"]["specc"] == "not run"
    assert record["texts"] is None
    assert record["texts_of_no_speculation"]["stock"]["same"] == 1
    assert "specc: not run" in compare.table([record])


@pytest.mark.parametrize(
    ("mine", "other", "place"), [([1, 2], [1, 2], None), ([1, 2], [1], 1), ([], [1], 0), ([5, 2], [6, 2], 0)]
)
def test_where_answers_differ_first(mine, other, place):
    assert texts.differs(mine, other) == place


def test_a_process_past_its_limit_ends_with_all_that_it_started(tmp_path):
    script = "import os, subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    log = tmp_path / "log"
    begin = time.monotonic()
    assert compare.run_process([sys.executable, "-c", script], dict(os.environ), log, 2) == -9
    assert time.monotonic() - begin < 30
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
    compare.run_side(session, CHAIN, "specc", "")
    assert "no program" in session.result(CHAIN, "specc")["error"]


def test_results_that_are_there_are_not_made_again(session, monkeypatch):
    keep(session, PLAIN, "stock", run(90, 20, [[1]]))
    monkeypatch.setattr(compare, "run_process", lambda *_: 1 / 0)
    compare.run_variant(session, PLAIN)


def test_the_program_is_found_by_path_and_name_and_stock_sees_none(session):
    program = session.programs / CHAIN.program
    mine = compare.environment(session, CHAIN, program, "3")
    assert mine["SPECC_PROGRAM"] == "specc_program_bench_ex_eagle_chain"
    assert mine["PYTHONPATH"].endswith(str(program))
    assert mine["CUDA_VISIBLE_DEVICES"] == "3"
    stock = compare.environment(session, CHAIN, None, "")
    assert "SPECC_PROGRAM" not in stock
    assert str(program) not in stock["PYTHONPATH"]
