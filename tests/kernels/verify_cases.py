"""What verify_commit must write, in plain Python, and the buffers to write it into; chains and trees."""

import math
from typing import Any

import torch
from kernel_cases import DTYPES, affordable, argmax, check, poison, random_logits, random_rows, scratch
from kernel_launcher import Launcher

POOL, BIT, RING = 24, 2, 11
Tensors = dict[str, torch.Tensor]


def walk(tokens: list[int], targets: list[int], parents: list[int], limit: int) -> list[int]:
    """The columns that greedy verification accepts, root first, at most `limit`."""
    children: dict[int, list[int]] = {}
    for column, parent in enumerate(parents[1:], start=1):
        children.setdefault(parent, []).append(column)
    path = [0]
    for _ in range(limit - 1):
        agreed = (column for column in children.get(path[-1], []) if tokens[column] == targets[path[-1]])
        path += [column for column in [next(agreed, None)] if column is not None]
    return path


def logprob(row: torch.Tensor) -> float:
    """Log of the probability of the row's argmax: NaN is -inf, equal infinities share, nothing else gives -inf."""
    values = [value for value in row.double().tolist() if value > -math.inf]
    if not values:
        return -math.inf
    largest = max(values)
    return -math.log(sum(1.0 if value == largest else math.exp(value - largest) for value in values))


def expect(flags: dict[str, Any], shape: dict[str, int], inputs: Tensors, outputs: Tensors) -> Tensors:
    """What the buffers hold after the kernel, request by request."""
    want = {name: value.clone() for name, value in outputs.items()}
    nodes, width, vocab = shape["nodes"], shape["steps"] + 1, shape["vocab"]
    logits = inputs["logits_ptr"].view(shape["batch"], nodes, -1)
    for b, row in enumerate(inputs["rows_ptr"].tolist()):
        path, emitted = [], []
        if row:
            results = [argmax(logits[b, c, :vocab]) for c in range(nodes)]
            targets = [index for index, _ in results]
            parents = inputs["parent_ptr"][b].tolist() if flags["tree"] else list(range(-1, nodes - 1))
            path = walk(inputs["tokens_ptr"][b].tolist(), targets, parents, width)
            emitted = [targets[column] for column in path]
            want["health_ptr"][b] |= BIT * any(bad for _, bad in results)
        count, length = len(path), int(inputs["seq_lens_ptr"][b]) + len(path)
        for name, values, rest in (
            ("predict_ptr", emitted, 0),
            ("extend_ids_ptr", emitted, 0),
            ("accept_index_ptr", [b * nodes + column for column in path], -1),
            ("logprobs_ptr", [logprob(logits[b, column, :vocab]) for column in path], 0),
        ):
            if name in want:
                want[name][b] = torch.tensor([*values, *[rest] * (width - count)], dtype=want[name].dtype)
        want["accept_lens_ptr"][b] = count
        want["new_seq_lens_ptr"][b] = length if row else 0
        want["bonus_ptr"][b] = emitted[-1] if row else 0
        if flags["select"]:
            want["select_ptr"][b] = b * width + max(count - 1, 0)
        if row:
            for field in flags["lengths"]:
                want[f"relay_{field}_ptr"][row] = length
            for field in flags["bonuses"]:
                want[f"relay_{field}_ptr"][row] = emitted[-1]
            for field in flags["rings"]:
                for i, token in enumerate(emitted):
                    want[f"relay_{field}_ptr"][row, (int(inputs["seq_lens_ptr"][b]) + 1 + i) % RING] = token
    return want


def buffers(flags: dict[str, Any], max_b: int, width: int, source: torch.Generator) -> Tensors:
    """The output buffers, poisoned; the health word holds earlier bits."""
    outputs = {
        "health_ptr": torch.randint(0, 32, (max_b,), generator=source, dtype=torch.int32) & ~BIT,
        "predict_ptr": poison(max_b, width, dtype=torch.int32),
        "accept_lens_ptr": poison(max_b, dtype=torch.int32),
        "new_seq_lens_ptr": poison(max_b, dtype=torch.int64),
        "bonus_ptr": poison(max_b, dtype=torch.int32),
    }
    if flags["extend_ids"]:
        outputs["extend_ids_ptr"] = poison(max_b, width, dtype=torch.int64)
    if flags["select"]:
        outputs["select_ptr"] = poison(max_b, dtype=torch.int64)
    if flags["accept_index"]:
        outputs["accept_index_ptr"] = poison(max_b, width, dtype=torch.int32)
    if flags["logprobs"]:
        outputs["logprobs_ptr"] = poison(max_b, width, dtype=torch.float32)
    outputs |= {f"relay_{field}_ptr": poison(POOL, dtype=torch.int64) for field in flags["lengths"]}
    outputs |= {f"relay_{field}_ptr": poison(POOL, dtype=torch.int32) for field in flags["bonuses"]}
    return outputs | {f"relay_{field}_ptr": poison(POOL, RING, dtype=torch.int32) for field in flags["rings"]}


def random_inputs(shape: dict[str, int], dtype: str, source: torch.Generator) -> tuple[Tensors, torch.Tensor]:
    """(rows, logits, lengths and tokens; the target's tokens i64[B, N])."""
    batch, nodes, vocab = shape["batch"], shape["nodes"], shape["vocab"]
    logits = random_logits(source, batch * nodes, vocab, vocab + shape["slack"], DTYPES[dtype])
    targets = torch.tensor([argmax(row[:vocab])[0] for row in logits]).view(batch, nodes)
    inputs = {
        "rows_ptr": random_rows(source, batch, POOL),
        "logits_ptr": logits,
        "tokens_ptr": torch.randint(0, vocab, (batch, nodes), generator=source),
        "seq_lens_ptr": torch.randint(1, 2**40, (batch,), generator=source),
    }
    return inputs, targets


def run(
    launcher: Launcher, flags: dict[str, Any], shape: dict[str, int], inputs: Tensors, source: torch.Generator
) -> Tensors:
    """Check one case of `nodes` columns and paths of `steps` + 1; gives what was expected."""
    max_b, nodes, width, most = shape["batch"] + 2, shape["nodes"], shape["steps"] + 1, shape.get("most", 4)
    outputs = buffers(flags, max_b, width, source)
    expected = expect(flags, shape, inputs, outputs)
    constants: dict[str, Any] = {
        "N": nodes,
        "A": width,
        "V": shape["vocab"],
        "STRIDE": shape["vocab"] + shape["slack"],
        "SPLITS": most,
        "BLOCK": affordable(shape),
        "HEALTH_BIT": BIT,
        **{f"L_{field}": RING for field in flags["rings"]},
    }
    grid = (shape["batch"], nodes * shape["splits"])
    scratches = scratch(max_b, nodes, most)
    if flags["logprobs"]:
        scratches["partial_sum_ptr"] = poison(max_b, nodes, most, dtype=torch.float32)
    rounded = frozenset({"logprobs_ptr"})
    check(launcher, "verify_commit", flags, grid, inputs, scratches, outputs, expected, constants, rounded)
    return expected
