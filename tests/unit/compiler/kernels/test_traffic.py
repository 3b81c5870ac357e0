"""Bytes of a launch, beside what a person counts from docs/semantics.md."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from programs import load

from specc.compiler.driver.build import build_program
from specc.compiler.kernels.writing.traffic import Traffic
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.plan import Plan

MODEL = {"hidden_size": 16, "num_kv_heads": 1, "head_dim": 8, "vocab_size": 9000, "dtype": "bfloat16"}
MODELS: dict[str, Any] = {"target": MODEL, "draft": MODEL | {"num_layers": 1}, "buckets": [1, 4]}
CHAIN: dict[str, Any] = {**MODELS, "num_steps": 2}
TREE: dict[str, Any] = {**MODELS, "num_steps": 3, "topk": 2, "num_draft_tokens": 6}
ALONG_THE_PATH = {**TREE, "verify": "target_only", "verify_rows": "lazy"}
BLOCKS = {"step": "rotated", "tables": {"slots": "block_table"}}
ROW = 2 * 9000
"""Bytes of a row of logits."""


@cache
def _built(keys: str) -> Plan:
    return build_program(load(**json.loads(keys))).plan


def launch_of(name: str, **keys: Any) -> tuple[Traffic, Launch]:
    plan = _built(json.dumps(keys))
    (node,) = [node for node in plan.nodes("step") if isinstance(node, Launch) and node.name == name]
    return Traffic.of_plan(plan), node


def bytes_of(keys: dict[str, Any], name: str, rows: int, moved: int | None = None) -> int:
    traffic, node = launch_of(name, **keys)
    return traffic.launch(node.ops, rows, moved)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_draft_step(rows: int) -> None:
    """Which row, health, position and the chain of 4 tokens, the last three in and out; the token that is handed on."""
    small = 8 + 2 * 4 + 2 * 8 + 2 * 4 * 8 + 8
    assert bytes_of({**CHAIN, "num_steps": 3}, "draft_argmax_0", rows) == rows * (ROW + small)


def test_verification_reads_all_rows() -> None:
    small = 256 * 4
    assert 0 <= bytes_of(CHAIN, "verify_argmax", 4) - 4 * 3 * ROW <= small


@pytest.mark.parametrize("sampling", [["penalties"], ["penalties", "logit_bias"], ["logit_bias"], []])
def test_along_the_path_one_row_is_read_whatever_changes_it(sampling: list[str]) -> None:
    """Of 6 nodes one row; counts and bias are 4 bytes a token, three penalties 4 bytes each, in the request's row.

    In: health, rows, node, key and scale, key and scale of the next node; all nodes' tokens and parents. Out: health,
    token, the next node, row, key and scale.
    """
    given = (4 + 8 + 8 + 8 + 4) + (8 + 4) + 6 * (8 + 8)
    left = 4 + 4 + 8 + 8 + 8 + 4
    counts = ("penalties" in sampling) * (4 * 9000 + 3 * 4)
    bias = ("logit_bias" in sampling) * 4 * 9000
    rows = bool(sampling) * 8
    name = "verify_draw_0"
    assert bytes_of({**ALONG_THE_PATH, "sampling": sampling}, name, 4) == 4 * (
        ROW + given + left + counts + bias + rows
    )


def test_rows_at_once_are_all_changed() -> None:
    """Counts are read once, rows of all 6 nodes."""
    eager = {**ALONG_THE_PATH, "verify_rows": "eager", "sampling": ["penalties"]}
    assert 0 <= bytes_of(eager, "verify_draw", 4) - 4 * (6 * ROW + 4 * 9000) <= 4 * 512


@pytest.mark.parametrize(("verify", "nodes"), [("rejection", 1), ("block", 2)])
def test_what_is_left_reads_as_many_rows_of_drafts_as_of_the_target(verify: str, nodes: int) -> None:
    """Of 2 drafts one was drawn from carried logits; whichever are looked at, each is a row of either model's."""
    traffic, node = launch_of("verify_residual", **CHAIN, verify=verify)
    assert traffic.logits(node.ops, 4) == 4 * 2 * nodes * ROW
    assert 0 <= traffic.launch(node.ops, 4) - 4 * 2 * nodes * ROW <= 4 * 512


def test_compaction_reads_rows_of_the_path_alone() -> None:
    """S + 1 = 4 of 6 nodes, read and written, and the path; then keys and values of 2 layers, 16 bytes a row."""
    path, tokens = 4 * 4 * 4, 5
    values = 2 * 4 * 4 * 2 * 16
    slots, lengths = 4 * 6 * 8, 4 * 4
    assert bytes_of(TREE, "compact", 4, tokens) == path + values + slots + lengths + 2 * tokens * 2 * 2 * 16
    assert bytes_of(TREE, "compact", 4, 0) == path + values + slots + lengths
    assert bytes_of(TREE, "compact", 4) == bytes_of(TREE, "compact", 4, 4 * 3)


def test_compaction_of_rows_of_rows() -> None:
    """Routed experts are 2 layers of 3 for every node: 4 of 6 nodes are read and written."""
    experts = {**TREE, "target": MODEL | {"experts_per_token": 3}, "outputs": ["routed_experts"]}
    more = bytes_of(experts, "compact", 4, 0) - bytes_of(TREE, "compact", 4, 0)
    assert more == 2 * 4 * 4 * (2 * 3) * 4


def test_log_probabilities_read_rows_of_the_path() -> None:
    """4 of 6 rows, where they are scored behind the walk."""
    traffic, node = launch_of("score", **{**ALONG_THE_PATH, "verify_rows": "eager"}, outputs=["logprobs"])
    assert traffic.logits(node.ops, 4) == 4 * 4 * ROW


def test_of_tables_the_rows_of_requests_are_read() -> None:
    """Of a block table how many blocks a request has; looking them up is not counted, nor is a table's other half."""
    whole, blocks = (bytes_of({**CHAIN, **more}, "prepare_rows", 2) for more in ({"step": "rotated"}, BLOCKS))
    assert blocks - whole == 2 * 4
    assert bytes_of({**CHAIN, **BLOCKS}, "prepare_rows", 4) == 2 * blocks


def test_tails_are_read_once_and_written_to_every_other_branch() -> None:
    """Of three branches two; keys and values of a layer, 16 bytes a row."""
    keys = {**TREE, "topk": 3, "page_size": 8}
    traffic, node = launch_of("duplicate_tail", **keys)
    (call,) = node.ops
    assert traffic.most_moved(call, 4) == 4 * 7
    assert bytes_of(keys, node.name, 4, 9) - bytes_of(keys, node.name, 4, 0) == 3 * 9 * 1 * 2 * 16
