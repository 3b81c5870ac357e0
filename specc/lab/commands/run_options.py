"""The options of `specc run`, under headings: what runs, on which prompts, how tokens are drawn, and what is shown."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specc.cli.reporting import Format


class Device(StrEnum):
    """Where models and program run."""

    cpu = "cpu"
    cuda = "cuda"


_MODELS, _PROMPTS, _DRAWING, _FORM, _SHOWN = "Models", "Prompts", "Drawing", "Form of the text", "What is shown"
"""Headings of options in `--help`."""

TargetOption = Annotated[Path, typer.Option(help="Directory of the target model.", rich_help_panel=_MODELS)]
DraftOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the draft model, if the program has one; by default the target's own module.",
        rich_help_panel=_MODELS,
    ),
]
CorpusOption = Annotated[
    Path | None, typer.Option(help="A text file that the program looks drafts up in.", rich_help_panel=_MODELS)
]
TokenMapOption = Annotated[
    Path | None, typer.Option(help="The tokens that the draft scores, if only this says.", rich_help_panel=_MODELS)
]
DeviceOption = Annotated[
    Device | None, typer.Option(help="Where to run. Default: the GPU if there is one.", rich_help_panel=_MODELS)
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Draft this shape in every step, of a program for several: 3, or 5x4x24 for a tree.",
        rich_help_panel=_MODELS,
    ),
]
StepTimesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Choose shapes by the times of specc tune --shapes. Default: those measured first, on a GPU.",
        rich_help_panel=_MODELS,
    ),
]
PromptOption = Annotated[list[str] | None, typer.Option(help="A prompt; may be repeated.", rich_help_panel=_PROMPTS)]
PromptsOption = Annotated[
    Path | None, typer.Option(help="A file of prompts: a line each, a JSON list, or JSONL.", rich_help_panel=_PROMPTS)
]
ContextOption = Annotated[
    int | None, typer.Option(min=1, help="Most tokens of prompt and completion.", rich_help_panel=_PROMPTS)
]
TokensOption = Annotated[int, typer.Option(min=1, help="Most new tokens per prompt.", rich_help_panel=_FORM)]
StopOption = Annotated[
    list[str] | None, typer.Option(help="End a completion here; may be repeated.", rich_help_panel=_FORM)
]
SchemaOption = Annotated[
    str | None, typer.Option(metavar="FILE|TEXT", help="Write JSON of this schema.", rich_help_panel=_FORM)
]
RegexOption = Annotated[
    str | None, typer.Option(help="Write what matches this regular expression.", rich_help_panel=_FORM)
]
TemperatureOption = Annotated[
    float,
    typer.Option(help="Draw tokens at this temperature; 0 takes the most probable ones.", rich_help_panel=_DRAWING),
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Of the randomness of every prompt; by default each has its own.", rich_help_panel=_DRAWING),
]
TopKOption = Annotated[
    int, typer.Option(help="Draw from so many most probable tokens; 0 from all.", rich_help_panel=_DRAWING)
]
TopPOption = Annotated[
    float, typer.Option(help="Draw from the most probable tokens that have this share.", rich_help_panel=_DRAWING)
]
MinPOption = Annotated[
    float, typer.Option(help="Draw from tokens at least this times as probable as the best.", rich_help_panel=_DRAWING)
]
RepetitionOption = Annotated[
    float,
    typer.Option(
        help="Divide positive logits of tokens in prompt or output by it, multiply the others.",
        rich_help_panel=_DRAWING,
    ),
]
FrequencyOption = Annotated[
    float, typer.Option(help="Less for every time that a token is in the output.", rich_help_panel=_DRAWING)
]
PresenceOption = Annotated[
    float, typer.Option(help="Less for tokens that are in the output.", rich_help_panel=_DRAWING)
]
BiasesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TOKEN:NUMBER", help="Add to a token's logit; may be repeated.", rich_help_panel=_DRAWING),
]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Print every token's log-probability, and those of so many best tokens.",
        rich_help_panel=_SHOWN,
    ),
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Compare with the target's own greedy text.", rich_help_panel=_SHOWN)
]
StreamOption = Annotated[
    bool | None, typer.Option(help="Print tokens as they come (one prompt only).", rich_help_panel=_SHOWN)
]
MetricsOption = Annotated[
    Path | None, typer.Option(help="Write Prometheus metrics of the run to this file.", rich_help_panel=_SHOWN)
]
FormatOption = Annotated[Format, typer.Option(help="How to print results.", rich_help_panel=_SHOWN)]
