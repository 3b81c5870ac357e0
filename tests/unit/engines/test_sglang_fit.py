"""Which servers of SGLang a program fits, by the objects of one that has started, on stand-ins of its modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_modules import SETTINGS
from fakes.sglang_server import Server, adapter
from fakes.sglang_worker import IntelAMXAttnBackend, TritonAttnBackend
from programs import planned
from test_sglang_worker import DRAWS, FULL, QLEN, Serve, plan_of, serve

from specc.runtime.plan.shape import Shape

__all__ = ["serve"]
Change = Callable[[Server], object]


def misfits(server: Server) -> list[str]:
    return adapter("server.fit").misfits({server.plan.shape: server.plan}, server.worker)


def setting(part: str, name: str, value: object) -> Change:
    """The server was told something."""
    return lambda server: setattr(getattr(SETTINGS, part), name, value)


def config(role: str, name: str, value: object) -> Change:
    """The configuration of a model says something."""
    return lambda server: setattr(runner(server, role).model_config, name, value)


def runner(server: Server, role: str) -> Any:
    worker = server.worker
    return worker.target_worker.model_runner if role == "target" else worker.draft_worker.draft_runner


def of(role: str, name: str, value: object) -> Change:
    """The runner of a model has something."""
    return lambda server: setattr(runner(server, role), name, value)


def two_pools(*, kind: str = "MHATokenToKVPool", **others: object) -> Any:
    """SGLang's pool of two, with what else than gpt-oss's has."""
    pool = type("SWAKVPool", (), {})()
    both = {"full_kv_pool": type(kind, (), {})(), "swa_kv_pool": type(kind, (), {})()}
    usual = {"full_layer_nums": 2, "swa_req_ring_size": None, "full_to_swa_index_mapping": MAP}
    vars(pool).update(both | usual | others)
    return pool


MAP = torch.arange(9)
CHANGES: dict[str, Change] = {
    "num_steps is 3 in the program, 4 in the server": setting("spec", "speculative_num_steps", 4),
    "page_size is 1 in the program, 16 in the server": setting("schedule", "page_size", 16),
    "algorithm is EAGLE in the program, EAGLE3 in the server": setting("spec", "speculative_algorithm", "EAGLE3"),
    "pipeline parallelism (pp_size 2) is not served": setting("parallel", "pp_size", 2),
    "expert parallelism by all-to-all (moe_a2a_backend deepep) is not served": lambda server: setattr(
        SETTINGS.exec.moe, "moe_a2a_backend", "deepep"
    ),
    "expert parallelism of the draft by all-to-all (speculative_moe_a2a_backend mori) is not served": setting(
        "spec", "speculative_moe_a2a_backend", "mori"
    ),
    "hidden states that are scattered over ranks (moe_dense_tp_size 1) is not served": setting(
        "parallel", "moe_dense_tp_size", 1
    ),
    "a server that only prefills (disaggregation_mode prefill) is not served": setting(
        "disagg", "disaggregation_mode", "prefill"
    ),
    "the KV cache of the target, beside a PagedReqToTokenPool, is not served": lambda server: setattr(
        server.worker, "req_to_token_pool", type("PagedReqToTokenPool", (), vars(server.worker.req_to_token_pool))()
    ),
    "forward hooks (forward_hooks ['h']) is not served": setting("observability", "forward_hooks", ["h"]),
    "vocab_size of the target is 96 in the program, 128 in the server": config("target", "vocab_size", 128),
    "hidden_size of the draft is 64 in the program, 32 in the server": config("draft", "hidden_size", 32),
    "dtype of the target is f32 in the program, bf16 in the server": of("target", "dtype", torch.bfloat16),
    "recurrent state of the target is not served": config("target", "mamba", object()),
    "a KV pool of another kind for sliding windows of the target is not served": lambda server: (
        of("target", "sliding_window_size", 128)(server),
        of("target", "token_to_kv_pool", two_pools(kind="MLATokenToKVPool"))(server),
    ),
    "intel_amx attention over a second KV pool for sliding windows (draft) is not served": lambda server: [
        of(role, name, value)(server)
        for role, pool in zip(("target", "draft"), [two_pools()] * 2, strict=True)
        for name, value in {"sliding_window_size": 128, "token_to_kv_pool": pool}.items()
    ],
    "chunks of attention of the draft is not served": config("draft", "is_local_attention_model", True),
    "a canary of the KV pool (kv_canary running) is not served": of("draft", "canary_manager", object()),
    "LoRA with graphs of its own for batches without adapters (lora_backend triton_v2) is not served": (
        lambda server: setattr(server.worker.server_args, "lora_backend", "triton_v2")
    ),
    "flashmla attention over a KV cache of the layout mha (verify) is not served": lambda server: setattr(
        runner(server, "target"), "attn_backend", type("FlashMLABackend", (), {})()
    ),
    "the server keeps 7 requests, the program 6 (max_requests)": lambda server: setattr(
        server.worker.req_to_token_pool, "req_to_token", torch.zeros(8, 96, dtype=torch.int32)
    ),
    "the largest bucket is 4, the server captures graphs of up to 2 requests": lambda server: vars(
        runner(server, "target")
    ).update(device="cuda", decode_cuda_graph_runner=SimpleNamespace(capture_bs=[1, 2])),
}


@pytest.mark.parametrize(("misfit", "change"), CHANGES.items(), ids=list(CHANGES))
def test_what_does_not_fit_is_named(serve: Serve, misfit: str, change: Change) -> None:
    server = serve(plan_of("EAGLE"))
    assert misfits(server) == []
    change(server)
    problems = misfits(server)
    if "captures graphs" in misfit:  # attention of a CPU is not on a GPU
        problems = [problem for problem in problems if "intel_amx" not in problem]
    assert problems == [misfit]


def test_a_budget_is_for_attention_that_takes_packed_rows(serve: Serve) -> None:
    server = serve(plan_of("EAGLE", ("budget", 2)))
    assert misfits(server) == ["a budget of rows with intel_amx attention is not served"]


@pytest.mark.parametrize("simulating", [False, True])
def test_a_tree_with_a_budget_is_not_simulated(serve: Serve, monkeypatch: pytest.MonkeyPatch, simulating: bool) -> None:
    """A chain is, and a tree without a budget."""
    serve(plan_of("EAGLE"))
    fit = adapter("server.fit")
    monkeypatch.setattr(fit, "simulating", lambda: simulating)
    limited = Shape(3, 4, 12, 4)
    assert [bool([*fit._simulated([shape])]) for shape in (limited, Shape(3, 4, 12), Shape(3, 1, 4, 2))] == [
        simulating,
        False,
        False,
    ]


def test_a_plugins_program_in_the_place_of_what_sglang_is_told(serve: Serve) -> None:
    server = serve(plan_of("EAGLE"))
    server.plan = replace(server.plan, algorithm="SOBER", runs_as="EAGLE")
    assert misfits(server) == []
    setting("spec", "speculative_algorithm", "EAGLE3")(server)
    assert misfits(server) == ["algorithm is EAGLE in the program, EAGLE3 in the server"]


@pytest.mark.parametrize(
    "others", [{}, {"full_layer_nums": 0}, {"swa_req_ring_size": 128}, {"full_to_swa_index_mapping": torch.arange(9)}]
)
def test_two_pools_are_served_if_they_are_as_gpt_oss_has_them(serve: Serve, others: dict[str, object]) -> None:
    """Both models' with the map of the target's; here the draft's is another kind."""
    server = serve(plan_of("EAGLE"))
    for role, pool in (("target", two_pools()), ("draft", two_pools(**others))):
        of(role, "token_to_kv_pool", pool)(server)
    facts = adapter("server.facts").facts(server.worker)
    assert (facts.target.cache, facts.draft.cache == "swa") == ("swa", not others)


@pytest.mark.parametrize("name", ["speculative_accept_threshold_single", "speculative_accept_threshold_acc"])
def test_thresholds_are_in_the_way_of_drawing_alone(serve: Serve, name: str) -> None:
    for keys, expected in (((), []), (DRAWS, [f"{name} is 0.5: drafts are accepted as the target samples"])):
        server = serve(plan_of("EAGLE", *keys))
        setattr(SETTINGS.spec, name, 0.5)
        assert misfits(server) == expected


def test_a_step_may_start_before_the_two_that_end_a_text_are_known_to(serve: Serve) -> None:
    """A mask is as long as a text may be, which each of two steps may have made A tokens longer."""
    plan = plan_of("EAGLE", *FULL)
    steps = 2 * (plan.size("S") + 1)
    assert plan.kv.longest == 88
    assert misfits(serve(plan, attention=TritonAttnBackend, context=88 - steps)) == []
    problems = misfits(serve(plan, attention=TritonAttnBackend, context=88 - steps + 1))
    assert problems == ["texts of the server, and two steps, have up to 89 tokens, context_length is 88"]


def test_masks_are_those_that_attention_reads(serve: Serve) -> None:
    for keys, attention, expected in (
        (QLEN, TritonAttnBackend, ["mask is qlen in the program, full in the server's attention backend"]),
        (QLEN, IntelAMXAttnBackend, []),
        (FULL, IntelAMXAttnBackend, ["mask is full in the program, qlen in the server's attention backend"]),
    ):
        assert misfits(serve(plan_of("EAGLE", *keys), attention=attention)) == expected


def test_slots_that_a_step_may_write_are_allocated(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(plan_of("EAGLE"))
    reserve = server.plan.kv.reserve
    for allocated, expected in (
        (reserve, []),
        (reserve - 1, [f"a step may write {reserve} slots of a request, the server allocates {reserve - 1}"]),
    ):
        monkeypatch.setattr(
            adapter("server.fit"), "get_alloc_reserve_per_decode", lambda allocated=allocated: allocated
        )
        assert misfits(server) == expected


def test_rows_that_are_moved_are_as_long_as_in_the_plan(serve: Serve) -> None:
    """Those of a tree's target; of a chain nothing is moved."""
    for keys, expected in (
        (QLEN, ["a slot of a layer of the target has 128 bytes in the program, 64 on a rank"]),
        ((), []),
    ):
        server = serve(plan_of("EAGLE", *keys))
        pool = runner(server, "target").token_to_kv_pool
        pool.k_buffer = [buffer[:, :16] for buffer in pool.k_buffer]
        assert misfits(server) == expected


def test_tokens_that_a_draft_scores_are_counted(serve: Serve) -> None:
    server = serve(plan_of("EAGLE", scored=48), scored=list(range(48)))
    assert misfits(server) == []
    server.worker.draft_worker.hot_token_id = torch.arange(47)
    assert misfits(server) == ["vocab_size of the draft is 48 in the program, 47 in the server"]


@pytest.mark.parametrize(("verify", "refused"), [("target_only", 0), ("rejection", 1), ("block", 1)])
def test_what_a_deterministic_server_emits_hangs_on_no_batch(serve: Serve, verify: str, refused: int) -> None:
    """As texts do where rows are shared out by what drafts are drawn from."""
    server = serve(plan_of("EAGLE", ("verify", verify), ("budget", 2)))
    before = misfits(server)
    SETTINGS.exec.deterministic.enable_deterministic_inference = True
    what = "a budget of rows with drafts that are drawn in a deterministic server is not served"
    assert [reason for reason in misfits(server) if reason not in before] == [what] * refused


def test_drafts_that_are_weighed_come_with_what_they_were_drawn_from(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From SGLang's steps as from the program's, which knows of the tokens that its draft scores."""
    weighed = ("verify", "rejection")
    server = serve(plan_of("EAGLE", weighed), speculative_use_rejection_sampling=True)
    assert misfits(server) == []
    seam = adapter("seam")
    monkeypatch.setitem(seam.MAY, seam.WEIGHED, "speculative.eagle_info.EagleDraftInput(nothing_of_the_kind)")
    assert misfits(server) == [f"this SGLang lacks something for it: {seam.WEIGHED}"]
    some = {"vocab_size": 48, "token_map": "engine", "head": "weights"}
    sizes = {"max_requests": 6, "buckets": [1, 2, 4], "target": {"vocab_size": 96}, "draft": some}
    plan = planned("EAGLE", engine="sglang", verify="rejection", **sizes)[0]
    message = "drafts that are drawn of tokens in a file are not served: SGLang's own are of all tokens"
    assert message in misfits(serve(plan))
    assert message not in misfits(serve(plan_of("EAGLE", weighed, scored=48), scored=list(range(48))))
