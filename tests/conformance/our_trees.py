"""specc's tree kernels in Triton's interpreter: select, link and mask, verify and commit, compact."""

from __future__ import annotations

from typing import Any

import torch
from cluster_cases import Scan, TypedBuilder, small_module
from kernel_launcher import Launcher
from our_launches import launch_all, padded
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.compiler.ir.ops.health import TARGET_BIT, TREE_BIT

Case = dict[str, Any]
Answer = dict[str, Tensor]
BLOCK, MORE_ROWS = 64, 2
PACKED = (1, 2, 4, 8)
MASKS = {"qlen": "mask", "bitpacked": "packed", "full": "full"}
RESULTS = (
    "tokens",
    "parent",
    "predict",
    "accept_index",
    "accept_lens",
    "new_seq_lens",
    "bonus",
    "extend_ids",
    "select",
)


def tree(launcher: Launcher, case: Case) -> Answer | None:
    """The live rows of one batch, or None where the case is not for kernels."""
    if not case["kernels"]:
        return None
    count, mask = len(case["bonus"]), MASKS[case["mode"]]
    memory = launch_all(launcher, build(case), given(case), Scan(case["splits"], BLOCK))
    answer = {name: memory[name][:count] for name in RESULTS}
    answer |= {
        "positions": memory["at"][:count],
        "states": memory["path_states"][:count],
        "health": memory["raised"][:count],
    }
    return answer | {mask: memory["tree_mask"].flatten() if mask == "full" else memory["tree_mask"][:count]}


def build(case: Case) -> Module:
    """What follows the last draft forward, and the target's, of a tree; all candidates are in memory."""
    steps, nodes, mode = case["steps"], case["nodes"], case["mode"]
    sizes = {"B": len(case["bonus"]) + case["padding"] + MORE_ROWS, "K": case["branches"], "S": steps, "N": nodes}
    module = small_module(**sizes, A=steps + 1, V=case["vocab"])
    b = TypedBuilder(module)
    rows, lens = module.inputs["req_pool_indices"], module.inputs["seq_lens"]
    shapes = [("K",), *[("K", "K")] * (steps - 1)]
    parts = [b.given(f"scores{i}", "f32", *shape) for i, shape in enumerate(shapes)]
    parts += [b.given(f"tokens{i}", "i64", *shape) for i, shape in enumerate(shapes)]
    parts += [b.given(f"kept{i}", "i64", "K") for i in range(1, steps - 1)]
    with b.phase("tree"):
        tokens, parent, depth, orphan = b.many("tree.select", rows, b.given("root", "i32"), *parts, steps=steps)
        health = b("health.raise", b("health.clear", rows), orphan, bit=TREE_BIT)
        positions = b("tree.positions", lens, depth, names=("at",))
        mask = b("tree.mask", lens, parent, mode=mode, width=width(case), names=("tree_mask",))
    with b.phase("verify"):
        logits = b.given("target_logits", "f32", "N", "V")
        argmax, bad = b.many("vocab.argmax", logits, rows, dtype="i32", keep="")
        _, accept_index, accept_lens = b.many(
            "verify.greedy", tokens, argmax, rows, parent, names=("by_node", *RESULTS[3:5])
        )
        health = b("health.raise", health, bad, bit=TARGET_BIT, names=("raised",))
    with b.phase("commit"):
        predict = b("commit.compact", argmax, accept_index, names=("predict",))
        new_lens, bonus = b.many("commit.lengths", lens, accept_lens, predict)
        ids = b("commit.extend_ids", predict, accept_lens, names=("extend_ids",))
        states = b("commit.compact", b.given("states", "f32", "N", 2), accept_index, names=("path_states",))
        b.hand_out(tokens, parent, positions, mask, health, predict, accept_index, accept_lens)
        b.hand_out(new_lens, bonus, ids, states, b("commit.select", accept_lens))
    return module


def width(case: Case) -> int:
    """Bytes of a row of a bitpacked mask, entries of a flat one."""
    nodes = case["nodes"]
    if case["mode"] == "full":
        return nodes * (int(case["seq_lens"].max()) + nodes)
    return next(size for size in PACKED if 8 * size >= nodes) if case["mode"] == "bitpacked" else 0


def given(case: Case) -> Answer:
    """All inputs. Rows of padding repeat the first request, and nothing of it may show; their lengths are 0."""
    padding, target = case["padding"], case["target"]
    values = {"root": case["bonus"], "states": case["states"]}
    for step, (scores, tokens) in enumerate(zip(case["scores"], case["index"], strict=True)):
        values |= {f"scores{step}": scores, f"tokens{step}": tokens}
    values |= {f"kept{step}": kept for step, kept in enumerate(case["kept"][:-1], 1)}
    values = {name: repeated(value, padding) for name, value in values.items()}
    logits = torch.sin(torch.arange(target.numel() * case["vocab"])).view(*target.shape, case["vocab"])
    values["target_logits"] = padded(logits.scatter_(2, target[..., None], 2.0), padding, torch.inf)
    values["seq_lens"] = padded(case["seq_lens"], padding, 0)
    values["req_pool_indices"] = padded(torch.arange(1, len(case["bonus"]) + 1), padding, 0)
    return values


def repeated(value: Tensor, padding: int) -> Tensor:
    """A value with the first request's again behind the batch."""
    return torch.cat((value, value[:1].expand(padding, *value.shape[1:]))).contiguous()
