"""Generation settings of a model that change the greedy text of transformers' `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from specc.compiler.support.diagnostics import Diagnostic

CHANGE_GREEDY_TEXT = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "diversity_penalty": 0.0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "penalty_alpha": None,
    "remove_invalid_values": False,
    "repetition_penalty": 1.0,
    "sequence_bias": None,
    "stop_strings": None,
    "suppress_tokens": None,
    "watermarking_config": None,
}
"""Settings by name, and the values with which they change nothing; None is one for all of them."""


def ignored_settings(model: PreTrainedModel) -> list[Diagnostic]:
    """A warning that names the settings of a model which its greedy text does not follow here, if it has any."""
    ignored = [f"{name}: {value}" for name, value in _settings(model)]
    message = f"generation settings of the target are ignored: {', '.join(ignored)}"
    hint = (
        "texts are the greedy texts of the target's scores; `--check` compares with `generate` without these settings"
    )
    return [Diagnostic("run/ignored-settings", message, hint=hint, severity="warning")] if ignored else []


@contextmanager
def without_settings(model: PreTrainedModel) -> Iterator[None]:
    """Let `generate` add nothing of the model's own to the settings that it is given."""
    before: Any = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = before


def _settings(model: PreTrainedModel) -> Iterator[tuple[str, object]]:
    """The settings that change a model's greedy text, with their values."""
    for name, neutral in CHANGE_GREEDY_TEXT.items():
        value = getattr(model.generation_config, name, None)
        if value not in (None, neutral) and value != []:
            yield name, value
