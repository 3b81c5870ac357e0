"""What two machines compare before anything moves between them."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import pytest
from fakes.plans import program_of
from programs import planned

from specc.compiler.algorithms import names, needs
from specc.runtime.errors import SchemaMismatchError
from specc.runtime.plan.plan import Plan
from specc.runtime.state.peer import check_peer, schema, schema_digest


def plan_of(algorithm: str = "EAGLE", **keys: Any) -> Plan:
    return planned(algorithm, **keys)[0]


def differences(own_plan: Plan, peer_plan: Plan) -> str:
    """What `check_peer` says of two plans; nothing if they agree, and so do their digests."""
    try:
        check_peer(schema(own_plan), schema(peer_plan))
    except SchemaMismatchError as error:
        assert schema_digest(own_plan) != schema_digest(peer_plan)
        return str(error)
    assert schema_digest(own_plan) == schema_digest(peer_plan)
    return ""


@pytest.mark.parametrize("algorithm", names())
def test_the_schema_is_json(algorithm: str) -> None:
    """It survives the way to a peer, and is what the digest is of."""
    plan = plan_of(algorithm)
    sent = json.loads(json.dumps(schema(plan)))
    assert sent == schema(plan)
    check_peer(schema(plan), sent)
    canonical = json.dumps(sent, sort_keys=True, separators=(",", ":"))
    assert schema_digest(plan) == hashlib.sha256(canonical.encode()).hexdigest()
    assert set(sent["carry"]) == set(plan.carry)
    assert set(sent["kv_pools"]) == ({"target", "draft"} if "draft" in plan.kv_pools else {"target"})
    assert set(sent["models"]) == ({"target", "draft"} if needs(algorithm).draft else {"target"})


def test_what_it_says() -> None:
    heads = {"num_kv_heads": 2, "head_dim": 16}
    assert schema(plan_of("EAGLE3", topk=2, num_draft_tokens=5, page_size=4, draft={"num_layers": 1})) == {
        "record_format": 1,
        "algorithm": "EAGLE3",
        "options": {},
        "page_size": 4,
        "draft_positions": "shifted",
        "carry": {
            "bonus": {"dtype": "i32", "shape": [], "limit": 96},
            "topk_p": {"dtype": "f32", "shape": [2], "limit": "1"},
            "topk_index": {"dtype": "i64", "shape": [2], "limit": 96},
            "hidden": {"dtype": "f32", "shape": [64], "limit": None},
            "seq_lens": {"dtype": "i64", "shape": [], "limit": "C"},
        },
        "kv_pools": {
            "target": {"layers": 2, "buffers": 2, "row_bytes": 128, "dtype": "float32"},
            "draft": {"layers": 1, "buffers": 2, "row_bytes": 128, "dtype": "float32"},
        },
        "models": {
            "target": {"vocab_size": 96, "spec_width": 128, **heads, "dtype": "f32", "aux_layers": [1, 2]},
            "draft": {"vocab_size": 96, "spec_width": 64, **heads, "dtype": "f32"},
        },
    }


@pytest.mark.parametrize(
    "own",
    [
        {"name": "other"},
        {"buckets": [3]},
        {"max_requests": 40},
        {"archs": ["sm_80", "sm_90"]},
        {"num_steps": 5},
        {"outputs": ["logprobs"]},
        {"disaggregation": True},
    ],
    ids=lambda own: next(iter(own)),
)
def test_what_is_each_sides_own(own: dict[str, Any]) -> None:
    assert differences(plan_of(), plan_of(**own)) == ""


TREE = {"topk": 2, "num_draft_tokens": 5}
WIDE = {"target": {"hidden_size": 128}, "draft": {"hidden_size": 128}}
HALF = {"target": {"dtype": "bfloat16"}, "draft": {"dtype": "bfloat16"}}
DIFFERENT: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": "STANDALONE"}, 'algorithm is "EAGLE" here, "STANDALONE" there'),
    ({"algorithm": "STANDALONE"}, 'carry.hidden is {"dtype":"f32","limit":null,"shape":[64]} here, absent there'),
    (TREE, 'carry.topk_p is absent here, {"dtype":"f32","limit":"1","shape":[2]} there'),
    (TREE, "carry.topk_index.shape is [1] here, [2] there"),
    (WIDE, "carry.hidden.shape is [64] here, [128] there"),
    (WIDE, "models.target.spec_width is 64 here, 128 there"),
    (HALF, 'carry.hidden.dtype is "f32" here, "bf16" there'),
    (HALF, 'models.draft.dtype is "f32" here, "bf16" there'),
    (HALF, "kv_pools.target.row_bytes is 128 here, 64 there"),
    ({"target": {"kv_dtype": "float16"}}, 'kv_pools.target.dtype is "float32" here, "float16" there'),
    ({"draft": {"num_layers": 3}}, "kv_pools.draft.layers is 2 here, 3 there"),
    ({"draft": {"kv_layout": "mla", "num_kv_heads": 1}}, "kv_pools.draft.buffers is 2 here, 1 there"),
    ({"draft": {"num_kv_heads": 4, "head_dim": 8}}, "models.draft.head_dim is 16 here, 8 there"),
    ({"page_size": 16}, "page_size is 1 here, 16 there"),
    ({"draft_positions": "true"}, 'draft_positions is "shifted" here, "true" there'),
    ({"overlap": False}, 'carry.seq_lens is {"dtype":"i64","limit":"C","shape":[]} here, absent there'),
    ({"target": {"vocab_size": 90}, "draft": {"vocab_size": 90}}, "models.target.vocab_size is 96 here, 90 there"),
]


@pytest.mark.parametrize(("keys", "expected"), DIFFERENT)
def test_what_differs_is_named(keys: dict[str, Any], expected: str) -> None:
    difference = differences(plan_of(), plan_of(**({"algorithm": "EAGLE"} | keys)))
    assert expected in difference.partition(": ")[2].split("; ")


def test_options_and_layers_count() -> None:
    lookups = [plan_of("NGRAM", options={"window": window}) for window in (64, 65)]
    assert "options.window is 64 here, 65 there" in differences(*lookups)
    heads = [plan_of("EAGLE3", target={"aux_layers": layers, "num_layers": 3}) for layers in ([1, 2], [1, 3])]
    assert differences(*heads).endswith(": models.target.aux_layers is [1,2] here, [1,3] there")


@pytest.mark.parametrize("junk", [None, [], "x", {}, {"carry": None}])
def test_a_peer_that_says_something_else(junk: Any) -> None:
    own_schema = schema(plan_of())
    with pytest.raises(SchemaMismatchError, match="there"):
        check_peer(own_schema, junk)
    changed = copy.deepcopy(own_schema)
    changed["carry"]["bonus"]["shape"] = [True]
    own_schema["carry"]["bonus"]["shape"] = [1]  # to Python the same
    with pytest.raises(SchemaMismatchError, match=r"carry\.bonus\.shape is \[1\] here, \[true\] there"):
        check_peer(own_schema, changed)


def test_programs_say_it() -> None:
    plan = plan_of()
    program = program_of(plan)
    assert (program.schema, program.schema_digest) == (schema(plan), schema_digest(plan))
