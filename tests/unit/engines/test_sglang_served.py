"""What the adapter for SGLang serves of a server, and what it refuses, by facts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specc.compiler.config.models.states import GDN, KDA, MAMBA2
from specc.engines.sglang.check.server import roles
from specc.engines.sglang.kinds.assistants import ASSISTANTS
from specc.engines.sglang.served import (
    BACKENDS,
    CACHES,
    KINDS,
    ROLES,
    SETTINGS,
    STATES,
    Refusal,
    ServedModel,
    Server,
    refusals,
)
from specc.engines.sglang.served_settings import UNDER, served_under

LATENT, SPARSE = ServedModel(cache="mla"), ServedModel(cache="dsa")


def everywhere(backend: str) -> dict[str, str]:
    return dict.fromkeys(ROLES, backend)


def about(server: Server) -> list[str]:
    return [refusal.about for refusal in refusals(server)]


def test_nothing_is_in_the_way_of_a_server_of_which_nothing_is_known() -> None:
    assert list(refusals(Server())) == []


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_has_values_that_are_served(name: str) -> None:
    values, what = served_under()[name]
    served = values[0]
    assert all(about(Server(settings={name: value})) == [] for value in values)
    for value in (None, False) if served in (None, False) else (served,):  # SGLang has either for what is not there
        assert about(Server(settings={name: value})) == []
    unserved = {bool: True, int: 2}.get(type(served), "another")
    (refusal,) = refusals(Server(settings={name: unserved}))
    assert refusal == Refusal(name, what if unserved is True else f"{what} ({name} {unserved})")
    assert str(refusal).endswith("is not served")


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (ServedModel(window=True), []),
        (ServedModel(cache="swa", window=True), []),
        (
            ServedModel(cache="SWAKVPool of", window=True),
            ["a KV pool of another kind for sliding windows of the {side}"],
        ),
        (ServedModel(cache="SWAKVPool", window=True, chunk=True), ["chunks of attention of the {side}"]),
        (ServedModel(window=True, chunk=True), ["chunks of attention of the {side}"]),
        (ServedModel(cache="HybridLinearKVPool", state="unknown"), ["recurrent state of the {side}"]),
        (ServedModel(cache="PageMajorMHATokenToKVPool"), ["the KV cache of the {side}, PageMajorMHATokenToKVPool,"]),
        (ServedModel(), []),
        (LATENT, []),
        (SPARSE, []),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_models(role: str, model: ServedModel, what: list[str]) -> None:
    """A window, a chunk and a state explain the cache that SGLang keeps for them."""
    server = Server(target=model) if role == "target" else Server(draft=model)
    assert list(refusals(server)) == [Refusal(role, words.format(side=role)) for words in what]


@pytest.mark.parametrize("state", [*STATES, "LinearAttnBackend"])
@pytest.mark.parametrize("topk", [1, 4])
def test_states_that_are_served(state: str, topk: int) -> None:
    """Those of a target, under chains; no draft may keep one."""
    known, model = state in STATES, ServedModel(state=state)
    wanted = ["target"] if not known else ["topk"] if topk > 1 else []
    assert about(Server(target=model, topk=topk)) == wanted
    assert about(Server(target=ServedModel(), draft=model)) == ["draft"]
    assert Server(target=model).single == []


@pytest.mark.parametrize(("condition", "name"), [(under, name) for under, table in UNDER.items() for name in table])
def test_settings_that_count_under_a_condition(condition: str, name: str) -> None:
    """Their words say under which."""
    groups = 2 if condition == "under data parallelism" else 1
    cache = "qsa" if condition == "beside n-grams" else "mha"
    target = ServedModel(cache, state=next(iter(STATES)) if groups == 1 else "")
    (served, *_), what = served_under([condition])[name]
    unserved = True if served is False else "another"
    words = what if unserved is True else f"{what} ({name} {unserved})"
    assert words.removesuffix(f" ({name} {unserved})").endswith(condition)
    assert list(refusals(Server(target=target, groups=groups, settings={name: unserved}))) == [Refusal(name, words)]
    assert about(Server(target=target, groups=groups, settings={name: served})) == []


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, []),
        ({"kept_at_ends": True}, ["kept_at_ends"]),
        ({"candidates": (1, 3)}, ["candidates"]),
        ({"kind": next(kind for kind in KINDS if kind.blocks)}, ["enable_linear_replayssm_spec"]),
        ({"settings": {"enable_linear_replayssm_spec": True, "mamba_radix_cache_strategy": "extra_buffer_lazy"}}, []),
    ],
)
def test_what_rings_of_records_are_not_served_with(given: Any, refused: list[str]) -> None:
    """All of it is served where SGLang keeps states, or folds records at every commit."""
    target = ServedModel(state=GDN)
    assert about(Server(target=target, ring=16, **given)) == refused
    assert about(Server(target=target, **given)) == []


def test_states_have_the_names_by_which_models_are_read() -> None:
    assert STATES.keys() <= {GDN, KDA, MAMBA2}


@pytest.mark.parametrize("state", STATES)
def test_sglang_changes_numbers_of_steps_over_states_that_it_finds_again(state: str) -> None:
    """Those of Mamba-2 it leaves where a step of as many nodes would, and reads them where the longest one would."""
    hybrid = Server(ServedModel(cache="HybridLinearKVPool", state=state))
    assert about(replace(hybrid, candidates=(1, 3))) == ["candidates"] * (state == MAMBA2)
    assert about(hybrid) == []


@pytest.mark.parametrize("state", STATES)
def test_requests_have_adapters_beside_recurrent_state(state: str) -> None:
    """Under data parallelism they have none, and those that two servers share out none beside such a state."""
    lora: dict[str, Any] = {"adapters": True, "settings": {"enable_lora": True}}
    hybrid = Server(ServedModel(cache="HybridLinearKVPool", state=state), **lora)
    assert about(hybrid) == []
    assert about(replace(hybrid, groups=2)) == ["enable_lora"]
    assert about(replace(hybrid, settings={"disaggregation_mode": "decode"})) == ["disaggregation_mode"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, None),
        ({"attention": everywhere("fa3")}, None),
        ({"attention": {**everywhere("flashinfer"), "verify": "triton"}}, None),
        ({"attention": {**everywhere("fa3"), "verify": "flashinfer"}}, "flashinfer attention"),
        ({"target": LATENT}, f"a KV cache of the layout {LATENT.cache}"),
        ({"adapters": True}, "LoRA"),
        ({"groups": 2}, "attention under data parallelism"),
        ({"candidates": (1, 3)}, "adaptive speculation"),
        ({"settings": {"speculative_use_rejection_sampling": True}}, None),
        ({"settings": {"enable_deterministic_inference": True}}, None),
        (
            {"settings": {"enable_deterministic_inference": True}, "draws": True},
            "drafts that are drawn in a deterministic server",
        ),
        ({"settings": {"disaggregation_mode": "decode"}}, "two servers"),
    ],
)
def test_what_is_not_served_beside_a_budget_of_rows(given: Any, what: str | None) -> None:
    wanted = [] if what is None else [Refusal("budget", f"a budget of rows with {what}")]
    assert [refusal for refusal in refusals(Server(budget=True, **given)) if refusal.about == "budget"] == wanted
    assert not [refusal for refusal in refusals(Server(**given)) if refusal.about == "budget"]


@pytest.mark.parametrize("model", [LATENT, SPARSE])
def test_trees_over_latent_rows(model: ServedModel) -> None:
    assert about(Server(target=model, topk=4)) == ["topk"]
    assert about(Server(draft=model, topk=4)) == ["topk"]
    assert about(Server(target=ServedModel(), draft=ServedModel(), topk=4)) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_windows_are_for_chains_on_some_backends(backend: str) -> None:
    """Of either model; the others have what they had."""
    windowed, traits = ServedModel(window=True), BACKENDS[backend]
    if "mha" not in traits.caches:
        return
    given = {"attention": everywhere(backend), "device": traits.device}
    refused = [] if "verify" in traits.windows else ["attention verify"]
    assert about(Server(windowed, ServedModel(), **given)) == refused
    refused = [f"attention {role}" for role in ("draft", "extend") if role not in traits.windows]
    assert about(Server(ServedModel(), windowed, **given)) == refused
    if traits.mask is not None:
        assert "topk" in about(Server(windowed, ServedModel(), topk=4, **given))
        assert "topk" in about(Server(ServedModel(), windowed, topk=4, **given))
    assert {name: backend.windows for name, backend in BACKENDS.items() if backend.windows} == {
        "triton": ("verify",), "fa3": ROLES, "intel_amx": ROLES, "dsv4": ROLES, "trtllm_mha": ROLES,
    }  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cache", CACHES)
def test_a_backend_is_served_over_its_caches(backend: str, cache: str) -> None:
    model, traits = ServedModel(cache=cache, window=cache == "swa"), BACKENDS[backend]
    server = Server(model, model, attention=everywhere(backend), device=traits.device)
    served = [cache in traits.over(role, model) and not (model.window and role not in traits.windows) for role in ROLES]
    assert about(server) == [f"attention {role}" for role, there in zip(ROLES, served, strict=True) if not there]
    tree = Server(model, model, topk=4, attention=everywhere(backend), device=traits.device)
    trees = cache in traits.caches and traits.mask is not None and cache == "mha"
    assert (about(tree) == []) == trees
    assert tree.mask == traits.mask
    assert server.mask is None


def test_two_pools_of_a_draft_are_not_for_a_cpu() -> None:
    """SGLang's own step ends there: it looks none of the slots up that a draft's forwards write."""
    two = ServedModel(cache="swa", window=True)
    on_cpu = {"attention": everywhere("intel_amx"), "device": "cpu"}
    assert about(Server(two, ServedModel(), **on_cpu)) == []
    assert about(Server(two, two, **on_cpu)) == ["attention draft"]
    assert about(Server(two, two, attention=everywhere("fa3"))) == []
    assert about(Server(two, ServedModel(), attention=everywhere("triton"))) == []
    (refusal, *_) = refusals(Server(two, ServedModel(), attention=everywhere("flashinfer")))
    assert str(refusal) == "flashinfer attention over a second KV pool for sliding windows (verify) is not served"
    assert "topk" in about(Server(two, ServedModel(), topk=4, attention=everywhere("fa3")))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_assistant_reads_wherever_its_target_is_verified(backend: str) -> None:
    """A chain; it writes nothing, so that a second pool is in nobody's way. SGLang has no trees with windows."""
    two, traits = ServedModel(cache="swa", window=True), BACKENDS[backend]
    attention = dict.fromkeys(("draft", "verify"), backend)
    server = Server(two, ServedModel(), ASSISTANTS, attention=attention, device=traits.device)
    assert about(server) == ([] if "swa" in traits.caches else ["attention draft", "attention verify"])


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"topk": 4}, "a tree"),
        ({"groups": 2}, "data-parallel attention"),
        ({"adapters": True}, "LoRA"),
        ({"settings": {"disaggregation_mode": "decode"}}, "two servers"),
    ],
)
def test_what_is_not_served_with_an_assistant(given: Any, what: str) -> None:
    one = ServedModel()
    words = f"{what} with an assistant, which reads the target's keys and values, is not served"
    assert words in [str(refusal) for refusal in refusals(Server(one, one, ASSISTANTS, **given))]
    assert words not in [str(refusal) for refusal in refusals(Server(one, one, **given))]


def test_a_role_has_a_backend_of_its_own() -> None:
    """Over the cache of the model that it runs."""
    mixed = {"draft": "flashinfer", "verify": "fa3", "extend": "flashinfer"}
    assert about(Server(LATENT, ServedModel(), attention=mixed)) == []
    assert about(Server(ServedModel(), LATENT, attention=mixed)) == ["attention draft", "attention extend"]
    assert about(Server(ServedModel(), ServedModel(), attention=mixed | {"extend": "hpc_ops"})) == ["attention extend"]
    assert about(Server(ServedModel(), ServedModel(), attention=everywhere("intel_amx"))) == [
        f"attention {role}" for role in ROLES
    ]
    assert Server(ServedModel(), ServedModel(), topk=2, attention=mixed).mask == "slots"


def test_what_was_not_tried_is_named() -> None:
    assert Server(attention=everywhere("fa3")).untried == []
    assert Server(attention={"draft": "trtllm_mha", "verify": "fa4", "extend": "fa4"}).untried == ["trtllm_mha", "fa4"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("fa3", "fa3", None, "prefill"), ("fa3", "fa3", "fa3")),
        (("fa3", "triton", None, "prefill"), ("triton", "fa3", "fa3")),
        (("fa3", "triton", None, "decode"), ("triton", "triton", "triton")),
        (("fa3", "triton", "flashinfer", "prefill"), ("flashinfer", "fa3", "flashinfer")),
        (("fa3", "triton", "flashinfer", "decode"), ("flashinfer", "triton", "flashinfer")),
    ],
)
def test_who_runs_what(given: tuple[str, str, str | None, str], expected: tuple[str, str, str]) -> None:
    assert tuple(roles(*given)[role] for role in ROLES) == expected


def test_rows_of_a_shared_head() -> None:
    assert about(Server(ranks=2, head_rows=True)) == ["head_rows"]
    assert about(Server(ranks=1, head_rows=True)) == about(Server(ranks=2)) == []
