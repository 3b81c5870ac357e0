"""`engine: vllm`: the preset's defaults, what contradicts it, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from config.conftest import Model
from programs import compile_to, planned

from .engine_keys import LLAMA, TREE, findings, load


def test_the_defaults_are_those_of_vllm() -> None:
    for algorithm in ("STANDALONE", "EAGLE", "EAGLE3"):
        config = load(algorithm, "vllm", target={"vocab_size": 100}).config
        assert (config.file.engine, config.file.step, config.file.tables.slots, config.file.draft_positions) == (
            "vllm", "rotated", "block_table", "auto",
        )  # fmt: skip
        assert (config.file.overlap, config.file.disaggregation, config.max_requests) == (True, False, 1024)
        assert config.file.tables.padding_slot == -1
        assert config.target.padded_vocab_size == 128, "rows of logits are those of a padded head"
        assert {name: (place.dtype, place.written_by) for name, place in config.file.tables.carry.items()} == {
            "bonus": ("int64", "engine"), "drafts": ("int64", "engine"), "seq_lens": ("int32", "engine"),
            "text": ("int32", "program"), "draft_logits": (None, "program"),
        }  # fmt: skip


def test_blocks_of_models_with_recurrent_state() -> None:
    """They are so long that a state fits."""
    for engine in ("vllm", "sglang"):
        assert load("EAGLE", engine, page_size=528).config.file.page_size == 528


def test_look_ups_in_vllm(model: Model) -> None:
    """In whole texts, whose length the model says as it says it to vLLM; what lacks there is the last token."""
    target: dict[str, object] = {"model": str(model(**LLAMA))} | dict.fromkeys(("dtype", "vocab_size"), None)
    options = load("NGRAM", "vllm", target=target, options={"longest": 5}).config.options
    assert options.model_dump() == {"window": 4096, "longest": 5, "shortest": 1, "beyond": "last", "corpus": None}
    written = load("NGRAM", "vllm", target=target, options={"window": 640, "beyond": "last"}).config.options
    assert written.model_dump()["window"] == 640
    assert load("NGRAM", None).config.options.model_dump()["beyond"] == "period"
    loaded = load("NGRAM", "vllm", options={"window": 640})
    carries = compile_to("canonicalize", loaded).carries
    assert {name: (field.type.dtype, field.table) for name, field in carries.items()} == {
        "text": ("i32", "program"), "bonus": ("i64", "engine"),
        "seq_lens": ("i32", "engine"), "drafts": ("i64", "engine"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "keys", "refused"),
    [
        ("NGRAM", {}, ("config/missing-key", "add 'window:' under 'options:'")),
        (
            "NGRAM", {"options": {"window": 64, "corpus": "words.txt"}},
            ("config/engine-unsupported", "leave it out"),
        ),
        (
            "NGRAM", {"options": {"window": 64, "beyond": "period"}},
            ("config/engine-conflict", "write beyond: last, or leave the key out"),
        ),
        ("EAGLE", TREE, ("config/engine-unsupported", "write topk: 1")),
        ("EAGLE", {"archs": ["gfx942"]}, ("config/engine-unsupported", "leave it out")),
        ("EAGLE", {"outputs": ["logprobs"]}, ("config/engine-unsupported", "leave it out")),
        ("EAGLE", {"step": "whole"}, ("config/engine-conflict", "write step: rotated, or leave the key out")),
        (
            "EAGLE", {"tables": {"slots": "req_to_token"}},
            ("config/engine-conflict", "write slots: block_table, or leave the key out"),
        ),
        (
            "EAGLE", {"draft_positions": True},
            ("config/engine-conflict", "write draft_positions: auto, or leave the key out"),
        ),
        (
            "EAGLE", {"tensor_parallel": 2, "logits": "sharded"},
            ("config/engine-conflict", "write logits: gathered, or leave the key out"),
        ),
        (
            "EAGLE", {"verify": "rejection", "num_steps": [1, 3]},
            ("config/not-yet", "write one num_steps"),
        ),
        *(
            (
                "EAGLE", {"verify": "target_only", "sampling": [parameter]},
                ("config/engine-unsupported", "leave it out"),
            )
            for parameter in ("logit_bias", "grammar", "min_p")
        ),
        (
            "EAGLE3", {"draft": {"token_map": "engine", "vocab_size": 48}},
            ("config/engine-unsupported", "leave it out"),
        ),
    ],
)  # fmt: skip
def test_what_vllm_does_not_do(algorithm: str, keys: dict[str, object], refused: tuple[str, str]) -> None:
    assert [finding[:2] for finding in findings(algorithm, engine="vllm", **keys)] == [refused]


@pytest.mark.parametrize("drafts", ["greedy", "coupled"])
def test_a_program_that_draws_in_vllm(drafts: str) -> None:
    keys = {"verify": "target_only", "sampling": ["top_k", "top_p"], "draft_sampling": drafts}
    config = load("EAGLE", "vllm", **keys).config
    assert (config.file.verify, config.file.draft_sampling) == ("target_only", drafts)


def test_a_program_is_the_same_whatever_the_number_of_ranks() -> None:
    """But for what is said of the bytes of a rank's keys and values, which no program for vLLM touches."""
    heads = {"target": {"num_kv_heads": 2}, "draft": {"num_kv_heads": 2}}
    alone, paired = (
        planned("EAGLE", engine="vllm", page_size=16, tensor_parallel=ranks, **heads)[0] for ranks in (1, 2)
    )
    bytes_of = [{role: pool.row_bytes for role, pool in plan.kv_pools.items()} for plan in (alone, paired)]
    assert bytes_of[0] == {role: 2 * count for role, count in bytes_of[1].items()}
    assert not any(pool.bound for pool in alone.kv_pools.values())
    assert replace(paired, kv_pools=alone.kv_pools) == alone


def test_heads_of_keys_and_values_that_ranks_cannot_share_out() -> None:
    refused = findings("STANDALONE", engine="vllm", tensor_parallel=4, draft={"num_kv_heads": 3})
    assert [code for code, _, _ in refused] == ["legal/shards"]
    assert load("STANDALONE", "vllm", tensor_parallel=4, draft={"num_kv_heads": 2}).config.draft is not None


def test_a_published_head_of_some_tokens_in_vllm(model: Model) -> None:
    """Its scores are of all tokens there, -inf of those that it does not know: nothing is translated."""
    head = model("d", **LLAMA | {"draft_vocab_size": 48})
    keys = ("vocab_size", "dtype", "hidden_size", "num_layers", "num_kv_heads", "head_dim")
    block = {"model": str(head), "target_hidden_size": 64} | dict.fromkeys(keys)
    config = load("EAGLE3", "vllm", target={"vocab_size": LLAMA["vocab_size"]}, draft=block).config
    assert config.draft is not None
    assert (config.draft.vocab_size, config.draft.token_map) == (LLAMA["vocab_size"], None)


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "EAGLE3"])
def test_chains_of_several_depths_carry_the_drafts_of_the_deepest(algorithm: str) -> None:
    """Each verifies those of its own, and drafts for any: vLLM says before every step how many the next one has."""
    chains = [{"num_steps": 3}, {"num_steps": 0}, {"num_steps": 1}]
    for keys in ({"num_steps": [0, 1, 3]}, {"shapes": chains}):
        plans = planned(algorithm, engine="vllm", **keys)
        assert [str(plan.shape) for plan in plans] == ["3", "1", "0"]
        assert [(plan.size("A"), plan.size("S")) for plan in plans] == [(4, 3), (2, 3), (1, 3)]
        assert {plan.carry["drafts"].axes for plan in plans} == {("B", "S")}
        assert len({(plan.kv.reserve, plan.memory.relay) for plan in plans}) == 1
