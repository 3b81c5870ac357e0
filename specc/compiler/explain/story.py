"""The story of a configuration: what was asked for, what the passes decided and why, and what is left to run.

What is left is the plan. The records here are of what a plan does not say; `document` makes JSON of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from specc.compiler.algorithms import algorithm
from specc.compiler.config import Config, LoadedConfig, ModelConfig
from specc.compiler.config.models import Fact
from specc.compiler.config.presets import PRESETS
from specc.compiler.config.schema import ConfigFile
from specc.compiler.driver.build import ShapeBuild
from specc.compiler.explain.shapes import Choices
from specc.compiler.pass_manager.pass_base import Choice, Context
from specc.compiler.passes.pipeline import PASSES
from specc.compiler.support.location import Location
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape

Value = int | str | bool | tuple[int | str, ...]

_SYMBOLS = {"topk": "K", "num_steps": "S", "num_draft_tokens": "N"}

_TOLD_ELSEWHERE = ("name", "target", "draft", "tables", "options")
"""Keys of a configuration that are no settings."""

_FOLLOWS = {
    "num_draft_tokens": "num_steps + 1",
    "max_requests": "the largest bucket",
    "logits_dtype": "dtype",
    "kv_dtype": "dtype",
    "context_length": "the target's model, and room for two steps",
    "aux_layers": "what the draft was trained on, or what such drafts usually read",
}
"""What the default of a key is taken from."""


@dataclass(frozen=True)
class ConfigValue:
    """A value of the configuration; ``origin`` is ``written``, ``default``, or what it follows from."""

    key: str
    symbol: str | None
    value: Value
    origin: str
    place: str | None


@dataclass(frozen=True)
class ModelStory:
    """One of the two models; ``model`` is its directory as written, None when all sizes are written out."""

    side: str
    model: str | None
    sizes: str
    settings: tuple[ConfigValue, ...]


@dataclass(frozen=True)
class RemarkStory:
    """A decision: what and why, where the configuration asked for it, and, where there was one, the choice as data."""

    message: str
    place: str | None
    choice: Choice | None


@dataclass(frozen=True)
class PassStory:
    """A pass that decided something; ``summary`` is what it is for."""

    name: str
    summary: str
    remarks: tuple[RemarkStory, ...]


@dataclass(frozen=True)
class Story:
    """Everything about one shape: its plan, and what a plan does not say.

    Attributes:
        plan: the program.
        summary: its algorithm in a line.
        form: ``chain`` or ``tree``.
        shapes: all that are compiled for, ascending.
        settings: keys outside the models.
        models: the target, and the draft where there is one.
        passes: what each pass decided.
        places: where the configuration asked for a carried field, by its name.
        of_shapes: of all shapes what each costs and which batch has which; None where that is not told.

    """

    plan: Plan
    summary: str
    form: str
    shapes: tuple[Shape, ...]
    settings: tuple[ConfigValue, ...]
    models: tuple[ModelStory, ...]
    passes: tuple[PassStory, ...]
    places: Mapping[str, str | None]
    of_shapes: Choices | None = None

    @property
    def shape(self) -> Shape:
        """The one that is told of."""
        return self.plan.shape

    def choices(self) -> Iterator[tuple[str, RemarkStory, Choice]]:
        """Every choice, with the name of its pass and its remark."""
        for pass_story in self.passes:
            for remark in pass_story.remarks:
                if remark.choice is not None:
                    yield pass_story.name, remark, remark.choice

    def about(self, node: str) -> dict[str, Choice]:
        """What passes chose about a node, by pass."""
        return {name: choice for name, _, choice in self.choices() if choice.of == node}


def tell(built: ShapeBuild, of_shapes: Choices | None = None) -> Story:
    """The story of a program, and of its shapes where there are several."""
    loaded, config = built.loaded, built.loaded.config
    return Story(
        plan=built.plan,
        summary=algorithm(config.algorithm).summary,
        form="chain" if config.chain else "tree",
        shapes=config.shapes,
        settings=_settings(loaded),
        models=tuple(_model(loaded, role, model) for role, model in config.models.items()),
        passes=_passes(loaded, built.ctx),
        places={name: _place(loaded, carry.location) for name, carry in built.module.carries.items()},
        of_shapes=of_shapes if len(config.shapes) > 1 else None,
    )


def _place(loaded: LoadedConfig, location: Location | None) -> str | None:
    """A location as text; None for the first key of the file, which stands for what is written nowhere."""
    return None if location is None or location == loaded.locations.key() else str(location)


def _settings(loaded: LoadedConfig) -> tuple[ConfigValue, ...]:
    """All keys but the models, and the name, which is told first; the algorithm's own ones last."""
    config = loaded.config
    values = {(key,): _value(config, key) for key in ConfigFile.model_fields if key not in _TOLD_ELSEWHERE}
    values |= {("tables", key): value for key, value in config.file.tables.model_dump().items()}
    values |= {("options", key): value for key, value in config.options.model_dump(mode="json").items()}
    return tuple(_setting(loaded, path, value) for path, value in values.items() if value is not None)


def _value(config: Config, key: str) -> Any:
    """What counts of a key, plain; of a tuning file where it is."""
    value = config.file.tuning if key == "tuning" else config.settled(key)
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _setting(loaded: LoadedConfig, path: tuple[str, ...], value: Value) -> ConfigValue:
    key, symbol = path[-1], _SYMBOLS.get(path[-1])
    if loaded.locations.written(*path):
        return ConfigValue(key, symbol, value, "written", _place(loaded, loaded.location(*path)))
    engine = loaded.config.file.engine
    if engine is not None and PRESETS[engine].settles(path, loaded.config.chain):
        return ConfigValue(key, symbol, value, f"engine {engine}", None)
    return ConfigValue(key, symbol, value, _FOLLOWS.get(key, "default"), None)


def _model(loaded: LoadedConfig, role: str, model: ModelConfig) -> ModelStory:
    """Sizes and where each comes from; last W, the width of the hidden states that this model hands over."""
    read = loaded.facts.get(role)
    facts = dict(read.facts) if read is not None else {}
    if read is not None and read.hands_over == model.hidden_source and model.hc_mult > 1:
        facts["hidden_source"] = Fact(model.hidden_source, f"model_type {read.model_type}")
    values = {field.name: getattr(model, field.name) for field in fields(model) if field.name != "model"}
    settings: list[ConfigValue] = []
    for key, value in values.items():
        if key in facts and not loaded.locations.written(role, key):
            origin, place = f"{model.model}/config.json: {facts[key].origin}", loaded.location(role, "model")
            settings.append(ConfigValue(key, None, value, origin, _place(loaded, place)))
        elif value is not None:
            settings.append(_setting(loaded, (role, key), value))
    factor = " * hc_mult" if model.spec_width != model.hidden_size else ""
    factor = " * number of aux_layers" if model.hidden_source == "aux" else factor
    origin = f"hidden_size{factor}, because hidden_source is {model.hidden_source}"
    place = next(setting.place for setting in settings if setting.key == "hidden_size")
    return ModelStory(
        role, model.model, model.sizes, (*settings, ConfigValue("spec_width", "W", model.spec_width, origin, place))
    )


def _passes(loaded: LoadedConfig, ctx: Context) -> tuple[PassStory, ...]:
    """Passes in order, without those that decided nothing."""
    remarks: dict[str, list[RemarkStory]] = {}
    for remark in ctx.remarks:
        remark_story = RemarkStory(remark.message, _place(loaded, remark.location), remark.choice)
        remarks.setdefault(remark.pass_name, []).append(remark_story)
    return tuple(
        PassStory(name, (PASSES[name].__doc__ or "").partition("\n")[0].replace("`", ""), tuple(of_pass))
        for name, of_pass in remarks.items()
    )
