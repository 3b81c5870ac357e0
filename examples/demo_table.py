"""Print what `specc run --check --format json` wrote of several programs, as the table that `make demo` ends with.

    python demo_table.py build/demo/eagle-chain.json ...

Texts are in the files. "Accepted" is how many tokens a step emits on average, "seconds" are those of the decode steps,
and "identical" says whether every text is the one that `generate` of transformers writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def identical(verdicts: Iterable[dict[str, Any]]) -> str:
    """Whether all texts are those of `generate`, in a word."""
    listed = [*verdicts]
    if all(verdict["identical"] for verdict in listed):
        return "yes"
    return "no" if any(verdict["position"] is not None for verdict in listed) else "near-ties"


def table(records: dict[str, Any]) -> Table:
    """A row for every program's record, by the program's name."""
    summary = Table(
        "program", "tokens", "accepted", "seconds", "identical", box=None, pad_edge=False, collapse_padding=True
    )
    for column in summary.columns[1:4]:
        column.justify, column.no_wrap = "right", True
    for name, record in records.items():
        stats, verdict = record["stats"], identical(text["check"] for text in record["completions"])
        figures = (f"{stats['tokens']:,}", f"{stats['mean_accept_len']:.2f}", f"{stats['decode_seconds']:.2f}")
        summary.add_row(name, *figures, verdict)
    return summary


def main(files: list[str]) -> None:
    """Read the files, and print."""
    Console().print(table({Path(file).stem: json.loads(Path(file).read_text()) for file in files}))


if __name__ == "__main__":
    main(sys.argv[1:])
