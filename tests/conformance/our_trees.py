"""specc's tree kernels in Triton's interpreter, one after the other: build, verify and commit, compact."""

from __future__ import annotations

from typing import Any

import torch
from kernel_cases import poison, scratch
from kernel_launcher import Launcher
from torch import Tensor

Case = dict[str, Any]
Answer = dict[str, Tensor]
SPLITS, BLOCK, MORE_ROWS = 4, 64, 2
TARGET_BIT, ORPHAN_BIT = 2, 16
MODES = ("qlen", "bitpacked", "full")
PACKED = (1, 2, 4, 8)


def tree(launcher: Launcher, case: Case) -> Answer | None:
    """The live rows of one batch, or None where the case is not for kernels."""
    if not case["kernels"]:
        return None
    count = len(case["bonus"])
    rows = torch.cat((torch.arange(1, count + 1), torch.zeros(case["padding"], dtype=torch.int64)))
    health = torch.zeros(len(rows), dtype=torch.int32)
    seq_lens = padded(case, case["seq_lens"])
    seq_lens[count:] = 0  # as prepare leaves it
    answer = build(launcher, case, rows, seq_lens, health)
    answer |= verify(launcher, case, rows, seq_lens, health, answer)
    answer["states"] = compact(launcher, case, answer["accept_index"])
    answer["health"] = health
    return {name: value[:count] if name != "full" else value.flatten() for name, value in answer.items()}


def padded(case: Case, value: Tensor) -> Tensor:
    """A value with rows of padding behind the batch, which repeat the first request: nothing of it may show."""
    return torch.cat((value, value[:1].expand(case["padding"], *value.shape[1:]))).contiguous()


def build(launcher: Launcher, case: Case, rows: Tensor, seq_lens: Tensor, health: Tensor) -> Answer:
    """Launch `tree_build` on what the draft steps left."""
    steps, nodes, mode = case["steps"], case["nodes"], case["mode"]
    max_b = len(rows) + MORE_ROWS
    answer = {name: poison(max_b, nodes, dtype=torch.int64) for name in ("tokens", "parent", "positions")}
    arguments = {f"{name}_ptr": value for name, value in answer.items()}
    arguments |= {"rows_ptr": rows, "bonus_ptr": padded(case, case["bonus"]), "seq_lens_ptr": seq_lens}
    arguments["health_ptr"] = health
    for step, (scores, tokens) in enumerate(zip(case["scores"], case["index"], strict=True)):
        arguments |= {f"scores{step}_ptr": padded(case, scores), f"tokens{step}_ptr": padded(case, tokens)}
        if 0 < step < steps - 1:
            arguments[f"kept{step}_ptr"] = padded(case, case["kept"][step - 1])
    constants = {"K": case["branches"], "S": steps, "N": nodes, "ORPHAN_BIT": ORPHAN_BIT}
    width = next((size for size in PACKED if 8 * size >= nodes), 0) if mode == "bitpacked" else 0
    constants |= {"MODE": MODES.index(mode), "WIDTH": width}
    if mode == "bitpacked":
        mask = answer["packed"] = torch.full((max_b, nodes, width), 0xA5, dtype=torch.uint8)
    else:
        columns = nodes + (int(seq_lens.max()) if mode == "full" else 0)
        mask = answer["full" if mode == "full" else "mask"] = torch.ones(max_b, nodes, columns, dtype=torch.bool)
    flags = {"fused": False, "mask": True, "steps": steps}
    launcher.launch("tree_build", flags, (len(rows), 1), {**arguments, "mask_ptr": mask}, constants)
    return answer


def verify(
    launcher: Launcher, case: Case, rows: Tensor, seq_lens: Tensor, health: Tensor, built: Answer
) -> dict[str, Tensor]:
    """Launch `verify_commit` on logits whose argmax is the target's token; those of padding rows are +inf."""
    nodes, width, vocab = case["nodes"], case["steps"] + 1, case["vocab"]
    logits = torch.full((len(rows), nodes, vocab), torch.inf)
    target = case["target"]
    logits[: len(target)] = torch.sin(torch.arange(target.numel() * vocab)).view(*target.shape, vocab)
    logits[: len(target)].scatter_(2, target[..., None], 2.0)
    max_b = len(rows) + MORE_ROWS
    out = {
        "predict_ptr": poison(max_b, width, dtype=torch.int32),
        "accept_index_ptr": poison(max_b, width, dtype=torch.int32),
        "accept_lens_ptr": poison(max_b, dtype=torch.int32),
        "new_seq_lens_ptr": poison(max_b, dtype=torch.int64),
        "bonus_ptr": poison(max_b, dtype=torch.int32),
        "extend_ids_ptr": poison(max_b, width, dtype=torch.int64),
        "select_ptr": poison(max_b, dtype=torch.int64),
    }
    arguments = {"rows_ptr": rows, "logits_ptr": logits.view(-1, vocab), "health_ptr": health}
    arguments |= {"tokens_ptr": built["tokens"], "parent_ptr": built["parent"], "seq_lens_ptr": seq_lens}
    constants = {"N": nodes, "A": width, "V": vocab, "STRIDE": vocab, "SPLITS": SPLITS, "BLOCK": BLOCK}
    flags = {"tree": True, "accept_index": True, "logprobs": False, "extend_ids": True, "select": True}
    flags |= {"lengths": (), "bonuses": (), "rings": ()}
    launcher.launch(
        "verify_commit", flags, (len(rows), nodes * case["splits"]),
        {**arguments, **out, **scratch(max_b, nodes, SPLITS)}, {**constants, "HEALTH_BIT": TARGET_BIT},
    )  # fmt: skip
    return {name.removesuffix("_ptr"): value for name, value in out.items()}


def compact(launcher: Launcher, case: Case, accept_index: Tensor) -> Tensor:
    """Launch `compact` on two numbers per node: f32[B, A, 2]."""
    states = padded(case, case["states"])
    path = poison(len(accept_index), case["steps"] + 1, 2, dtype=torch.float32)
    flags = {"move": False, "value0": True, "value1": False, "value2": False, "value3": False}
    constants = {"A": case["steps"] + 1, "BLOCK": 4, "ROW0": 8, "UNIT0": 4}
    arguments = {"accept_index_ptr": accept_index, "value0_ptr": states, "path0_ptr": path}
    launcher.launch("compact", flags, (len(states), 1), arguments, constants)
    return path
