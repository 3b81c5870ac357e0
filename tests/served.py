"""What people serve, and what `specc sglang check` and `specc vllm check` say of it.

`tests/published/served` has the command lines and the configurations of their models. Run as a program, by `make
coverage`, this prints a line for each, every reason of a refusal, and the totals.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from typer.testing import CliRunner

from specc.cli.main import app

PUBLISHED = Path(__file__).resolve().parent / "published"
SERVED = PUBLISHED / "served"
COUNTED = range(1, 26)
"""The rows of the totals."""
ENGINES = ("sglang", "vllm")
MODEL = re.compile(r"@([\w./-]*\w)")
GREEDY = {"sglang": (), "vllm": ("--verify", "greedy")}
"""Options of a check for greedy requests alone."""
EVERYTHING = "top_k,top_p,min_p,penalties,logit_bias,grammar"
DRAWN = {
    "sglang": ("--verify", "target_only", "--sampling", EVERYTHING, "--outputs", "logprobs"),
    "vllm": ("--verify", "target_only"),
}
"""Options of a check for those that draw, too."""
HOW = re.compile(r'--speculative-algorithm (\w+)|"method": ?"(\w+)"|config\.method (\w+)')
REFUSAL = re.compile(r"^error\[[\w/-]+\]: (.*)", re.MULTILINE)
WHO = re.compile(r"^with (SGLang|vLLM) [\d.]+, ")


@dataclass(frozen=True)
class Served:
    """A server that people start.

    Attributes:
        row: which model of the list it is.
        engine: `sglang` or `vllm`.
        gpu: by its name.
        mark: `first` if the engine's own page recommends it first, else `also`.
        command: its words, as one text; ``@NAME`` is a model.

    """

    row: int
    engine: str
    gpu: str
    mark: str
    command: str

    @property
    def models(self) -> list[str]:
        """The target, and a draft that is named."""
        return list(dict.fromkeys(MODEL.findall(self.command)))

    @property
    def how(self) -> str:
        """How drafts are made, in the engine's own word."""
        found = HOW.search(self.command)
        return next(filter(None, found.groups())) if found else "by the draft's class"

    def __str__(self) -> str:
        """The row, models, how drafts are made, GPU and mark: for the names of tests."""
        return f"{self.row}: {' '.join((*self.models, self.how, self.gpu, self.mark))}"

    def line(self, folder: str) -> str:
        """The command, whose models are named in a folder."""
        return MODEL.sub(lambda name: f"{folder}/{name[1]}", self.command)

    def words(self, folder: Path) -> list[str]:
        """The command's words, with models of a folder."""
        return shlex.split(self.line(str(folder)))


@dataclass(frozen=True)
class Said:
    """What a check says of a server.

    Attributes:
        reasons: why no program runs there; empty if one does.
        draws: whether one does that draws, too.
        algorithm: that of the configuration which the check has written; empty if there is none.

    """

    reasons: tuple[str, ...]
    draws: bool = False
    algorithm: str = ""

    def __str__(self) -> str:
        """In a few words."""
        if self.reasons:
            return "no: " + "; ".join(dict.fromkeys(self.reasons))
        return "yes, draws too" if self.draws else "yes, greedy alone"


def servers() -> list[Served]:
    """Return the list, in its order."""
    return [Served(**entry) for entry in yaml.safe_load((SERVED / "servers.yaml").read_text(encoding="utf-8"))]


def config_of(model: str) -> dict[str, Any]:
    """Return the configuration of a model."""
    return json.loads((_home(model) / "config.json").read_text(encoding="utf-8"))


def write_models(folder: Path) -> None:
    """Write the directories of all models of the list; heads of a part of the tokens have their map, and no weights."""
    for name in sorted({name for server in servers() for name in server.models}):
        shutil.copytree(_home(name), folder / name, dirs_exist_ok=True)
        config = config_of(name)
        part, tokens = config.get("draft_vocab_size"), _of_decoder(config)["vocab_size"]
        if part and part < tokens:
            chosen = torch.arange(part) * (tokens // part)
            save_file({"d2t": chosen - torch.arange(part)}, folder / name / "model.safetensors")


def ask(server: Served, folder: Path) -> Said:
    """Ask a check of a server whose models are in a folder. RuntimeError if the command fails by itself."""
    weighs = "probabilistic" in server.command  # then a program draws, whatever requests it is for
    reasons, algorithm = _checked(server, folder, () if weighs else GREEDY[server.engine])
    if reasons:
        return Said(reasons)
    return Said((), weighs or not _checked(server, folder, DRAWN[server.engine])[0], algorithm)


def ask_all(folder: Path) -> Iterator[tuple[Served, Said]]:
    """Write all models into a folder, and ask of every server of the list in its order."""
    write_models(folder)
    for server in servers():
        yield server, ask(server, folder)


def _checked(server: Served, folder: Path, options: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Why a server is refused, and the algorithm of what is written for it."""
    written = folder / f"{server.engine}.yaml"
    written.unlink(missing_ok=True)
    words = [server.engine, "check", "-o", str(written), "--name", "served", "--gpu", server.gpu, *options]
    done = CliRunner().invoke(app, [*words, "--", *server.words(folder)], env={"COLUMNS": "1000", "NO_COLOR": "1"})
    reasons = tuple(_short(reason, folder) for reason in REFUSAL.findall(done.stderr))
    if done.exit_code not in (0, 1) or (done.exit_code == 1) != bool(reasons):
        raise RuntimeError(f"{' '.join(words)} -- {server.command} ends with {done.exit_code}\n{done.output}")
    algorithm = "" if reasons else yaml.safe_load(written.read_text(encoding="utf-8"))["algorithm"]
    return reasons, algorithm


def _short(reason: str, folder: Path) -> str:
    """Return a reason without who refuses, and where models are."""
    return re.sub(r",? is not served$", "", WHO.sub("", reason.replace(f"{folder}/", "")))


def _home(model: str) -> Path:
    """The directory of a model: of the list alone, or of the published ones."""
    return SERVED / model if (SERVED / model).exists() else PUBLISHED / model


def _of_decoder(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that has the sizes of what writes tokens."""
    return config.get("text_config") or config.get("transformer_layer_config") or config


@dataclass(frozen=True)
class Ran:
    """Programs that have run in an engine itself.

    Attributes:
        target: the class of the target.
        algorithms: how drafts were made.
        test: the file of that engine's tests which compares texts.
        model: the file that says the class, from the project's root.

    """

    target: str
    algorithms: Sequence[str]
    test: str
    model: str


@cache
def ran() -> dict[str, list[Ran]]:
    """Return by engine what has run there."""
    listed = yaml.safe_load((SERVED / "ran.yaml").read_text(encoding="utf-8"))
    return {engine: [Ran(**entry) for entry in entries] for engine, entries in listed.items()}


def has_run(server: Served, said: Said) -> bool:
    """Whether a program of this kind has run in the engine: for a target of that class, with drafts made so."""
    target = config_of(server.models[0])["architectures"][0]
    return any(entry.target == target and said.algorithm in entry.algorithms for entry in ran()[server.engine])


def row_of(server: Served, said: Said) -> str:
    """Return the row of the page's table."""
    run = "" if said.reasons else ("run" if has_run(server, said) else "said")
    target, *drafts = (f"`{name}`" for name in server.models)
    drafted = f" with {drafts[0]}" if drafts else ""
    where = f"{server.engine}, {server.gpu}{'' if server.mark == 'first' else ', also'}"
    return f"| {server.row} | {target}{drafted} | {server.how} | {where} | {said} | {run} |"


def totals(answers: Sequence[tuple[Served, Said]]) -> Iterator[str]:
    """Return of each engine how many rows are served as first recommended, and of how many of them that has run."""
    for engine in ENGINES:
        of = [pair for pair in answers if pair[0].engine == engine and pair[0].row in COUNTED]
        first = {server.row: (server, said) for server, said in of if server.mark == "first" and not said.reasons}
        run = sum(has_run(*pair) for pair in first.values())
        rows = len({server.row for server, _ in of})
        yield f"{engine}: {len(first)} of {rows} served as first recommended, {run} of a kind that has run there"


def main() -> None:
    """Ask of every server, and print what is said."""
    answers: list[tuple[Served, Said]] = []
    with TemporaryDirectory() as name:
        for answer in ask_all(Path(name)):
            answers.append(answer)
            print(row_of(*answer), flush=True)
    print(*totals(answers), sep="\n")


if __name__ == "__main__":
    main()
