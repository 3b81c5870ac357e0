"""Faults in what is given from outside, planted: what servers, engines, shells, models and caches say."""

from __future__ import annotations

from typing import Any

import pytest

from specc.cli import completion
from specc.cli import doctor as doctor_module
from specc.compiler.config import proposal
from specc.compiler.config.models import hub
from specc.compiler.config.resolution import tuning
from specc.compiler.config.rules import draft_kind, shapes
from specc.compiler.pass_manager import options
from specc.engines.sglang.check import models as sglang_models
from specc.engines.sglang.check import speculation, written
from specc.engines.vllm.check import command_line
from specc.lab.measure.serving import answers, client
from specc.runtime.plan import token_map

from . import asked, commands, engines, maps, models, runner
from .test_planted import Patch, failures, taken


def any_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's counts are what Python makes numbers of."""
    monkeypatch.setattr(answers.Field, "count", lambda self, *_: int(self.value))


def more_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may have written more tokens than it was asked for."""
    count = answers.Field.count
    monkeypatch.setattr(answers.Field, "count", lambda self, most=0, least=0: count(self, answers.MOST_COUNTED, least))


def any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of a text is whatever it is."""
    monkeypatch.setattr(answers.Field, "text", lambda self: self.value)


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as anything comes, an answer is waited for."""
    monkeypatch.setattr(client._Patience, "go_on", lambda self: None)
    monkeypatch.setattr(client.asyncio, "timeout", lambda _: client.asyncio.Timeout(None))
    monkeypatch.setattr(runner, "CASE_SECONDS", 4)


SERVERS: dict[str, Patch] = {"counts": any_count, "more": more_tokens, "texts": any_text, "patient": patient}


@pytest.mark.parametrize("fault", SERVERS)
def test_servers(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SERVERS[fault](monkeypatch)
    assert failures("servers", 150)


def switched_by_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is off or on, whatever a shape is called."""
    module = engines.adapter("workers.internal_state")
    right = module.wanted

    def wanted(ours: Any, shapes: Any) -> Any:
        return ("off", "on")[ours["specc"]] if ours.get("specc") in (0, 1) else right(ours, shapes)

    monkeypatch.setattr(module, "wanted", wanted)


def known_by_any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that cannot be looked up."""
    monkeypatch.setattr(engines.Shapes, "knows", lambda self, name: name == "auto" or name in self._known)
    monkeypatch.setattr(engines.adapter("workers.internal_state"), "isinstance", lambda *_: True, raising=False)


def any_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has a length is a row."""
    monkeypatch.setattr(engines.adapter("handover"), "_is_row", lambda value, _: hasattr(value, "__len__"))


def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that were handed over are numbers."""
    monkeypatch.setattr(engines.adapter("handover"), "bool", lambda _: True, raising=False)


ENGINES: dict[str, Patch] = {
    "numbers": switched_by_numbers, "words": known_by_any_key, "rows": any_row, "values": any_number,
}  # fmt: skip


@pytest.mark.parametrize("fault", ENGINES)
def test_engines(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ENGINES[fault](monkeypatch)
    assert failures("engines", 1500)


def test_tunings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuning file may have no more values than somebody writes."""
    monkeypatch.setattr(tuning, "MAX_VALUES", 16)
    assert failures("tunings", 20)


def fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes for a token what can be made one."""
    monkeypatch.setattr(token_map, "read_listed_tokens", lambda path: [*map(int, token_map.listed(path.read_text()))])
    monkeypatch.setattr(maps, "read_listed_tokens", token_map.read_listed_tokens)


def uncaught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cache of the Hub says is text."""
    monkeypatch.setattr(hub, "ValueError", KeyError, raising=False)


def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft in the format of speculators has a class, like any other."""
    right = sglang_models.unread_draft

    def unread(values: Any, algorithm: str | None) -> str | None:
        return right({key: value for key, value in values.items() if key != "speculators"}, algorithm)

    monkeypatch.setattr(sglang_models, "unread_draft", unread)
    monkeypatch.setattr(speculation, "unread_draft", unread)


MODELS: dict[str, tuple[str, Patch]] = {
    "kinds": ("first", taken(draft_kind, "_OF_DRAFTING", draft_kind.re.compile("$^"))),
    "parts": ("served", taken(draft_kind, "_parts", lambda content: [("", content)])),
    "formats": ("served", formats),
    "types": ("served", taken(written, "forced_dtype", lambda target: None)),
    "lines": ("served", taken(proposal, "printable", lambda text: text)),
    "branch": ("cached", uncaught),
    "tokens": ("token_maps", fractions),
}


@pytest.mark.parametrize("fault", MODELS)
def test_models(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, plant = MODELS[fault]
    monkeypatch.setattr(models, "KINDS", {getattr(models, kind): 1})
    plant(monkeypatch)
    assert failures("models", 400)


def last_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option may be there twice."""
    right = options.parse_options
    monkeypatch.setattr(
        "specc.compiler.passes.pipeline.parse_options",
        lambda step, text: {key: value for pair in text.split(",") for key, value in right(step, pair).items()},
    )


ASKED: dict[str, tuple[str, Patch]] = {
    "ranges": ("options", taken(options.Range, "number", lambda _, word: int(word))),
    "flags": ("options", taken(options, "_value", lambda hint, word: word == "True" if hint is bool else word)),
    "twice": ("options", last_wins),
    "shells": ("completing", taken(completion, "unasked", lambda: None)),
    "shown": ("doctor", taken(doctor_module, "printable", lambda text: text)),
    "deep": ("joined", taken(command_line, "_is_deeper", lambda *_: False)),
}


@pytest.mark.parametrize("fault", ASKED)
def test_asked(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, plant = ASKED[fault]
    monkeypatch.setattr(asked, "KINDS", {getattr(asked, kind): 1})
    plant(monkeypatch)
    assert failures("asked", 100)


def test_names_of_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits of other alphabets."""
    monkeypatch.setattr(shapes, "_NAME", shapes.re.compile(r"\d{1,3}(x\d{1,3}x\d{1,3})?"))
    words = ("sglang", "check")
    kept = [each for each in commands.commands()[words] if each.param_type_name == "argument" or each.name == "shapes"]
    monkeypatch.setattr(commands, "commands", lambda: {words: kept})
    monkeypatch.setattr(commands, "_known", lambda *_: ("\uff13",))
    assert failures("commands", 300)
