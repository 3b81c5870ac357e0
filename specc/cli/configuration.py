"""Loading a configuration for a command: with the installed algorithms, and so that findings can show its lines.

It is a file, standard input, or the one that a compiled program was made of.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specc.cli import completion
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.runtime.plan.shape import Shape, listed, named

if TYPE_CHECKING:
    from specc.cli.inspect import Opened
    from specc.cli.reporting import Report
    from specc.compiler.config import LoadedConfig
    from specc.compiler.driver.build import Build
    from specc.compiler.explain.shapes import Choices
    from specc.runtime.plan.plan import Model, Plan

STDIN = Path("-")
"""What stands for standard input."""

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The YAML file; - for standard input.", show_default=False)
]
"""The argument of a command that makes something of a configuration."""
SubjectArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG|PROGRAM",
        help="The YAML file; - for standard input; or a program, for its configuration: a .whl file or a package.",
        show_default=False,
        autocompletion=completion.program,
    ),
]
"""The argument of a command that tells of a configuration."""
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Serving engine instead of the configuration's.",
        autocompletion=completion.engine,
    ),
]
"""The option of every command that loads a configuration to compile it."""
ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--shape", metavar="NAME", help="Which shape, of several: 3, or 5x4x24 for a tree. Default: the deepest."
    ),
]
"""The option of commands that show one of several shapes."""
ChoiceTimesOption = Annotated[
    Path | None,
    typer.Option(
        "--step-times", metavar="FILE", help="Say which batch has which shape by the times of specc tune --shapes."
    ),
]
"""The option of commands that tell which shape a batch has."""


@dataclass(frozen=True)
class Subject:
    """A configuration; and of the program that it is of, if it is of one, plans by shape and machine code by kernel.

    ``code`` counts bytes, of all architectures together; None where there is no machine code.
    """

    loaded: LoadedConfig
    plans: Mapping[Shape, Plan] = field(default_factory=dict[Shape, "Plan"])
    made_by: str = ""
    code: Mapping[str, int] | None = None

    def compiled(self) -> tuple[Build, tuple[Diagnostic, ...]]:
        """What the compiler makes of it, and all warnings; one tells that the program was made otherwise."""
        from specc.compiler.driver.build import build_program

        build = build_program(self.loaded)
        if any(self.plans.get(built.shape) != built.plan for built in build.shapes if self.plans):
            message = "this specc makes another program of the configuration: what is told is not of the one given"
            hint = f"it was compiled by specc {self.made_by}; `specc inspect` tells of it"
            other = Diagnostic("run/other-program", message, hint=hint, severity="warning")
            return build, (*self.loaded.warnings, other)
        return build, self.loaded.warnings


def is_program(word: str) -> bool:
    """Whether a word is a program: a wheel, or, unless a file is called so, the name of a package."""
    file = os.path.exists(word) and not os.path.isdir(word)
    return word.endswith(".whl") or (word.isidentifier() and not file)


def load(path: Path, report: Report, engine: str | None = None) -> LoadedConfig:
    """Load the configuration at ``path``, for another engine if one is named, and let ``report`` know its text.

    Models that standard input names are looked for from the current folder. Raises DiagnosticError, and a usage error
    for an unknown engine.
    """
    from specc.compiler.algorithms import names, needs
    from specc.compiler.config import load_config, load_text

    wanted = _engine(engine)
    if path == STDIN:
        loaded = load_text(_standard_input(), Path("<stdin>"), names(), needs, wanted)
    else:
        loaded = load_config(path, names(), needs, wanted)
    report.know(loaded.sources, loaded.paths)
    return loaded


def load_subject(path: Path, report: Report, engine: str | None = None) -> Subject:
    """As `load`, also of a program; of its models counts what it was compiled for, wherever they are now."""
    if not is_program(str(path)):
        return Subject(load(path, report, engine))
    from specc.cli.inspect import opened

    wanted = _engine(engine)
    with opened(str(path)) as program, tempfile.TemporaryDirectory(prefix="specc-config-") as folder:
        loaded = _of_program(path, program, Path(folder), wanted)
        report.know(loaded.sources, loaded.paths)
        plans = program.plans if wanted in (None, program.manifest.engine) else {}
        return Subject(loaded, plans, program.manifest.specc, _machine_code(program))


def _of_program(path: Path, program: Opened, folder: Path, engine: str | None) -> LoadedConfig:
    """Load the configuration of a program, a tuning file by way of a folder; what is shown is where it is in it."""
    from specc.cli.inspect import CONFIG
    from specc.compiler.algorithms import names, needs
    from specc.compiler.config import load_text
    from specc.compiler.config.load import MAX_BYTES
    from specc.compiler.driver.wheel.build_wheel import TUNING
    from specc.runtime.plan.files.manifest import read_packaged

    settled = _settled(program.plans[max(program.plans)])
    if TUNING in program.manifest.files:
        settled["tuning"] = str(folder / TUNING)
        (folder / TUNING).write_text(read_packaged(program.root, TUNING))
    text = read_packaged(program.root, CONFIG, MAX_BYTES)
    return load_text(text, path / CONFIG, names(), needs, engine, settled)


def _machine_code(program: Opened) -> dict[str, int] | None:
    """Bytes of machine code by kernel, of all architectures together; None where a program has none."""
    code = Counter[str]()
    for artifact in program.manifest.artifacts:
        code[artifact.kernel] += program.sizes[artifact.file]
    return dict(code) or None


def _settled(plan: Plan) -> dict[str, Any]:
    """The keys of a configuration that its models decided when a program was compiled."""
    settled: dict[str, Any] = {role: _sizes(model, plan, role) for role, model in plan.models.items()}
    settled["options"] = dict(plan.options)
    if plan.kv.longest is not None:
        settled["context_length"] = plan.kv.longest
    target, draft = plan.models["target"], settled.get("draft")
    if draft is not None:
        draft["target_hidden_size"] = target.hidden_size
        draft["num_aux_layers"] = len(target.aux_layers) or None
        draft["token_map"] = "engine" if draft["vocab_size"] != target.vocab_size else None
        draft |= _corrections(plan)
    return settled


def _corrections(plan: Plan) -> dict[str, int]:
    """The keys of a draft's Markov head or selector: how wide its tables are, and how many candidates it has."""
    from specc.compiler.ir.ops.head import MARKOV
    from specc.compiler.ir.ops.lattice import CANDIDATES, SELECTOR

    ranks = {"markov_rank": MARKOV[0], "selector_rank": SELECTOR[0]}
    widths = {key: int(plan.inputs[name].axes[-1]) for key, name in ranks.items() if name in plan.inputs}
    return widths | ({"selector_top_k": plan.size(CANDIDATES)} if "selector_rank" in widths else {})


def _sizes(model: Model, plan: Plan, role: str) -> dict[str, Any]:
    """The keys of one model, None for paths."""
    from specc.compiler.config.resolved import TARGET_OUTPUTS
    from specc.compiler.ir.types import DTYPES

    sizes: dict[str, Any] = {"model": None}
    for key in ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "kv_layout", "vocab_size"):
        sizes[key] = getattr(model, key)
    sizes |= {"dtype": DTYPES[model.dtype].torch, "logits_dtype": DTYPES[model.logits_dtype].torch}
    if role in plan.kv_pools:
        sizes["kv_dtype"] = plan.kv_pools[role].dtype
    if model.aux_layers:
        layers = max(model.num_layers, *model.aux_layers)
        sizes |= {"aux_layers": [*model.aux_layers], "num_hidden_layers": layers}
    elif model.spec_width != model.hidden_size:
        sizes |= {"hc_mult": model.spec_width // model.hidden_size, "hidden_source": "hc_residual"}
    if role == "target":
        sizes |= {key: plan.dims[key] for key in TARGET_OUTPUTS.values() if key in plan.dims}
    return sizes


def _standard_input() -> bytes:
    """All of standard input; raises DiagnosticError for more than a configuration may be."""
    from specc.compiler.config.load import MAX_BYTES

    content = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        message = f"cannot read standard input: it is larger than {MAX_BYTES} bytes"
        raise DiagnosticError(Diagnostic("config/unreadable", message))
    return content


def _engine(name: str | None) -> str | None:
    """The engine of a name; a usage error for an unknown one."""
    from specc.compiler.config.presets import ENGINES

    if name is not None and name not in ENGINES:
        raise typer.BadParameter(f"unknown engine {name!r}; there are {', '.join(ENGINES)}", param_hint="--engine")
    return name


def shape_index(loaded: LoadedConfig, name: str | None) -> int:
    """Where a shape is among those of a configuration, the deepest being the first, which None stands for.

    Raises a usage error for a shape that is not there.
    """
    known = [shape.config.shape for shape in loaded.shapes()]
    return known.index(chosen_shape(known, name))


def chosen_shape(shapes: Iterable[Shape], name: str | None) -> Shape:
    """The shape of a name, None being the deepest; a usage error for one that is not there."""
    known = sorted(shapes)
    shape = known[-1] if name is None else named(known, name)
    if shape is None:
        raise typer.BadParameter(f"there is {listed(known)}, and not {name}", param_hint="--shape")
    return shape


def choices_among(subject: Subject, build: Build, times: Path | None) -> Choices:
    """The choice among the shapes of a configuration, with the step times of a file if there is one.

    Raises a usage error for times of a single shape, and DiagnosticError ``run/step-times``.
    """
    from specc.compiler.explain.shapes import choices_of

    plans = [built.plan for built in build.shapes]
    if times is None:
        return choices_of(plans, subject.code)
    if len(plans) == 1:
        raise typer.BadParameter("there is one shape, and nothing to choose", param_hint="--step-times")
    from specc.cli.times_file import times_in

    return choices_of(plans, subject.code, times_in(times, {plan.shape: plan.buckets for plan in plans}))


def words_of(option: str) -> list[str]:
    """What an option lists, with commas between."""
    return [word.strip() for word in option.split(",") if word.strip()]
