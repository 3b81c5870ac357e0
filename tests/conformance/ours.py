"""specc's kernels in Triton's interpreter, on the cases of `cases.py`.

    python tests/conformance/ours.py CASES.pt ANSWERS.pt

A program of its own, because Triton decides between interpreting and compiling when it is first imported. A case is a
module of the ops of a step; its kernels are formed, composed and launched by the helpers of tests/kernels.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import our_chains
import our_trees
import torch
from cluster_cases import Scan, TypedBuilder, carry, small_module
from kernel_launcher import PACKAGE, Launcher
from our_launches import launch_all, padded
from torch import Tensor

from specc.compiler.codegen import render
from specc.compiler.ir.core import Module, Value
from specc.compiler.ir.ops.health import DRAFT_BIT, EXTEND_BIT, ROOM_BIT, TARGET_BIT

Case = dict[str, Any]
Answer = dict[str, Tensor]
MORE_ROWS = 2
NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
FIELDS = ("bonus", "topk_index", "seq_lens", "hidden")


def step(case: Case) -> Module:
    """One decode step of a chain, whose forwards' results are inputs; for a larger batch than the case has."""
    steps, at, given = case["steps"], case["draft_offset"], case["rounds"][0]
    sizes = {"B": len(case["rows"]) + case["padding"] + MORE_ROWS, "K": 1, "S": steps, "A": steps + 1}
    module = small_module(**sizes, V=given["target_logits"].shape[-1], **({"D": steps - 1} if steps > 1 else {}))
    carry(module, "bonus", "i32")
    carry(module, "topk_index", "i64", "K")
    carry(module, "seq_lens", "i64")
    if "hidden" in case:
        carry(module, "hidden", NAMES[case["hidden"].dtype], case["hidden"].shape[1])
    b, logits = TypedBuilder(module), NAMES[given["target_logits"].dtype]
    rows, table = module.inputs["req_pool_indices"], module.inputs["req_to_token"]
    health = b("health.clear", rows)
    loads = {name: b("carry.load", rows, field=name, names=(f"old_{name}",)) for name in module.carries}
    room = {"window": steps + 1 + at, "longest": -1}
    admitted, lens, full = b.many(
        "kv.admit", table, rows, loads["seq_lens"], names=("admitted", "lens", "full"), **room
    )
    health = b("health.raise", health, full, bit=ROOM_BIT)
    tokens = b("chain.start", loads["bonus"], loads["topk_index"])
    for name, offset in (("verify", 0), ("extend", at)):
        positions = b("kv.positions", lens, axis="A", offset=offset, stride=1, names=(f"{name}_positions",))
        b.hand_out(positions, b("kv.slots", table, admitted, lens, axis="A", offset=offset, names=(f"{name}_slots",)))
    if "hidden" in case:
        b.hand_out(b("tree.repeat", loads["hidden"], names=("draft_hidden",)))
    if steps > 1:
        b.hand_out(b("kv.slots", table, admitted, lens, axis="D", offset=at, names=("draft_slots",)))
        tokens, health = draft(b, tokens, health, admitted, lens, logits, case)
    health = verify(b, tokens, health, admitted, lens, logits)
    with b.phase("extend"):
        index, bad = b.many(
            "vocab.argmax",
            b.given("extend_logits", logits, "V"),
            admitted,
            dtype="i64",
            keep="K",
            names=("next", "bad"),
        )
        b.many("carry.store", admitted, module.outputs["bonus"], field="bonus")
        b.many("carry.store", admitted, index, field="topk_index")
        if "hidden" in case:
            hidden = b.given("extend_hidden", NAMES[case["hidden"].dtype], case["hidden"].shape[1])
            b.many("carry.store", admitted, hidden, field="hidden")
        b.hand_out(lens, b("health.raise", health, bad, bit=EXTEND_BIT, names=("health_out",)))
    return module


def draft(
    b: TypedBuilder, tokens: Value, health: Value, rows: Value, lens: Value, logits: str, case: Case
) -> tuple[Value, Value]:
    """The draft loop; the positions that each forward sees are handed out."""
    forwards = case["steps"] - 1
    positions = b("kv.positions", lens, axis="K", offset=case["draft_offset"], stride=0, names=("positions0",))
    b.hand_out(positions)
    with b.phase("draft"):
        for i in range(forwards):
            given = b.given(f"draft_logits{i}", logits, "K", "V")
            token, bad = b.many("vocab.argmax", given, rows, dtype="i64", keep="")
            tokens = b("chain.append", tokens, token, column=i + 2)
            health = b("health.raise", health, bad, bit=DRAFT_BIT)
            if i + 1 < forwards:
                positions = b("kv.advance", positions, names=(f"positions{i + 1}",))
                b.hand_out(positions)
    return tokens, health


def verify(b: TypedBuilder, tokens: Value, health: Value, rows: Value, lens: Value, logits: str) -> Value:
    """Argmax, walk and commit; the health word."""
    with b.phase("verify"):
        target = b.given("target_logits", logits, "A", "V")
        argmax, bad = b.many("vocab.argmax", target, rows, dtype="i32", keep="")
        predict, accept_index, accept_lens = b.many("verify.greedy", tokens, argmax, rows)
        health = b("health.raise", health, bad, bit=TARGET_BIT)
    with b.phase("commit"):
        new_lens, bonus = b.many("commit.lengths", lens, accept_lens, predict)
        b.many("relay.publish", rows, new_lens, field="seq_lens")
        b.hand_out(b("commit.extend_ids", predict, accept_lens, names=("extend_ids",)))
        b.hand_out(b("commit.select", accept_lens), predict, accept_index, accept_lens, new_lens, bonus)
    b.module.outputs["tokens"] = tokens
    return health


def chain(launcher: Launcher, case: Case) -> list[Answer]:
    """Every round of a chain case, the live rows only, in SGLang's shapes."""
    module, scan = step(case), Scan(case["splits"], case["block"])
    pools, answers = {f"relay.{name}": case[name] for name in FIELDS if name in case}, []
    for given in case["rounds"]:
        values = returned(given, case["padding"]) | pools
        values |= {"req_pool_indices": padded(case["rows"], case["padding"], 0), "req_to_token": case["table"]}
        memory = launch_all(launcher, module, values, scan)
        pools = {name: memory[name] for name in pools}
        answers.append(answer(module, memory, case))
    return answers


def returned(given: Case, padding: int) -> Answer:
    """What forwards return, by the names of the inputs; logits of padding rows are +inf."""
    values = {f"draft_logits{i}": logits[:, None] for i, logits in enumerate(given["draft_logits"])}
    values |= {name: given[name] for name in ("target_logits", "extend_logits", "extend_hidden") if name in given}
    return {name: padded(value, padding, torch.inf) for name, value in values.items()}


def answer(module: Module, memory: Mapping[str, Tensor], case: Case) -> Answer:
    """The outputs of a step under the names that all sides use."""
    live, forwards = len(case["rows"]), case["steps"] - 1
    values = {name: memory[value.name] for name, value in module.outputs.items()}
    values = {name: value if name == "draft_slots" else value[:live] for name, value in values.items()}
    tokens, lens = values.pop("tokens"), values.pop("lens")
    seen = [values.pop(f"positions{i}")[:, 0] for i in range(forwards)]
    flat = {name: values[name].flatten() for name in ("predict", "extend_ids")}
    flat |= {f"{name}_{kind}": values[f"{name}_{kind}"].flatten() for name in ("verify", "extend") for kind in
             ("positions", "slots")}  # fmt: skip
    answer = values | flat | {"tokens": tokens.flatten(), "root": tokens[:, 0], "draft_token": tokens[:, 1:2]}
    answer |= {"seq_lens": lens, "health": answer.pop("health_out")}
    if forwards:
        answer |= {"draft_positions": torch.stack(seen), "draft_slots": values["draft_slots"][:, :live]}
    if "hidden" in case:
        answer["draft_hidden"] = values["draft_hidden"][:, 0]
    answer["next_topk_index"] = memory["relay.topk_index"][case["rows"]]
    return {name: value.clone() for name, value in answer.items()}


def argmax(launcher: Launcher, case: Case) -> Answer:
    """One argmax, with its token column and positions."""
    (count, vocab), columns = case["logits"].shape, case["tokens"].shape[1]
    module = small_module(B=count, K=1, A=columns, V=vocab)
    b, rows = TypedBuilder(module), module.inputs["req_pool_indices"]
    with b.phase("draft"):
        logits = b.given("logits", NAMES[case["logits"].dtype], "K", "V")
        index, bad = b.many("vocab.argmax", logits, rows, dtype="i64", keep="")
        tokens = b("chain.append", b.given("given_tokens", "i64", "A"), index, column=case["column"], names=("tokens",))
        positions = b("kv.advance", b.given("given_positions", "i64", "K"), names=("positions",))
        health = b("health.raise", b("health.clear", rows), bad, bit=DRAFT_BIT, names=("raised",))
        b.hand_out(index, tokens, positions, health)
    given = {"req_pool_indices": torch.arange(1, count + 1), "logits": case["logits"][:, None]}
    given |= {"given_tokens": case["tokens"], "given_positions": case["positions"][:, None]}
    memory = launch_all(launcher, module, given, Scan(case["splits"], case["block"]))
    return {name: memory[name] for name in ("index", "tokens")} | {
        "positions": memory["positions"][:, 0],
        "health": memory["raised"],
    }


def main() -> None:
    """Answer all cases; trees only those that are for kernels."""
    source, target = sys.argv[1:]
    torch.set_num_threads(1)
    cases = torch.load(source, weights_only=True)
    kinds = {"chain": chain, "argmax": argmax, "tree": our_trees.tree, "reject": our_chains.reject}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / PACKAGE
        for name, text in {"__init__.py": "", **render.lib_sources()}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        sys.path.insert(0, root)
        launcher = Launcher("cpu", folder)
        answers = {name: [kind(launcher, case) for case in cases[name]] for name, kind in kinds.items()}
    torch.save(answers, target)


if __name__ == "__main__":
    main()
