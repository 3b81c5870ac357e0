"""`specc run`: generate text with a compiled program and real models.

Nothing heavy is imported before the command runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from specc.cli.configuration import chosen_shape
from specc.cli.inspect import ProgramArgument
from specc.cli.progress import progress
from specc.cli.reporting import Format, reporting
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.prompts import read_prompts, require_whole
from specc.compiler.support.files.reading import half_character, read_text
from specc.compiler.support.files.writing import write_output
from specc.lab.commands import run_options as options
from specc.lab.commands.printing import Printer
from specc.lab.commands.reference import require_engine, started

if TYPE_CHECKING:
    from specc.lab.engine.engine import Engine
    from specc.lab.engine.reference import Verdict
    from specc.lab.engine.serving.requests.request import Completion, Sampling, StopConditions
    from specc.runtime.plan.plan import Plan

EXAMPLES = {
    "run": (
        "specc run dist/program.whl --target models/target --draft models/draft --prompt 'def main():'",
        "specc run specc_program_chain --target models/target --draft models/draft --prompts prompts.json --check",
        "specc run specc_program_chain --target models/target --draft models/draft --prompt Hi --temperature 0.8",
    ),
}
"""What `--help` ends with."""


def run(
    program: ProgramArgument,
    target: options.TargetOption,
    draft: options.DraftOption = None,
    corpus: options.CorpusOption = None,
    token_map: options.TokenMapOption = None,
    device: options.DeviceOption = None,
    shape: options.ShapeOption = None,
    step_times: options.StepTimesOption = None,
    prompt: options.PromptOption = None,
    prompts: options.PromptsOption = None,
    max_context: options.ContextOption = None,
    max_new_tokens: options.TokensOption = 64,
    stop: options.StopOption = None,
    json_schema: options.SchemaOption = None,
    regex: options.RegexOption = None,
    temperature: options.TemperatureOption = 0.0,
    seed: options.SeedOption = None,
    top_k: options.TopKOption = 0,
    top_p: options.TopPOption = 1.0,
    min_p: options.MinPOption = 0.0,
    repetition_penalty: options.RepetitionOption = 1.0,
    frequency_penalty: options.FrequencyOption = 0.0,
    presence_penalty: options.PresenceOption = 0.0,
    logit_bias: options.BiasesOption = None,
    logprobs: options.LogprobsOption = None,
    check: options.CheckOption = False,
    stream: options.StreamOption = None,
    metrics: options.MetricsOption = None,
    format: options.FormatOption = Format.text,
) -> None:
    """Generate text with a compiled program.

    Texts go to standard output, and what is said of them to standard error.
    With --check, exit code 1 means that some text differs from what transformers' generate writes, near-ties apart.
    """
    with reporting(format) as report:
        texts = _prompts(prompt or [], prompts)
        _check_stops(stop or ())
        sampling = _sampling(
            check=check, temperature=temperature, seed=seed, top_k=top_k, top_p=top_p, min_p=min_p,
            repetition_penalty=repetition_penalty, frequency_penalty=frequency_penalty, regex=regex,
            presence_penalty=presence_penalty, logit_bias=_biases(logit_bias or ()), json_schema=_schema(json_schema),
        )  # fmt: skip
        console, notes = _console(), _console(stderr=True)
        stream = len(texts) == 1 and (console.is_terminal if stream is None else stream)
        printer = Printer(console, notes, texts, format, max_new_tokens, stream=stream, logprobs=logprobs)
        files = _RunInputs(target, draft, corpus, token_map, logprobs, step_times)
        with _wheel_package(program) as module:
            engine = _make_engine(module, files, device, printer, max_context=max_context, shape=shape)
            if printer.is_text:
                report.show(engine.warnings)
            completions = _generate(engine, texts, _conditions(engine, max_new_tokens, stop or ()), sampling, printer)
            if metrics is not None:
                _write_metrics(engine, metrics)
            verdicts = _check(engine, completions, max_new_tokens, printer.is_text) if check else []
        printer.finish(completions, verdicts, engine)
    if not all(verdict.right for verdict in verdicts):
        raise typer.Exit(1)


def _console(*, stderr: bool = False) -> Console:
    """A console that prints what it is given, as it is."""
    return Console(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)


@dataclass(frozen=True)
class _RunInputs:
    """What a program runs on, and is asked for, as given on the command line."""

    target: Path
    draft: Path | None
    corpus: Path | None
    token_map: Path | None
    logprobs: int | None
    times: Path | None

    def check(self, plan: Plan) -> None:
        """Raise BadParameter unless there is exactly what the program needs, and it hands out what is asked for."""
        if self.logprobs is not None and (plan.scores is None or self.logprobs > plan.scores):
            built = "without log-probabilities" if plan.scores is None else f"with best_logprobs: {plan.scores}"
            raise typer.BadParameter(f"the program was built {built}", param_hint="--logprobs")
        draft = self.draft or self.own_draft(plan)
        needs = {"--draft": ("draft" in plan.models, draft), "--corpus": ("corpus" in plan.tables(), self.corpus)}
        for option, (needed, given) in needs.items():
            if needed != (given is not None):
                raise typer.BadParameter(
                    f"the program {'needs' if needed else 'has no use for'} one", param_hint=option
                )

    def own_draft(self, plan: Plan) -> Path | None:
        """The target's directory, where the program drafts with a module that lies in it."""
        from specc.lab.engine.models.loading import brings_draft

        return self.target if "draft" in plan.models and brings_draft(self.target, plan) else None


def _prompts(given: Sequence[str], file: Path | None) -> list[str]:
    """Return all prompts: those of the command line, then those of the file. BadParameter where there are none."""
    require_whole(given, "the command line")
    texts = [*given, *(read_prompts(file) if file is not None else [])]
    if not texts:
        raise typer.BadParameter("give at least one --prompt, or --prompts FILE")
    return texts


def _check_stops(stops: Sequence[str]) -> None:
    """Raise typer.BadParameter for a stop string that is empty or no text."""
    if any(not stop or half_character(stop) is not None for stop in stops):
        problem = "a stop string must not be empty, nor have half of a character"
        raise typer.BadParameter(problem, param_hint="--stop")


def _wheel_package(name_or_path: str) -> Any:
    """Return a context that holds the generated package; DiagnosticError without the engine's libraries."""
    require_engine()
    from specc.lab.engine.wheel import package

    return package(name_or_path)


def _make_engine(
    module: Any,
    files: _RunInputs,
    wanted: options.Device | None,
    printer: Printer,
    *,
    max_context: int | None,
    shape: str | None,
) -> Engine:
    """Load program, models and corpus and bind them."""
    import torch

    from specc.cli.times_file import times_in
    from specc.lab.engine.models.loading import load_corpus, load_draft, load_target
    from specc.lab.engine.observe.step_times import choose_by_times, step_times
    from specc.lab.engine.wheel import load_program

    if shape is not None and files.times is not None:
        raise typer.BadParameter("the shape is chosen already, by --shape", param_hint="--step-times")
    has_gpu = torch.cuda.is_available() and not torch.version.hip
    if wanted is options.Device.cuda and not has_gpu:
        raise typer.BadParameter("this machine has no CUDA device", param_hint="--device")
    device = str(wanted or (options.Device.cuda if has_gpu else options.Device.cpu))
    with progress("loading the program", quiet=not printer.is_text):
        loaded = load_program(module, device)
    wanted_shape = None if shape is None else chosen_shape(loaded.plans, shape)
    files.check(loaded.plan)
    with progress("loading the target", quiet=not printer.is_text):
        target = load_target(files.target, loaded.plan, device)
    if target.tokenizer is None:
        message = f"the target model {str(files.target)!r} has no tokenizer"
        raise DiagnosticError(Diagnostic("run/model-unreadable", message, hint="add its tokenizer.json"))
    directory = files.draft or files.own_draft(loaded.plan)
    with progress("loading the draft", quiet=not printer.is_text):
        draft = None if directory is None else load_draft(directory, loaded.plan, target, files.token_map)
    tables = {} if files.corpus is None else {"corpus": load_corpus(files.corpus, target)}
    chosen: dict[str, Any] = {"max_context": max_context, "shape": wanted_shape, "on_token": printer.token}
    engine = started(loaded, target, draft, tables=tables, **chosen)
    if files.times is not None:
        choose_by_times(engine, times_in(files.times, engine.program.buckets))
    elif shape is None and len(loaded.plans) > 1 and device != options.Device.cpu:
        with progress("timing steps", quiet=not printer.is_text):
            choose_by_times(engine, step_times(engine))
    return engine


def _conditions(engine: Engine, max_new_tokens: int, stop: Sequence[str]) -> StopConditions:
    """Return when to stop: the model's own EOS tokens, and what was asked for."""
    from specc.lab.engine.serving.requests.request import StopConditions

    return StopConditions(max_new_tokens, engine.target.eos_token_ids, tuple(stop))


def _biases(given: Sequence[str]) -> dict[int, float]:
    """Read biases of tokens, ``17:-1.5`` each."""
    biases: dict[int, float] = {}
    for text in given:
        token, _, bias = text.partition(":")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise typer.BadParameter(
                f"a token and a number, as 17:-1.5, not {text!r}", param_hint="--logit-bias"
            ) from None
    return biases


def _schema(given: str | None) -> str | None:
    """Return a JSON schema that was given as its text, or as the name of a file that has it."""
    if given is None or given.lstrip().startswith(("{", "true", "false")):
        return given
    try:
        return read_text(Path(given))
    except (OSError, ValueError) as error:
        message = f"cannot read the JSON schema in {given!r}: {error}"
        raise DiagnosticError(Diagnostic("config/unreadable", message)) from error


def _sampling(*, check: bool, **parameters: Any) -> Sampling:
    """Return how tokens are drawn, as the target alone would where its text is compared."""
    from specc.lab.engine.serving.requests.request import Sampling, SamplingError

    try:
        sampling = Sampling(**parameters)
    except SamplingError as error:
        raise typer.BadParameter(str(error)) from error
    if check and not sampling.plain:
        problem = "only greedy texts can be compared, at temperature 0, without penalties and biases"
        raise typer.BadParameter(problem, param_hint="--check")
    return sampling


def _generate(
    engine: Engine, texts: Sequence[str], conditions: StopConditions, sampling: Sampling, printer: Printer
) -> list[Completion]:
    """Run all prompts, printing each completion when it finishes; results in the order of the prompts."""
    from specc.lab.engine.errors import GrammarError, RequestTooLongError
    from specc.lab.engine.serving.requests.request import SamplingError

    try:
        for number, text in enumerate(texts, 1):
            try:
                engine.add(text, conditions, sampling=sampling)
            except RequestTooLongError as error:
                raise typer.BadParameter(f"prompt {number}, {text[:20]!r}: {error}") from error
    except (GrammarError, SamplingError) as error:
        raise typer.BadParameter(str(error)) from error
    done: list[Completion] = []
    with progress("generating", len(texts), quiet=printer.stream or not printer.is_text) as shown:
        while engine.has_work:
            finished = engine.step()
            done += finished
            shown.advance(f"generating: {engine.stats.tokens} tokens", len(finished))
            if finished:
                with shown.hidden():
                    for completion in finished:
                        printer.completion(completion)
    return sorted(done, key=lambda completion: completion.request_id)


def _write_metrics(engine: Engine, file: Path) -> None:
    """Write what the engine has counted in Prometheus' text format; raises DiagnosticError where it cannot."""
    from specc.lab.engine.observe.metrics import Metrics

    write_output(file, Metrics(engine).text())


def _check(engine: Engine, completions: Sequence[Completion], max_new_tokens: int, shown: bool) -> list[Verdict]:
    """Run the target alone on every prompt and compare token by token; say how far that is if ``shown``."""
    from specc.lab.engine.reference import compare

    target, context = engine.target, engine.scheduler.max_context
    verdicts: list[Verdict] = []
    with progress("comparing with generate", len(completions), quiet=not shown) as line:
        for done in completions:
            most = min(max_new_tokens, context - len(done.prompt_ids))
            verdicts.append(compare(target, done, most, target.eos_token_ids))
            line.advance()
    return verdicts
