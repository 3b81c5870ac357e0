"""The list of slow tests: what it names is there, and what `make durations` writes into it."""

from __future__ import annotations

from pathlib import Path

import pytest
import slow_tests

TEXT = """a/
b/test_one.py
c/test_two.py
    test_all
    test_some
        x-[1]
        y z
"""
LISTED = slow_tests.read(TEXT)


def test_what_is_listed_is_there(request: pytest.FixtureRequest) -> None:
    """A run that has read a file misses its functions and cases; paths are missed by each run."""
    assert request.config.stash[slow_tests.GONE] == []


def test_the_list_is_sorted() -> None:
    lines = [line for line in slow_tests.LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines == [*slow_tests.written(slow_tests.read("\n".join(lines)))]


def test_a_list_is_read_as_it_is_written() -> None:
    assert "".join(f"{line}\n" for line in slow_tests.written(LISTED)) == TEXT


@pytest.mark.parametrize(
    ("name", "slow"),
    [
        ("a/test_any.py::test_x", True),
        ("a/deeper/test_any.py::test_x[1]", True),
        ("b/test_one.py", True),
        ("b/test_one.py::test_x", True),
        ("b/test_new.py::test_x", False),
        ("c/test_two.py", False),
        ("c/test_two.py::test_all[1]", True),
        ("c/test_two.py::test_some[x-[1]]", True),
        ("c/test_two.py::test_some[y z]", True),
        ("c/test_two.py::test_some[new]", False),
        ("c/test_two.py::test_new[y z]", False),
    ],
)
def test_what_is_in_no_list_is_not_slow(name: str, slow: bool) -> None:
    assert (slow_tests.is_whole(LISTED, name) or slow_tests.has_case(LISTED, name)) == slow


def test_what_is_gone_is_named(tmp_path: Path) -> None:
    for folder in ("a", "c"):
        (tmp_path / folder).mkdir()
    (tmp_path / "c/test_two.py").touch()
    there = ["c/test_two.py::test_some[y z]", "c/test_two.py::test_other"]
    assert slow_tests.gone(LISTED, [], tmp_path) == ["b/test_one.py"]
    assert slow_tests.gone(LISTED, there, tmp_path) == [
        "b/test_one.py",
        "c/test_two.py::test_all",
        "c/test_two.py::test_some[x-[1]]",
    ]


@pytest.mark.parametrize(("seconds", "slow"), [(0.9, "x-[1]"), (0.6, "other")])
def test_a_quickest_case_stays_the_same_until_another_is_much_quicker(seconds: float, slow: str) -> None:
    took = {"c/test_two.py::test_some[other]": 1.0, "c/test_two.py::test_some[x-[1]]": seconds}
    assert slow_tests.with_durations(LISTED, took)["c/test_two.py"]["test_some"] == {slow}


def test_the_quickest_case_of_a_function_stays() -> None:
    seconds = {
        "c/test_two.py::test_some[p]": 9.0,
        "c/test_two.py::test_some[q]": 8.0,
        "c/test_two.py::test_some[r]": 7.0,
        "c/test_two.py::test_quick[p]": 0.01,
        "c/test_two.py::test_quick[q]": 0.02,
        "c/test_two.py::test_one_case": 9.0,
        "d/test_three.py::test_mixed[p]": 9.0,
        "d/test_three.py::test_mixed[q]": 0.01,
        "d/test_three.py::test_mixed[r]": 0.01,
        "meta/test_four.py::test_limits[p]": 9.0,  # of the whole tree
        "meta/test_four.py::test_limits[q]": 8.0,
    }
    assert slow_tests.with_durations(LISTED, seconds) == {
        "a/": {},
        "b/test_one.py": {},
        "c/test_two.py": {"test_all": set(), "test_some": {"p", "q"}},
        "d/test_three.py": {"test_mixed": {"p"}},
    }
