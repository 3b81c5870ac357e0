"""What a new user types first, from an empty folder, and all that is printed.

The transcripts stand in transcripts/, at 60, at 80 and at 160 columns; ``pytest tests/unit/cli/test_transcripts.py
--update-golden`` rewrites them, and the difference is reviewed like any other. What differs from day to day or from one
compiler to the next is left out: digests, versions, times, and what machine code takes.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specc.cli.main import app
from specc.cli.reporting import EXIT_NO_GPU
from specc.version import __version__

ROOT = Path(__file__).parents[3]
TRANSCRIPTS = Path(__file__).parent / "transcripts"
WIDTHS = (60, 80, 160)

EXAMPLES = {
    "standalone": "models/standalone",
    "eagle": "models/eagle",
    "eagle3": "models/eagle3",
    "mtp": "models/mtp",
    "frozen_kv": "models/frozen_kv",
    "dflash": "models/dflash",
    "none": "",
}
"""The draft of each example, for the target models/target."""

PUBLISHED = {
    "llama": "published/Llama-3.1-8B-Instruct published/EAGLE3-LLaMA3.1-Instruct-8B",
    "deepseek": "published/DeepSeek-V3",
    "qwen": "published/Qwen3-8B published/Qwen3-0.6B",
}
"""Models of which there is a config.json and no weights, so that nothing is run."""

SERVERS = {
    "standalone": "models/target models/standalone",
    "llama": PUBLISHED["llama"],
    "llama_eagle": "published/Llama-3.1-8B-Instruct published/{head}",
    "qwen": PUBLISHED["qwen"],
    "deepseek": PUBLISHED["deepseek"],
    "mimo": "published/MiMo-7B-Base",
}
"""Models that either engine serves, the head in the form that it reads."""
ENGINES = {"sglang": "sglang-EAGLE-LLaMA3-Instruct-8B", "vllm": "EAGLE-LLaMA3.1-Instruct-8B"}
"""Engines, with their heads."""
COPIED = ("the program: ", "the server: ")
"""How lines begin that are copied whole into a shell."""

HIDDEN: tuple[tuple[str, str], ...] = (
    (r"[0-9a-f]{64}", "DIGEST"),
    (r'"/[^"\n]*/examples/', '"/EXAMPLES/'),
    (re.escape(__version__), "VERSION"),
    (r"\+p[0-9a-f]{12}\b", "+pLABEL"),
    (r"\b\d+\.\d\d s\b", "#.## s"),
    (r"(?m)^(triton +)\S+$", r"\1#"),
    (r"(?m)^(files +)\d+$", r"\1#"),
    (r"(?m)^(machine code bytes +sm_\w+) .*$", r"\1 #"),
    (r"(?m)^ (\w+) +(sm_\w+) [ \d,]+$", r" \1 \2 #"),
    (r"(?m)^ kernel +arch +bytes +registers +spills +shared$", " kernel arch bytes registers spills shared"),
    (r"(?m)│ +[\d,.]+ $", "│ # "),
)
"""What is left out, and what stands in its place."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, but for the models, on a machine without a GPU."""
    (tmp_path / "models").symlink_to(ROOT / "examples/models")
    (tmp_path / "published").symlink_to(ROOT / "tests/published")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("specc.compiler.config.proposal.gpus", list)
    monkeypatch.setattr("specc.lab.measure.bench.here", lambda: None)
    return tmp_path


class Session:
    """Commands one after the other, as they are typed and what they print."""

    def __init__(self, folder: Path, width: int) -> None:
        """A terminal of so many columns in a folder."""
        self.folder, self.width, self.text = folder, width, ""

    def type(self, line: str, status: int = 0) -> None:
        """Run a command, which ends with a status; a pattern of files stands for the one that there is."""
        words = [str(next(Path().glob(word))) if "*" in word else word for word in shlex.split(line)]
        done = CliRunner().invoke(app, words[1:], env={"COLUMNS": str(self.width)})
        self.text += f"$ {line}\n{done.output}"
        assert done.exit_code == status, self.text

    def show(self, name: str) -> None:
        """Show a file."""
        self.text += f"$ cat {name}\n{Path(name).read_text()}"

    def hidden(self) -> str:
        """The transcript without what differs."""
        text = self.text
        for pattern, instead in HIDDEN:
            text = re.sub(pattern, instead, text)
        return text


def compare(session: Session, name: str, update: bool) -> None:
    """Compare a transcript with the one that is kept, or keep it."""
    path, text = TRANSCRIPTS / f"{name}.{session.width}.txt", session.hidden()
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "run pytest tests/unit/cli/test_transcripts.py --update-golden and review it"


def built(folder: Path, width: int, models: str) -> Session:
    """From the models to a wheel that is looked at; nothing but the file, the wheel and the page is written."""
    session = Session(folder, width)
    session.type(f"specc init {models}".rstrip())
    (config,) = folder.glob("*.yaml")
    session.show(config.name)
    session.type(f"specc check {config.name}")
    session.type(f"specc explain {config.name}")
    session.type(f"specc build {config.name}")
    session.type("specc inspect dist/*.whl")
    session.type(f"specc report {config.name}")
    session.type("specc bench dist/*.whl --buckets 1", EXIT_NO_GPU)
    session.type(f"specc tune {config.name}", EXIT_NO_GPU)
    assert {path.name for path in folder.iterdir()} == {"models", "published", "dist", "report.html", config.name}
    return session


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("draft", EXAMPLES)
def test_examples(draft: str, width: int, folder: Path, request: pytest.FixtureRequest) -> None:
    session = built(folder, width, f"models/target {EXAMPLES[draft]}")
    option = f" --draft {EXAMPLES[draft]}" if EXAMPLES[draft] else ""
    prompt = "--prompt 'def main():' --max-new-tokens 16 --check"
    session.type(f"specc run dist/*.whl --target models/target{option} {prompt}")
    assert "identical to generate: yes" in session.text
    compare(session, draft, request.config.getoption("--update-golden"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("models", PUBLISHED)
def test_published(models: str, width: int, folder: Path, request: pytest.FixtureRequest) -> None:
    session = built(folder, width, PUBLISHED[models])
    compare(session, models, request.config.getoption("--update-golden"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("engine", ENGINES)
def test_servers(engine: str, width: int, folder: Path, request: pytest.FixtureRequest) -> None:
    """What `init` says of them fits the terminal, but for the commands that are copied."""
    session = Session(folder, width)
    for name, models in SERVERS.items():
        session.type(f"specc init {models.format(head=ENGINES[engine])} --engine {engine} -o {name}.yaml")
        transcript = session.text.rpartition("$ specc init")[2].splitlines()[1:]
        assert [line for line in transcript if len(line) > width and not line.startswith(COPIED)] == []
        session.type(f"specc check {name}.yaml")
    session.show("standalone.yaml")
    compare(session, engine, request.config.getoption("--update-golden"))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_broken(width: int) -> None:
    """A column of figures has none that ends in three points or goes on below: commas stand before three digits."""
    for path in TRANSCRIPTS.glob(f"*.{width}.txt"):
        for line in path.read_text().splitlines():
            assert not re.search(r"\d…|\d,\d{1,2}(?!\d)|(?:^|\s),\d", line), (path.name, line)


def test_every_transcript_has_its_test() -> None:
    wanted = {f"{name}.{width}.txt" for name in (*EXAMPLES, *PUBLISHED, *ENGINES) for width in WIDTHS}
    assert {path.name for path in TRANSCRIPTS.iterdir()} == wanted


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """But those that are copied: commands, paths and packages, and lines of files; and findings, each of one line."""
    for path in TRANSCRIPTS.glob(f"*.{width}.txt"):
        for command in path.read_text().split("$ specc ")[1:]:
            shown = command.split("$ cat ")[0].splitlines()[1:]
            wide = [
                line
                for line in shown
                if len(line) > width and not line.startswith(("wrote ", "ok: ", "warning[", "package ", *COPIED))
            ]
            assert wide == [], path.name
