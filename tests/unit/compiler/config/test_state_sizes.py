"""Sizes of a recurrent state that a program advances: those of the model, or written out."""

from __future__ import annotations

from typing import Any

import pytest
from programs import load as load_small
from programs import planned

from specc.compiler.config.models.states import RecurrentState
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.plan.recurrent.state_tables import FOLD, CommittedStates, StateTensor

from .conftest import Find, Load, Model
from .test_layers import config_of
from .test_models import TEXT

FOLDED = TEXT[: TEXT.index("draft:")].replace("STANDALONE", "NGRAM") + "  state_form: fold\n"
MODELS: dict[str, dict[str, Any]] = {
    "GDN": {
        "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_value_head_dim": 64,
        "linear_key_head_dim": 128, "linear_conv_kernel_dim": 4,
    },
    "KDA": {"linear_attn_config": {"num_heads": 8, "head_dim": 64, "short_conv_kernel_size": 4}},
    "Mamba-2": {"mamba_num_heads": 16, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 3},
}  # fmt: skip
STATES = {
    "GDN": RecurrentState("GDN", 32, 64, 128, 16, 4, None),
    "KDA": RecurrentState("KDA", 8, 64, 64, 8, 4, None),
    "Mamba-2": RecurrentState("Mamba-2", 16, 64, 128, 8, 3, None),
}
SMALL: dict[str, Any] = {"kind": "GDN", "heads": 4, "rows": 8, "columns": 16, "groups": 2, "kernel": 4}
BLOCK = "  state: {kind: GDN, heads: 32, rows: 64, columns: 128, groups: 16, kernel: 4}\n"


def written(model: Model, kind: str, **more: Any) -> None:
    """Write a hybrid model with a state of a kind."""
    model(**(config_of("no_such_interval") | MODELS[kind] | {"dtype": "bfloat16"} | more))


@pytest.mark.parametrize("kind", MODELS)
def test_sizes_are_the_models(load: Load, model: Model, kind: str) -> None:
    written(model, kind)
    target = load(FOLDED).config.target
    assert (target.state, target.state_form) == (STATES[kind], "fold")


def test_what_is_written_is_kept(load: Load, model: Model) -> None:
    written(model, "GDN")
    assert not [warning for warning in load(FOLDED + BLOCK).warnings if warning.code == "config/model-override"]
    loaded = load(FOLDED + BLOCK.replace("heads: 32", "heads: 16"))
    (warning,) = (warning for warning in loaded.warnings if warning.code == "config/model-override")
    assert "GDN, 16 float32 matrices of 64 x 128, 16 heads of keys, 4 taps" in warning.message
    assert "the model has GDN, 32 float32 matrices" in warning.notes[0].message
    assert loaded.config.target.state is not None
    assert loaded.config.target.state.heads == 16


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"linear_conv_kernel_dim": None}, "state_form is fold, and nothing says what the state is"),
        ({"linear_conv_kernel_dim": 1}, "a convolution of 1 tap keeps no inputs"),
        ({"linear_num_key_heads": 12}, "12 heads of keys do not share out 32 matrices"),
        ({"mamba_ssm_dtype": "float64"}, "matrices of float64 are none that a program advances"),
    ],
)
def test_states_that_no_program_advances(find: Find, model: Model, more: dict[str, Any], message: str) -> None:
    given = MODELS["GDN"] | more
    model(**(config_of("no_such_interval") | {key: value for key, value in given.items() if value is not None}))
    assert message in [finding.message for finding in find(FOLDED + "  dtype: bfloat16\n")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_states_of_16_bits_are_warned_of(load: Load, model: Model, dtype: str) -> None:
    written(model, "GDN", mamba_ssm_dtype=dtype)
    (warning,) = (warning for warning in load(FOLDED).warnings if warning.code == "legal/state-form")
    assert f"a state of {dtype} is rounded once a step" in warning.message
    assert warning.hint == "write state_form: select, which copies any state"


def test_ranks_have_their_share() -> None:
    target = {"state_layers": 3, "state_form": "fold", "state": SMALL, "dtype": "bfloat16"}
    ranks = {"logits": "sharded", "tensor_parallel": 2}
    (plan,) = planned("NGRAM", target=target, **ranks)
    keys = StateTensor("key", "f32", (1, 16))
    matrix = StateTensor(
        "matrix", "f32", (2, 8, 16), (StateTensor("decay", "f32", (2,)), keys, StateTensor("update", "f32", (2, 8)))
    )
    window = StateTensor("window", "bf16", (48, 3), (StateTensor("input", "bf16", (48,)),))
    assert CommittedStates.of(plan) == CommittedStates(FOLD, 3, 4, (matrix, window))
    with pytest.raises(DiagnosticError, match="2 heads of keys cannot be shared out over 4 ranks"):
        load_small("NGRAM", target=target, **(ranks | {"tensor_parallel": 4}))


def test_channels_may_decay_and_keys_be_of_16_bits() -> None:
    target = {"state_layers": 3, "state_form": "fold", "state": SMALL | {"kind": "KDA", "keys": "bfloat16"}}
    pool = CommittedStates.of(planned("NGRAM", target=target)[0])
    assert pool is not None
    decay, key, _ = pool.parts[0].records
    assert (decay, key) == (StateTensor("decay", "f32", (4, 16)), StateTensor("key", "bf16", (2, 16)))


@pytest.mark.parametrize("form", ["engine", "select"])
def test_programs_that_do_not_advance_states_say_nothing_of_them(form: str) -> None:
    (plan,) = planned("NGRAM", target={"state_layers": 3, "state_form": form})
    pool = CommittedStates.of(plan)
    assert pool == (None if form == "engine" else CommittedStates("state.select", 3, 4))
