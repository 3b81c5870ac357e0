"""Bytes of a launch, beside what a person counts."""

from __future__ import annotations

import pytest

from specc.driver.build import build_program
from specc.ir.declarations import Kernel
from specc.measure.traffic import launch_bytes, most_moved
from specc.runtime.plan.nodes import Launch

from .conftest import CHAIN, TREE, load

V, W, N, S = 9000, 16, 3, 2
BLOCKS = "step: rotated\nslots: block_table\n"


def bytes_of(text: str, name: str, rows: int, moved: int | None = None) -> int:
    plan = build_program(load(text)).plan
    node = next(node for node in plan.nodes("step") if isinstance(node, Launch) and node.name == name)
    return launch_bytes(plan, node.ops, rows, moved)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_draft_step(rows: int) -> None:
    """A row of logits in bf16; rows, health in and out, positions in and out, the token where it is and is drafted."""
    assert 0 <= bytes_of(CHAIN, "draft_argmax", rows) - rows * 2 * V <= 64 * rows


def test_verification_reads_all_rows() -> None:
    small = 256 * 4
    assert 0 <= bytes_of(CHAIN, "verify_argmax", 4) - 4 * N * 2 * V <= small


def test_compaction_reads_rows_of_the_path_alone() -> None:
    """S + 1 = 4 of 6 nodes, read and written, and the path; then keys and values of 2 layers, 16 bytes a row."""
    path, tokens = 4 * 4 * 4, 5
    values = 2 * 4 * 4 * 2 * W
    slots, lengths = 4 * 6 * 8, 4 * 4
    assert bytes_of(TREE, "compact", 4, tokens) == path + values + slots + lengths + 2 * tokens * 2 * 2 * 16
    assert bytes_of(TREE, "compact", 4, 0) == path + values + slots + lengths
    assert bytes_of(TREE, "compact", 4) == bytes_of(TREE, "compact", 4, 4 * 3)


def test_of_tables_the_rows_of_requests_are_read() -> None:
    """Of a block table how many blocks a request has; looking them up is not counted, nor is a table's other half."""
    whole, blocks = (bytes_of(CHAIN + more, "prepare_rows", 2) for more in ("step: rotated\n", BLOCKS))
    assert blocks - whole == 2 * 4
    assert bytes_of(CHAIN + BLOCKS, "prepare_rows", 4) == 2 * blocks


def test_tails_are_written_to_every_other_branch() -> None:
    text = TREE.replace("topk: 2", "topk: 2\npage_size: 8")
    plan = build_program(load(text)).plan
    node = next(node for node in plan.nodes("step") if isinstance(node, Launch) and node.name == "duplicate_tail")
    (call,) = node.ops
    assert most_moved(plan, call, 4) == 4 * 7
    assert launch_bytes(plan, node.ops, 4, 9) - launch_bytes(plan, node.ops, 4, 0) == 2 * 9 * 1 * 2 * 16


def test_it_agrees_with_the_cost_model_where_nothing_is_moved() -> None:
    build = build_program(load(CHAIN))
    model = {kernel.name: kernel.bytes for kernel in build.module.decls_of(Kernel)}
    for node in build.plan.nodes("step"):
        if isinstance(node, Launch):
            assert launch_bytes(build.plan, node.ops, 4) == model[node.name], node.name
