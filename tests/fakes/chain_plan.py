"""Hand-written plans of a chain step, as `plan.json` would hold them.

`hidden` makes the draft read hidden states (shifted positions), else it is an ordinary language model at its
true positions; `overlap` relays the committed lengths. Some buffers that are never live together share memory.
"""

from __future__ import annotations

from .plans import Builder, Json, external, kv_pool, op, plan_of


def chain_plan(
    *,
    hidden: bool = False,
    overlap: bool = False,
    steps: int = 3,
    vocab: int = 32,
    width: int = 4,
    batch: int = 4,
    pool: int = 8,
) -> Json:
    """The plan of a greedy chain: K = 1, N = A = steps + 1."""
    dims = {"B": batch, "K": 1, "S": steps, "D": steps - 1, "N": steps + 1, "A": steps + 1}
    dims |= {"V": vocab, "Vd": vocab, "P": pool, "W": width}
    b = Builder(dims, overlap)
    _declare(b, hidden)
    phases = {
        "prepare": [_prepare(b, hidden)],
        "draft": _draft(b, hidden),
        "verify": _verify(b, hidden),
        "extend": _extend(b, hidden),
        "prefill": _prefill(b, hidden),
    }
    carry = [
        {"name": "bonus", "dtype": "i32", "axes": ["B"]},
        {"name": "topk_index", "dtype": "i64", "axes": ["B", "K"]},
    ]
    carry += [{"name": "hidden", "dtype": "f32", "axes": ["B", "W"]}] if hidden else []
    carry += [{"name": "seq_lens", "dtype": "i64", "axes": ["B"]}] if b.overlap else []
    outputs = {
        "predict": "predict",
        "accept_lens": "alens",
        "new_seq_lens": "new_lens",
        "bonus": "bonus",
        "health": "h",
    }
    return plan_of(
        b,
        phases,
        name="toy_chain",
        algorithm="EAGLE" if hidden else "STANDALONE",
        kv={
            "window": b.dims["A"] + 1,
            "reserve": 2 * b.dims["A"],
            "first_draft_position": 0 if hidden else 1,
        },
        kv_pools={owner: kv_pool(bound=False) for owner in ("target", "draft")},
        carry=carry,
        outputs=[(name, value, "step") for name, value in outputs.items()]
        + [("bonus", "first", "prefill"), ("health", "ph", "prefill")],
    )


def _declare(b: Builder, hidden: bool) -> None:
    """Inputs, pools and everything that several phases share."""
    b.value("req_pool_indices", "i64", ["B"], b.arena("req_pool_indices", "i64", ["B"]))
    b.arena("seq_lens", "i64", ["B"])
    b.arena("relay.bonus", "i32", ["P"], init="zero")
    b.arena("relay.topk_index", "i64", ["P", "K"], init="zero")
    if hidden:
        b.arena("relay.hidden", "f32", ["P", "W"], init="zero")
    if b.overlap:
        b.arena("relay.seq_lens", "i64", ["P"], init="zero")
        b.value("lens", "i64", ["B"])
    b.arena("health", "i32", ["B"])
    b.arena("tokens", "i64", ["B", "A"])
    b.arena("draft_tokens", "i64", ["B", "K"])
    b.arena("draft_positions", "i64", ["B", "K"])
    b.value("dslots", "i64", ["D", "B", "K"])
    b.value("vpos", "i64", ["B", "N"])
    b.value("vslots", "i64", ["B", "N"])
    b.value("epos", "i64", ["B", "A"])
    b.value("eslots", "i64", ["B", "A"])


def lengths(b: Builder) -> str:
    return "lens" if b.overlap else "seq_lens"


def _prepare(b: Builder, hidden: bool) -> Json:
    rows, lens, shift = "req_pool_indices", lengths(b), 0 if hidden else 1
    ops = [
        op("carry.load", rows, "bonus0", field="bonus"),
        op("carry.load", rows, "dtok0", field="topk_index"),
        op("health.clear", rows, "h0"),
        op("chain.start", "bonus0 dtok0", "tokens1"),
        op("kv.positions", lens, "dpos0", axis="K", offset=shift, stride=0),
        op("kv.slots", f"req_to_token {rows} {lens}", "dslots", axis="D", offset=shift),
        op("kv.positions", lens, "vpos", axis="N", offset=0, stride=1),
        op("kv.slots", f"req_to_token {rows} {lens}", "vslots", axis="N", offset=0),
        op("kv.positions", lens, "epos", axis="A", offset=shift, stride=1),
        op("kv.slots", f"req_to_token {rows} {lens}", "eslots", axis="A", offset=shift),
    ]
    if b.overlap:
        ops.insert(0, op("carry.load", rows, "lens", field="seq_lens"))
    if hidden:
        ops += [op("carry.load", rows, "carried", field="hidden"), op("tree.repeat", "carried", "dhidden0")]
        b.value("dhidden0", "f32", ["B", "K", "W"])
    b.value("dtok0", "i64", ["B", "K"], "draft_tokens")
    b.value("dpos0", "i64", ["B", "K"], "draft_positions")
    b.value("tokens1", "i64", ["B", "A"], "tokens")
    b.value("h0", "i32", ["B"], "health")
    args = (
        {"name": "rows_ptr", "value": rows},
        {"name": "req_to_token_ptr", "input": "req_to_token"},
        {"name": "req_to_token_stride", "stride": "req_to_token", "axis": 0},
        {"name": "relay_bonus_ptr", "buffer": "relay.bonus"},
        {"name": "tokens_ptr", "value": "tokens1"},
    )
    return b.launch("prepare", *ops, args=args)


def _draft(b: Builder, hidden: bool) -> list[Json]:
    rows, nodes = "req_pool_indices", []
    for i in range(b.dims["D"]):
        logits = b.engine(f"dlogits{i}", "f32", ["B", "K", "Vd"])
        results, extra = {"logits": logits}, {}
        if hidden:
            extra["hidden"] = f"dhidden{i}"
            results["hidden"] = b.engine(f"dhidden{i + 1}", "f32", ["B", "K", "W"])
        operands = {"tokens": f"dtok{i}", "positions": f"dpos{i}", "slots": "dslots", "rows": rows}
        capture = "last" if hidden else "null"
        call = external(f"draft{i}", "draft", capture, results, i, **operands, seq_lens=lengths(b), **extra)
        ops = [
            op("vocab.argmax", f"{logits} {rows}", f"dtok{i + 1} dbad{i}", dtype="i64"),
            op("health.raise", f"h{i} dbad{i}", f"h{i + 1}", bit=0),
            op("chain.append", f"tokens{i + 1} dtok{i + 1}", f"tokens{i + 2}", column=i + 2),
        ]
        b.value(f"dtok{i + 1}", "i64", ["B", "K"], "draft_tokens")
        b.value(f"h{i + 1}", "i32", ["B"], "health")
        b.value(f"tokens{i + 2}", "i64", ["B", "A"], "tokens")
        if i + 1 < b.dims["D"]:
            ops.append(op("kv.advance", f"dpos{i}", f"dpos{i + 1}"))
            b.value(f"dpos{i + 1}", "i64", ["B", "K"], "draft_positions")
        args = ({"name": "logits_ptr", "value": logits}, {"name": "column", "literal": i + 2})
        nodes += [call, b.launch("draft_step", *ops, name=f"draft_step{i}", args=args)]
    return nodes


def _verify(b: Builder, hidden: bool) -> list[Json]:
    rows, lens, forwards = "req_pool_indices", lengths(b), b.dims["D"]
    results = {"logits": b.engine("tlogits", "f32", ["B", "N", "V"])}
    if hidden:
        results["hidden"] = b.engine("thidden", "f32", ["B", "N", "W"])
    operands = {"tokens": f"tokens{forwards + 1}", "positions": "vpos", "slots": "vslots", "rows": rows}
    call = external("target", "target", "full" if hidden else "null", results, **operands, seq_lens=lens)
    b.value("predict", "i32", ["B", "A"])
    for name, dtype in {"alens": "i32", "new_lens": "i64", "bonus": "i32"}.items():
        b.value(name, dtype, ["B"])
    # what only the draft phase needs makes room for what only extend needs
    b.value("ids", "i64", ["B", "A"], at=b.offset("buf.dslots") if b.dims["D"] * 1 >= b.dims["A"] else None)
    b.value("select", "i64", ["B"], at=b.offset("draft_positions"))
    b.value("h", "i32", ["B"], "health")
    ops = [
        op("vocab.argmax", f"tlogits {rows}", "am tbad", dtype="i32"),
        op("health.raise", f"h{forwards} tbad", "hv", bit=1),
        op("verify.greedy", f"tokens{forwards + 1} am {rows}", "predict aindex alens"),
        op("commit.lengths", f"{lens} alens predict", "new_lens bonus"),
        op("commit.extend_ids", "predict alens", "ids"),
        op("commit.select", "alens", "select"),
    ]
    b.value("hv", "i32", ["B"], "health")
    if b.overlap:
        ops.append(op("relay.publish", f"{rows} new_lens", field="seq_lens"))
    return [call, b.launch("verify_commit", *ops)]


def _extend(b: Builder, hidden: bool) -> list[Json]:
    rows = "req_pool_indices"
    results, extra = {"logits": b.engine("elogits", "f32", ["B", "Vd"])}, {}
    if hidden:
        extra["hidden"] = "thidden"
        results["hidden"] = b.engine("ehidden", "f32", ["B", "W"])
    operands = {"tokens": "ids", "positions": "epos", "slots": "eslots", "select": "select", "accept_lens": "alens"}
    capture = "last" if hidden else "null"
    call = external("extend", "extend", capture, results, **operands, rows=rows, seq_lens=lengths(b), **extra)
    ops = [
        op("vocab.argmax", f"elogits {rows}", "next ebad", dtype="i64"),
        op("health.raise", "hv ebad", "h", bit=2),
        op("carry.store", f"{rows} bonus", field="bonus"),
        op("carry.store", f"{rows} next", field="topk_index"),
    ]
    if hidden:
        ops.append(op("carry.store", f"{rows} ehidden", field="hidden"))
    return [call, b.launch("extend_stash", *ops)]


def _prefill(b: Builder, hidden: bool) -> list[Json]:
    rows, results, extra = "req_pool_indices", {"logits": b.engine("plogits", "f32", ["B", "V"])}, {}
    drafted = {"logits": b.engine("pdlogits", "f32", ["B", "Vd"])}
    if hidden:
        results["hidden"] = b.engine("phidden", "f32", ["T", "W"])
        drafted["hidden"] = b.engine("pdhidden", "f32", ["B", "W"])
        extra["hidden"] = "phidden"
    b.value("first", "i32", ["B"])
    for name in ("ph", "ph0", "ph1"):
        b.value(name, "i32", ["B"], "health")
    argmax = b.launch(
        "row_argmax",
        op("health.clear", rows, "ph0"),
        op("vocab.argmax", f"plogits {rows}", "first pbad", dtype="i32"),
        op("health.raise", "ph0 pbad", "ph1", bit=3),
    )
    ops = [
        op("vocab.argmax", f"pdlogits {rows}", "pnext pdbad", dtype="i64"),
        op("health.raise", "ph1 pdbad", "ph", bit=2),
        op("carry.store", f"{rows} first", field="bonus"),
        op("carry.store", f"{rows} pnext", field="topk_index"),
    ]
    if hidden:
        ops.append(op("carry.store", f"{rows} pdhidden", field="hidden"))
    if b.overlap:
        ops.append(op("carry.store", f"{rows} seq_lens", field="seq_lens"))
    where = {"rows": rows, "seq_lens": "seq_lens"}
    full, last = ("full", "last") if hidden else ("null", "null")
    return [
        external("prefill_target", "prefill_target", full, results, **where),
        argmax,
        external("prefill_draft", "prefill_draft", last, drafted, first="first", **where, **extra),
        b.launch("prefill_stash", *ops),
    ]
