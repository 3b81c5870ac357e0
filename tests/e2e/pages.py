"""A page of the documentation as what its reader does: files, commands with what they print, and Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\S+\.\w+)\n")
WIDTH = 80
"""Columns of the terminal that pages show."""
TREE = ("pyproject.toml", "Makefile", "LICENSE", "README.md", "specc", "templates", "examples")
"""What a clone has of use to a reader."""
CHANGING = (
    (r"\+p[0-9a-f]{12}\b", "+pLABEL"),
    (r"\b\d+\.\d\d s\b", "#.## s"),
    (r"(?m)^ (\w+) +(sm_\w+) [ \d,]+$", r" \1 \2 #"),
    (r"(?m)[ \t]+$", ""),
    (r"(?m)(│) +[\d,.]+$", r"\1 #"),
)
"""What is another in every version or run: labels, times, what machine code takes; and blanks at the end of lines."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the file that it is, if its first line names one."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file."""
        match = NAMED.match(self.text)
        return match[1] if match else None

    def commands(self) -> list[tuple[str, str]]:
        """What is typed, and what is shown of its answer."""
        typed: list[tuple[str, str]] = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", part)
            assert command
            typed.append((command[0].rstrip("\n"), part[command.end() :]))
        return typed


def blocks(page: str) -> list[Block]:
    """The blocks of a page of the repository, in order."""
    return [Block(*groups) for groups in BLOCK.findall((ROOT / page).read_text())]


def clone(folder: Path) -> Path:
    """A copy of the working tree as a clone would be, with its environment, from which commands run."""
    for name in TREE:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / name, ignore=ignored) if source.is_dir() else shutil.copy(source, folder)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command in the folder, on a machine without a GPU; what pip installs goes to site/, and no package is fetched.

    Its output has both streams, as a terminal shows them.
    """
    place = {
        **os.environ,
        "COLUMNS": str(WIDTH),
        "PYTHONUNBUFFERED": "1",
        "TQDM_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'site'}",
        "PIP_TARGET": str(folder / "site"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_UPGRADE": "1",
        "PIP_QUIET": "1",
    }
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, **both, text=True, check=False, cwd=folder, env=place)


def compare(shown: str, printed: str) -> None:
    """What is printed is what the page shows; a line of three points stands for any lines."""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", plain(shown), flags=re.MULTILINE)]
    if re.fullmatch("(?:.*\n)*".join(parts), plain(printed)) is None:
        assert plain(printed) == plain(shown)


def plain(text: str) -> str:
    """A text without what changes."""
    for pattern, instead in CHANGING:
        text = re.sub(pattern, instead, text)
    return text
