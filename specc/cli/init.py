"""`specc init`: a first configuration for two model directories, with the algorithm that fits them."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from specc.cli import completion
from specc.cli.init_shapes import RateOption, ShapesOption, ShapesWanted, proposed
from specc.cli.progress import progress
from specc.cli.reporting import printing, reporting
from specc.cli.serving import DRAWN, GpuOption, gpu_named
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.writing import write_output
from specc.compiler.support.render import printable

if TYPE_CHECKING:
    from specc.cli.reporting import Report
    from specc.compiler.config import LoadedConfig, Pair
    from specc.compiler.config.models.pair import Described
    from specc.compiler.config.proposal import Drafted, Drafting, Key

STDOUT = Path("-")


_Target = Annotated[
    Path, typer.Argument(metavar="TARGET", help="Directory of the model whose text is wanted.", show_default=False)
]
_Draft = Annotated[
    Path | None,
    typer.Argument(
        metavar="DRAFT",
        help="Directory of the model that drafts; none for look-ups, or a module of the target's own.",
        show_default=False,
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Where to write, - for stdout. Default: NAME.yaml here."),
]
_Algorithm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The algorithm, instead of the one that fits.", autocompletion=completion.algorithm
    ),
]
_TopK = Annotated[
    int | None, typer.Option(min=1, max=16, help="Children kept per draft step; more than 1 is a tree. Default: 1.")
]
_Steps = Annotated[
    int | None, typer.Option(min=1, max=16, help="Draft steps. Default: what the draft was made for, or 3.")
]
_Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Write it for a server of this engine as people start it: its shape, batches and pages.",
        autocompletion=completion.engine,
    ),
]


def init(
    target: _Target,
    draft: _Draft = None,
    output: _Output = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    algorithm: _Algorithm = None,
    topk: _TopK = None,
    num_steps: _Steps = None,
    engine: _Engine = None,
    gpu: GpuOption = None,
    shapes: ShapesOption = None,
    rate: RateOption = None,
) -> None:
    """Write a configuration for a target and its draft, and say what was chosen and why."""
    if gpu is not None and engine is None and shapes is None:
        message = "it is the server's: give --engine or --shapes, or write archs: in the file"
        raise typer.BadParameter(message, param_hint="--gpu")
    line = _Line(output, force, algorithm, topk, num_steps, engine, gpu, shapes, rate)
    line.several.require_alone(topk, num_steps)
    with reporting() as report:
        from specc.compiler.config.proposal import name_of

        with progress("reading the models"):
            pair = _pair(target, draft)
            _require_order(pair, algorithm, line)
            chosen = _chosen(pair, algorithm, report)
        name = name_of(target, chosen.algorithm)
        path = Path(f"{name}.yaml") if output in (None, STDOUT) else output
        assert path is not None  # output is a path
        if output != STDOUT and not force and os.path.exists(path):  # of a name too long, `write_output` tells
            hint = "give --force to write over it, or -o FILE"
            raise DiagnosticError(Diagnostic("emit/exists", f"'{path}' is there already", hint=hint))
        if engine is None:
            text = _proposed(pair, chosen, name, path, _drafted(pair, chosen, line), report)
        else:
            text = _for_engine(engine, pair, chosen, name, path, line, report)
        if output == STDOUT:
            typer.echo(text, nl=False)
            return
        write_output(path, text)
        typer.echo(printable(str(path)))


def _drafted(pair: Pair, chosen: Drafting, line: _Line) -> Drafted:
    """What is drafted for an engine of one's own: the shapes that an estimate proposes, or the one that is given."""
    from specc.compiler.config.proposal import drafted_as

    if line.shapes is None:
        return drafted_as(chosen, line.topk or 1, line.num_steps)
    asked = line.several.asked(chosen, gpu_named(line.gpu), None)
    return proposed(pair, chosen, asked).drafted(chosen, asked)


def _proposed(pair: Pair, chosen: Drafting, name: str, path: Path, drafted: Drafted, report: Report) -> str:
    """A commented configuration for an engine of one's own, after saying what was chosen and why."""
    from specc.compiler.algorithms import names, needs
    from specc.compiler.config import load_text
    from specc.compiler.config.proposal import propose, text_of
    from specc.compiler.driver.compile import check_config

    keys = propose(pair, chosen, name, path.parent, drafted)
    text = text_of(keys)
    loaded = load_text(text, path, names(), needs)
    report.know(loaded.sources, loaded.paths)
    with progress("trying the configuration"):
        check_config(loaded)
    report.show(loaded.warnings)
    _say(keys, loaded)
    return text


def _for_engine(engine: str, pair: Pair, chosen: Drafting, name: str, path: Path, line: _Line, report: Report) -> str:
    """The configuration for a server of an engine's, after saying which that is, and what to type for both."""
    from specc.compiler.config.presets import ENGINES, PRESETS
    from specc.compiler.config.wanted import Wanted
    from specc.compiler.support.suggest import did_you_mean

    if engine not in ENGINES:
        message = f"no engine {engine!r} is known; {did_you_mean(engine, ENGINES)}"
        raise typer.BadParameter(message, param_hint="--engine")
    preset = PRESETS[engine]
    if chosen.algorithm not in preset.algorithms:
        message = f"with {preset.title}, {chosen.algorithm} is not served"
        hint = f"there are {', '.join(preset.algorithms)}; leave --engine out for an engine of your own"
        raise DiagnosticError(Diagnostic("config/engine-unsupported", message, hint=hint))
    server = _commands_of(engine)
    starts = server.launch()
    wanted = Wanted(name, "target_only", sampling=DRAWN)
    if line.shapes is not None:
        gpu = gpu_named(line.gpu, engine)
        asked = line.several.asked(chosen, gpu, starts.limits(pair, chosen, gpu))
        wanted = replace(wanted, proposed=proposed(pair, chosen, asked).shapes)
        words = starts.command_of(pair, chosen, wanted.proposed, gpu)
    else:
        try:
            words = starts.command(pair, chosen, line.topk, line.num_steps)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--topk") from error
    text = server.configured(words, line.gpu, wanted, path, report)
    if line.output != STDOUT:
        wheel = f"dist/specc_program_{name}-*.whl"
        wheel = wheel if gpu_named(line.gpu, engine).is_cpu else f'"$(echo {wheel})[cuda]"'
        built = f"{shlex.join(('specc', 'build', str(path)))} -o dist && pip install {wheel}"
        typer.echo(f"the program: {printable(built)}", err=True)
    typer.echo(f"the server: {printable(shlex.join(words))}", err=True)
    return text


def _commands_of(engine: str) -> Any:
    """The commands of an engine: a module with ``configured``, and ``launch``, which returns what starts servers."""
    from specc.cli.words import COMMANDS

    (point,) = entry_points(group=COMMANDS, name=engine)
    return point.load()


def _pair(target: Path, draft: Path | None) -> Pair:
    """Both directories, read.

    Raises:
        DiagnosticError: ``config/model-unreadable``, or ``init/which-algorithm`` for a draft that is no other model.

    """
    from specc.compiler.config import Pair
    from specc.compiler.config.models.hub import model_path

    described = _described(target)
    if draft is None:
        return Pair(described)
    other = _described(draft)
    if not model_path(draft).samefile(model_path(target)):
        return Pair(described, other)
    if (own := Pair(described)).modules is None:
        message = f"'{draft}' is the target itself, and its config.json says of no module that drafts"
        hint = "give the directory of a draft, or none for look-ups in the text"
        raise DiagnosticError(Diagnostic("init/which-algorithm", message, hint=hint))
    return own


def _described(directory: Path) -> Described:
    from specc.compiler.config.models import ModelUnreadableError, directory_of
    from specc.compiler.config.models.pair import describe

    try:
        return describe(directory_of(str(directory)), str(directory))
    except ModelUnreadableError as error:
        raise DiagnosticError(Diagnostic("config/model-unreadable", str(error), hint=error.hint)) from error


class _Line(NamedTuple):
    """The options of a command line, by the names of their arguments."""

    output: Path | None
    force: bool
    algorithm: str | None
    topk: int | None
    num_steps: int | None
    engine: str | None
    gpu: str | None
    shapes: str | None
    rate: float | None

    @property
    def several(self) -> ShapesWanted:
        """What is said of several shapes."""
        return ShapesWanted(self.shapes, self.rate)

    def text(self, *models: str) -> str:
        """The line to type for these models."""
        words = ["specc", "init", *models]
        for name, value in self._asdict().items():
            if value is not None and value is not False:
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return f"type: {printable(shlex.join(words))}"


def _require_order(pair: Pair, wanted: str | None, line: _Line) -> None:
    """Refuse a target that drafts for its draft, and a head of another algorithm than the wanted one.

    Raises:
        DiagnosticError: ``init/reversed`` or ``init/other-algorithm``, with the line to type instead.

    """
    from specc.compiler.algorithms import names
    from specc.compiler.algorithms.recognition import mistaken

    known = wanted.upper() if wanted is not None and wanted.upper() in names() else None
    wrong = mistaken(pair, known)
    if wrong is not None:
        line = line._replace(algorithm=wrong.algorithm or line.algorithm)
        models = filter(None, (wrong.pair.target, wrong.pair.draft))
        hint = line.text(*(model.written for model in models))
        raise DiagnosticError(Diagnostic(wrong.code, wrong.message, hint=hint))


def _chosen(pair: Pair, wanted: str | None, report: Report) -> Drafting:
    """The algorithm, and what drafts: the one that is wanted, or else the one that recognises the draft."""
    from specc.compiler.algorithms import algorithm, names, needs
    from specc.compiler.algorithms.recognition import recognise
    from specc.compiler.config import Fit
    from specc.compiler.config.proposal import Drafting
    from specc.compiler.support.suggest import did_you_mean

    if wanted is None:
        name, fit, warnings = recognise(pair)
        report.show(warnings)
        needed = needs(name)
    else:
        name = wanted.upper()
        if name not in names():
            message = f"no algorithm {wanted!r} is installed; {did_you_mean(wanted, names())}"
            raise typer.BadParameter(message, param_hint="--algorithm")
        needed = needs(name)
        fit = needed.recognises(pair) or Fit("--algorithm says so")
    draft = pair.draft
    if draft is not None and not needed.draft:
        raise typer.BadParameter(f"{name} has no draft model: leave it out", param_hint="DRAFT")
    if draft is None and needed.draft:
        draft = pair.modules if needed.modules is not None else pair.blocks if needed.target_hidden == "aux" else None
        if draft is None:
            raise typer.BadParameter(f"{name} drafts with a model: give its directory", param_hint="DRAFT")
    return Drafting(name, algorithm(name).summary, needed, fit, draft)


def _say(keys: list[Key], loaded: LoadedConfig) -> None:
    """Print on stderr what was chosen for these models and why, and of the models what was read."""
    from rich.table import Column, Table
    from rich.text import Text

    models = loaded.config.models
    with printing(err=True) as console:
        table = Table("", Column(overflow="fold"), box=None, show_header=False, pad_edge=False)
        for key in keys:
            if (model := models.get(key.name)) is not None:
                sentence = f"{model.model}: {model.sizes}"
            else:
                sentence = f"{key.value}: {key.why}"
            if model is not None or (key.why and key.value):
                table.add_row(Text(key.name, "bold"), Text(printable(sentence)))
        console.print(table)
