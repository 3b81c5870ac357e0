"""What programs of others print is taken up to a limit of bytes, and of time."""

from __future__ import annotations

import sys

import pytest

from specc.cli.tools import output_of

WORDS = b"\xff0123456789\n"


def test_what_is_printed_is_taken_as_text() -> None:
    code = f"import os; os.write(1, {WORDS!r}); os.write(2, b'no'); print(input())"
    assert output_of([sys.executable, "-c", code], 60, 1000) == "\ufffd0123456789\n"


@pytest.mark.parametrize("most", [1, 1000, 100_000])
def test_no_more_is_taken_than_is_asked_for(most: int) -> None:
    """Of a program that would print for ever."""
    code = f"import os\nwhile True: os.write(1, {WORDS[1:]!r})"
    assert len(output_of([sys.executable, "-c", code], 20, most)) == most


def test_a_program_that_goes_on_is_ended() -> None:
    """Also one that prints a little again and again."""
    code = "import time\nprint(1, flush=True)\nwhile True: time.sleep(0.05); print(2, flush=True)"
    assert {*output_of([sys.executable, "-c", code], 1, 1 << 20).split()} <= {"1", "2"}


def test_what_is_no_program_cannot_be_run(tmp_path: object) -> None:
    with pytest.raises(FileNotFoundError):
        output_of([f"{tmp_path}/missing"], 1, 1)
