"""What a change costs: recorded differences, each of which works in a copy of the project.

Where a difference does not apply any more, make the change anew and record it with `git diff`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from changed_copy import ROOT, apply, run_changed

EVERY = (
    "tests/meta/test_completeness.py",
    "tests/meta/test_opcodes.py",
    "tests/unit/compiler/ir/test_ir_signatures.py",
)
"""What holds for all that a change adds."""
ATTENTION = (
    "tests/unit/engines/test_sglang_seam.py",
    "tests/meta/test_layering.py::test_what_the_compiler_reads_of_an_adapter_imports_nothing",
)
"""What holds for every attention backend."""


@dataclass(frozen=True)
class Cost:
    """Files and pages that a change touches besides its tests, and the tests that it must pass."""

    files: int
    pages: int
    tests: tuple[str, ...]


COSTS = {
    "op": Cost(3, 1, ("tests/kernels/test_rejected.py",)),
    "reduction": Cost(5, 2, ("tests/kernels/test_largest.py",)),
    "key": Cost(
        2, 1, ("tests/unit/compiler/config/test_largest_batch.py", "tests/unit/compiler/config/test_schema.py")
    ),
    "pass": Cost(2, 2, ("tests/filecheck",)),
    "attention": Cost(2, 1, ("tests/unit/engines/test_sglang_torch_native.py", *ATTENTION)),
    "kind": Cost(4, 2, ("tests/unit/engines/test_sglang_two_model.py", "tests/unit/engines/test_sglang_blocks.py")),
}
"""A reduction is an op with a family of kernels: its file, and its line in the table of families. A kind of draft is
its record in the adapter of SGLang, and here an algorithm beside it.

The last two run in SGLang itself, too: `tests/sglang/test_changes.py`.
"""


@pytest.mark.parametrize("change", COSTS)
def test_a_change_touches_few_files(change: str) -> None:
    names = re.findall(r"^[\d-]+\t[\d-]+\t(\S+)$", apply(change, ROOT, "--check", "--numstat"), re.MULTILINE)
    kinds = Counter(name.partition("/")[0] for name in names)
    files, pages = kinds["specc"] + kinds["templates"], kinds["docs"]
    assert (files, pages) == (COSTS[change].files, COSTS[change].pages) and kinds["tests"] > 0


@pytest.mark.parametrize("change", COSTS)
def test_a_change_works(change: str, tmp_path: Path) -> None:
    # Pages name files that are not copied.
    left_out = ("--deselect", f"{EVERY[0]}::test_files_that_pages_name_exist")
    run_changed(change, tmp_path, *EVERY, *COSTS[change].tests, *left_out)
