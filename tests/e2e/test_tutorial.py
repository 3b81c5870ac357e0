"""docs/tutorial.md: every block in one folder, in order, and what is shown is what is printed."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from .pages import ROOT, blocks, clone, compare, run

PAGE = "docs/tutorial.md"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The commands of the page, each with what it shows; a command that is to fail shows a diagnostic."""
    folder, parts, typed = clone(tmp_path_factory.mktemp("clone")), defaultdict[str, list[str]](list), list[str]()
    for block in blocks(PAGE):
        if block.file:
            parts[block.file].append(block.text)
            (folder / block.file).write_text("\n\n".join(parts[block.file]))
        for command, shown in block.commands() if block.language == "console" else []:
            ran = run(folder, "bash", "-c", command)
            assert ran.returncode == shown.startswith("error["), f"$ {command}\n{ran.stdout}"
            compare(shown, ran.stdout)
            typed.append(command)
    return typed


def test_every_block_is_done(done: list[str]) -> None:
    """Those that are neither typed nor written are none."""
    page = blocks(PAGE)
    assert {block.language for block in page} == {"console", "python"}
    assert all(block.file for block in page if block.language == "python")
    assert len(re.findall("^```", (ROOT / PAGE).read_text(), re.M)) == 2 * len(page)
    assert done == [command for block in page if block.language == "console" for command, _ in block.commands()]
    assert len(done) > 15


def test_a_program_s_text_is_the_target_s(done: list[str]) -> None:
    """The page itself shows the comparisons, so that they are compared."""
    text = (ROOT / PAGE).read_text()
    assert text.count("identical to generate: yes") == 2
    assert text.count("-- the same as generate: True") == 2
    assert sum("--check" in command for command in done) == 2


def test_what_it_links_to_is_there() -> None:
    for link in re.findall(r"\]\(([^)#]+)", (ROOT / PAGE).read_text()):
        assert (ROOT / "docs" / Path(link)).resolve().is_file(), link
