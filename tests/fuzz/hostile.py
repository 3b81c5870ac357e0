"""A place to be hostile in: a folder of its own, whose commands reach no network and write nowhere else."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from .outcome import CONTROL, Failure

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = ("target", "eagle", "standalone")
"""Examples that lie in the folder, without their weights."""
SAYINGS = (
    "", " ", "x", "é", "\u4f60", "\U0001f600", "x" * 300, "x" * 5000, "\x1b[2J", "\x1b]0;title\x07", "a\nb: c", "a\rb",
    "\u202eb", "\u2028", "\x9b31m", "\udcff", "\udc80x", "\ud800", "a\x00b", "[red]x[/red]", "[/x]", "{}", "%s", "'",
    '"',
    "-", "--", "---", "null", "~", "true", "1", "a: b", "# a", "*a", "&a", "!!python/none", "class", "__init__", "con",
)  # fmt: skip
"""What a word may be: empty, long, of controls, of halves of characters, of what other languages mean by it."""
_AT_PATH = {
    "open": (0,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.symlink": (1,),
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Watch:
    """What was tried outside of the folder while there is one."""

    folder: str | None = None
    seen: list[str]

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        """Take an event of `sys.audit`; PermissionError for one that leaves the folder."""
        if self.folder is None:
            return
        if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            self._refuse(f"{event} {given[1:] if event != 'socket.getaddrinfo' else given[:2]}")
        if event == "open" and not (isinstance(given[2], int) and given[2] & _WRITES):
            return
        for place in (given[at] for at in _AT_PATH.get(event, ())):
            if isinstance(place, str | bytes | os.PathLike) and self._outside(os.fsdecode(place)):
                self._refuse(f"{event} {os.fsdecode(place)[:200]!r}")

    def _outside(self, place: str) -> bool:
        """Whether a file is of nobody's: not in the folder, no stream of nothing, no compiled Python."""
        real = os.path.realpath(place)
        return (
            not real.startswith((f"{self.folder}/", "/dev/null", "/dev/full"))
            and real != self.folder
            and "__pycache__" not in real
        )

    def _refuse(self, what: str) -> None:
        self.seen.append(what)
        raise PermissionError(f"the attack allows no {what}")


WATCH = _Watch()


@functools.cache
def warm() -> None:
    """Import what commands import, and watch what they do: once in a process."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import specc.lab.engine.models.loading
        import specc.lab.measure.bench  # noqa: F401
    sys.addaudithook(WATCH)


@contextlib.contextmanager
def place(rng: random.Random) -> Iterator[Path]:
    """A folder that is the current one, with models, texts, and what is no file; afterwards all went on inside.

    Raises Failure where something was tried outside, or the network asked.
    """
    warm()
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(os.path.realpath(parent)) / "here"
        _furnish(folder, rng)
        home = {"HOME": str(folder / "home"), "SPECC_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
        with mock.patch.dict(os.environ, home), mock.patch.object(tempfile, "tempdir", str(folder / "tmp")):
            os.chdir(folder)
            WATCH.folder, WATCH.seen = str(folder.parent), []
            try:
                yield folder
            finally:
                WATCH.folder = None
                os.chdir(before)
        if WATCH.seen:
            raise Failure(f"it left its folder: {WATCH.seen[:3]}")


def _furnish(folder: Path, rng: random.Random) -> None:
    """Make the folder, and what lies in it."""
    for name in ("home", "tmp", "cache", "empty"):
        (folder / name).mkdir(parents=True, mode=0o700)
    for name in MODELS:
        kept = shutil.ignore_patterns("*.safetensors", *(["tokenizer*"] if name != "target" else []))
        shutil.copytree(EXAMPLES / "models" / name, folder / name, ignore=kept)
    head = folder / "eagle" / "config.json"  # by the class that servers know it by
    head.write_text(head.read_text().replace('"EagleHead"', '"LlamaForCausalLMEagle"'))
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("no/such")
    (folder / "\U0001f600").symlink_to("target")
    (folder / "text.txt").write_text("def main():\n    return main()\n")
    (folder / "bytes.txt").write_bytes(bytes(rng.randrange(256) for _ in range(40)))
    (folder / "broken.whl").write_bytes(b"PK\3\4")
    (folder / "deep.json").write_text("[" * 100_000)


def raw(text: str) -> object:
    """What of a text steers a terminal, or cannot be shown; None for nothing."""
    match = CONTROL.search(text)
    return repr(match.group()) if match else next((repr(char) for char in text if "\ud800" <= char <= "\udfff"), None)
