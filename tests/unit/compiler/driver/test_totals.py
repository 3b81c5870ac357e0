"""The figures of a decode step, against counts made by hand; and that they move when the graph does."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from programs import load, written

from specc.compiler.driver.build import Build, build_program
from specc.compiler.ir.text.printer import print_module
from specc.runtime.plan.nodes import External
from specc.runtime.plan.plan import Totals


@functools.cache
def built(**keys: Any) -> Build:
    """A small program; built once per variant."""
    return build_program(load(**keys))


def totals(bucket: int = 4, **keys: Any) -> Totals:
    """Figures at a bucket."""
    return built(**keys).plan.totals[bucket]


def forwards(build: Build) -> tuple[External, ...]:
    """External nodes of the plan."""
    return build.plan.externals()


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_standalone_has_no_hidden_states(steps: int) -> None:
    """Not one byte, value, carry, argument or capture; the word occurs in attributes of no kind."""
    build = built(algorithm="STANDALONE", num_steps=steps)
    plan = build.plan
    assert {figures.hidden_state_bytes for figures in plan.totals.values()} == {0}
    assert "hidden" not in print_module(build.module)
    assert {node.capture for node in forwards(build)} == {"null"}
    assert all("hidden" not in node.operands and "hidden" not in node.results for node in forwards(build))
    keys = written(plan)
    assert "hidden_size" in json.dumps(keys.pop("models"))
    assert keys["serving"].pop("reads_hidden") is False
    assert "hidden" not in json.dumps({key: value for key, value in keys.items() if key not in ("kernels", "totals")})
    for kernel in plan.kernels.values():
        assert not kernel.flags.get("hidden", False)
        assert not [name for name, _ in kernel.arguments if "hidden" in name]


def test_standalone_sources_do_not_mention_hidden_states() -> None:
    for source in built(algorithm="STANDALONE").generated.sources:
        code = re.sub(r"^\s*#.*$", "", source.text, flags=re.MULTILINE)
        assert not re.search(r"\w*hidden\w*_ptr", code), source.name


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
@pytest.mark.parametrize("steps", range(1, 9))
def test_launches(algorithm: str, steps: int) -> None:
    """At most S + 3 launches a step, all of them in one graph, and the host is never waited for."""
    plan = built(algorithm=algorithm, num_steps=steps).plan
    for figures in plan.totals.values():
        assert figures.launches_in_graph <= steps + 3
        assert figures.launches_in_graph == steps + 2
        assert figures.launches_outside_graph == 0
        assert figures.host_syncs == 0
    (capture,) = plan.captures
    kinds = {node.name: node.kind for phase in plan.phases for node in phase.nodes}
    assert sum(kinds[name] == "launch" for name in capture.nodes) == steps + 2


@pytest.mark.parametrize("bucket", [1, 2, 4])
def test_hidden_bytes_of_eagle(bucket: int) -> None:
    """P = 5 pool rows, 4 rows at most, S = 3, W = 64 f32: counted by hand."""
    row = 64 * 4
    pool = 5 * row
    draft_input = 4 * row  # static, at the largest bucket
    draft_output = bucket * row  # of the first of the two draft forwards; nothing reads the second's
    target_output = bucket * 4 * row  # S + 1 rows per request
    extend_output = bucket * row
    assert totals(bucket, num_steps=3).hidden_state_bytes == (
        pool + draft_input + draft_output + target_output + extend_output
    )


def test_hidden_bytes_follow_the_graph() -> None:
    base = totals(num_steps=3).hidden_state_bytes
    row = 64 * 4
    assert totals(num_steps=4).hidden_state_bytes - base == 2 * 4 * row  # one draft output, one more node
    assert totals(num_steps=3, max_requests=9).hidden_state_bytes - base == 5 * row  # pool rows
    half = {"dtype": "bfloat16"}
    assert totals(num_steps=3, target=json_key(half), draft=json_key(half)).hidden_state_bytes * 2 == base
    carried = totals(num_steps=1).hidden_state_bytes
    assert carried == 4 * 2 * row  # without draft forwards only extend reads any: nothing is carried


def test_outputs_raise_hidden_bytes() -> None:
    """What the engine asks for is captured again, even where no op reads it."""
    asked = totals(algorithm="STANDALONE", outputs=("hidden_states",))
    assert asked.hidden_state_bytes == 4 * 4 * 64 * 4
    build = built(algorithm="STANDALONE", outputs=("hidden_states",))
    assert {n.callback: n.capture for n in forwards(build)} == {
        "prefill_target": "null",
        "prefill_draft": "null",
        "draft": "null",
        "target": "full",
        "extend": "null",
    }
    assert totals(outputs=("hidden_states",)).hidden_state_bytes == totals().hidden_state_bytes


def test_vocabulary_bytes() -> None:
    """S - 1 draft rows, N target rows and one extend row per request, each read once."""
    for bucket in (1, 4):
        for steps in (1, 3):
            found = totals(bucket, num_steps=steps).vocab_bytes_read
            assert found == bucket * (steps - 1 + steps + 1 + 1) * 96 * 4


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("steps", range(1, 6))
def test_launches_of_a_tree(steps: int, page: int) -> None:
    """At most S + 4: what it begins with, draft forwards, the last with the tree; verify, compact, extend; tails."""
    tails = page > 1 and steps > 1
    for figures in tree_totals(steps, page_size=page).values():
        assert figures.launches_in_graph == 4 + (steps - 1) + tails
        assert figures.launches_in_graph <= steps + 4
        assert (figures.launches_outside_graph, figures.host_syncs) == (0, 0)


def tree_totals(steps: int, **keys: Any) -> Mapping[int, Totals]:
    """Figures of a tree of two branches and five nodes at least, by bucket."""
    return built(topk=2, num_steps=steps, num_draft_tokens=3 if steps == 1 else 5, **keys).plan.totals


@pytest.mark.parametrize("outputs", [(), ("logprobs",)])
def test_vocabulary_bytes_of_a_tree(outputs: tuple[str, ...]) -> None:
    """K rows per draft forward, N target rows and one extend row per request, each read once."""
    for bucket in (1, 4):
        found = tree_totals(3, outputs=outputs)[bucket].vocab_bytes_read
        assert found == bucket * (2 * 2 + 5 + 1) * 96 * 4


FILTERED = {"verify": "target_only", "sampling": ("top_k", "top_p")}
DRAWN = {"topk": 2, "num_draft_tokens": 5, "num_steps": 3}


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        (2 + 4 + 1, {"verify": "target_only"}),
        (2 + 4 + 4 + 1, FILTERED),
        (2 + 4 + 4 + 1, FILTERED | {"sampling": ("top_k", "top_p", "min_p", "penalties")}),
        (2 * 2 + 5 + 5 + 1, FILTERED | DRAWN),
        (2 * 2 + 4 + 4 + 1, FILTERED | DRAWN | {"verify_rows": "lazy"}),
        (2 * 2 + 4 + 1, DRAWN | {"verify": "target_only", "sampling": ("penalties",), "verify_rows": "lazy"}),
        (2 + 4 + 4 + 1, {"verify": "target_only", "outputs": ("logprobs",)}),
        (2 * 2 + 5 + 4 + 1, DRAWN | {"verify": "target_only", "outputs": ("logprobs",), "verify_rows": "eager"}),
        (2 + 4 + 1 + 1 + 1, {"verify": "rejection"}),
        (2 + 4 + 3 + 3 + 1, {"verify": "block"}),
        (2 + 4 + 4 + 3 + 3 + 1, {"verify": "block", "sampling": ("top_p",)}),
    ],
    ids=str,
)
def test_vocabulary_bytes_of_what_is_sampled(rows: int, keys: Any) -> None:
    """Rows of drafts, cuts, draws, scores, what is left of p and of q, and extend, each read once a launch."""
    for bucket in (1, 4):
        assert totals(bucket, **{"num_steps": 3} | keys).vocab_bytes_read == bucket * rows * 96 * 4


def test_hidden_bytes_of_a_tree() -> None:
    """P = 5, B = 4, K = 2, N = 5, A = 4, W = 64 f32: the pool, two frontiers, two results of forwards, and the path."""
    row = 64 * 4
    frontiers, draft_output = 2 * (4 * 2 * row), 4 * 2 * row  # nothing reads the second draft forward's states
    target_output, path, extend_output = 4 * 5 * row, 4 * 4 * row, 4 * row
    wanted = 5 * row + frontiers + draft_output + target_output + path + extend_output
    assert tree_totals(3)[4].hidden_state_bytes == wanted


def test_the_arena_is_one_size_for_all_buckets() -> None:
    plan = built().plan
    arena = [buffer for buffer in plan.buffers.values() if buffer.offset is not None]
    ends = [buffer.offset + buffer.bytes for buffer in arena if buffer.offset is not None]
    assert {figures.arena_bytes for figures in plan.totals.values()} == {max(ends)}
    assert max(ends) < sum(-(-buffer.bytes // 256) * 256 for buffer in arena)


class json_key(dict[str, Any]):
    """A dict that can be a cache key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self))


def test_log_probabilities_cost_no_launch_and_no_read() -> None:
    """Two ops of one kernel look at the target's logits, which are read once."""
    base, asked = totals(num_steps=3), totals(num_steps=3, outputs=("logprobs",))
    assert asked.launches_in_graph == base.launches_in_graph
    assert asked.vocab_bytes_read == base.vocab_bytes_read
