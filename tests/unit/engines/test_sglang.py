"""What of the adapter for SGLang needs no SGLang: requests it does not serve, and how it is found."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_modules import request

from specc.engines import sglang as adapter
from specc.engines.sglang.requests import refusals as requests

VOCABULARY = 96


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [([7, 90, 1], None), ([7, 91, 1], "no room for a step"), ([], None), (None, "no lengths on the host")],
)
def test_why_attention_of_a_batch_cannot_be_planned(lengths: list[int] | None, reason: str | None) -> None:
    batch = SimpleNamespace(seq_lens_cpu=None if lengths is None else torch.tensor(lengths))
    assert requests.unplanned(batch, 90) == reason


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, None),
        ({"top_k": 20}, "sampling"),
        ({"regex": "a+"}, "a grammar"),
        ({"json_schema": "{}"}, "a grammar"),
        ({"presence_penalty": 0.5}, "penalties"),
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"min_new_tokens": 3}, "min_new_tokens"),
        ({"logit_bias": {"5": 1.0}}, "logit bias"),
        ({"custom_logit_processor": "code"}, "a custom logit processor"),
        ({"return_logprob": True}, "logprobs"),
        ({"return_hidden_states": True}, "hidden states"),
    ],
)
def test_why_a_request_is_not_served(asked: dict[str, Any], reason: str | None) -> None:
    req = request(**asked)
    assert requests.unserved(req, VOCABULARY) == reason
    req.sampling_params.top_k = 20
    assert requests.unserved(req, VOCABULARY) == reason, "what a request asks for does not change"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, None),
        ({"top_logprobs_num": 2}, "top logprobs"),
        ({"token_ids_logprob": [5]}, "top logprobs"),
        ({"regex": "a+"}, "logprobs with a grammar"),
        ({"frequency_penalty": 0.1}, "logprobs with penalties"),
        ({"logit_bias": {"5": 1.0}}, "logprobs with logit bias"),
        ({"top_k": 20}, None),
        ({"top_k": 20, "temperature": 0.9}, "logprobs with a temperature"),
        ({"top_k": 1, "temperature": 0.9}, None),
    ],
)
def test_log_probabilities_that_are_the_targets_own(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], reason: str | None
) -> None:
    """SGLang's are those of what it draws from, but for the temperature if it is told so."""
    built = ("temperature", "top_k", "frequency_penalty", "logit_bias", "grammar", "logprobs")
    monkeypatch.delenv("SGLANG_RETURN_ORIGINAL_LOGPROB", raising=False)
    assert requests.unserved(request(return_logprob=True, **asked), VOCABULARY, built) == reason
    assert requests.unserved(request(return_logprob=True, **asked), VOCABULARY, built[:-1]) == "logprobs"
    assert requests.unserved(request(**asked), VOCABULARY, built) is None
    if "top_logprobs_num" in asked:
        assert requests.unserved(request(return_logprob=True, **asked), VOCABULARY, built, 1) == reason
        assert requests.unserved(request(return_logprob=True, **asked), VOCABULARY, built, 2) is None
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "True")
    original = None if reason == "logprobs with a temperature" else reason
    assert requests.unserved(request(return_logprob=True, **asked), VOCABULARY, built) == original


@pytest.mark.parametrize("steps", [None, SimpleNamespace(refuses_unserved=False, name="served")])
def test_nobody_is_turned_away_unasked(steps: object) -> None:
    req = request(top_k=20)
    requests.turn_away(SimpleNamespace(draft_worker=SimpleNamespace(steps=steps)), req)
    assert req.to_finish is None


def test_turned_away_by_name() -> None:
    steps = SimpleNamespace(refuses_unserved=True, name="mine", unserved=lambda req: requests.unserved(req, VOCABULARY))
    scheduler = SimpleNamespace(draft_worker=SimpleNamespace(steps=steps))
    served, sampled = request(), request(top_k=20)
    for req in (served, sampled):
        requests.turn_away(scheduler, req)
    assert served.to_finish is None
    assert "mine does not serve sampling" in sampled.to_finish.message


def test_words_of_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, refused in (("sglang", False), ("refuse", True)):
        monkeypatch.setenv("SPECC_FALLBACK", word)
        assert requests.refuses_unserved() is refused
    monkeypatch.setenv("SPECC_FALLBACK", "maybe")
    with pytest.raises(RuntimeError, match="SPECC_FALLBACK is one of sglang, refuse, got 'maybe'"):
        requests.refuses_unserved()


def test_a_version_of_sglang_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang logs what a plugin raises; only the one that must run ends the process. Nothing is replaced."""
    package = sys.modules[adapter.__name__.rpartition(".")[0]]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["sglang.srt"], "plugins", sys.modules["sglang.srt.plugins"], raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.6.0")
    monkeypatch.setattr(package, "__version__", "0.1.0+p1", raising=False)
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    with pytest.raises(RuntimeError, match=r"^SGLang 0\.6\.0: .*eagle_worker_v2 has no EAGLEWorkerV2"):
        adapter.register()
    monkeypatch.setenv("SPECC_PROGRAM", "some_other_program")
    with pytest.raises(RuntimeError, match=r"0\.6\.0"):
        adapter.register()
    monkeypatch.setenv("SPECC_PROGRAM", package.__name__)
    with pytest.raises(SystemExit, match=rf"SPECC_PROGRAM={package.__name__}: SGLang 0\.6\.0: "):
        adapter.register()
