"""A hand-written plan of a step that looks drafts up: no draft model, prompts and a corpus brought by the engine."""

from __future__ import annotations

from .plans import INPUTS, Builder, Json, external, kv_pool, op, plan_of

WINDOW, LONGEST, SHORTEST = 24, 4, 1


def lookup_plan(*, steps: int = 3, corpus: bool = True, vocab: int = 32, batch: int = 4, pool: int = 8) -> Json:
    """The plan of a chain of looked-up drafts that relays the committed lengths."""
    dims = {"B": batch, "K": 1, "S": steps, "D": steps - 1, "N": steps + 1, "A": steps + 1, "V": vocab, "P": pool}
    b = Builder(dims, overlap=True)
    b.value("req_pool_indices", "i64", ["B"], b.arena("req_pool_indices", "i64", ["B"]))
    b.arena("seq_lens", "i64", ["B"])
    b.arena("relay.text", "i32", ["P", str(WINDOW)], init="zero")
    b.arena("relay.seq_lens", "i64", ["P"], init="zero")
    b.arena("health", "i32", ["B"])
    phases = {"prefill": _prefill(b), "prepare": [_prepare(b)], "draft": [_propose(b, corpus)], "verify": _verify(b)}
    outputs = {"predict": "predict", "accept_lens": "alens", "new_seq_lens": "new_lens", "bonus": "bonus"}
    said = [(name, value, "step") for name, value in outputs.items()] + [("health", "h", "step")]
    said += [("bonus", "first", "prefill"), ("health", "ph", "prefill")]
    brought = [("prompt_tokens", "i64", ["T"]), *([("corpus", "i32", ["M"])] if corpus else [])]
    return plan_of(
        b,
        phases,
        name="toy_lookup",
        algorithm="NGRAM",
        kv={"window": dims["A"], "reserve": 8},
        kv_pools={"target": kv_pool(bound=False)},
        options={"window": WINDOW},
        carry=[
            {"name": "text", "dtype": "i32", "axes": ["B", str(WINDOW)]},
            {"name": "seq_lens", "dtype": "i64", "axes": ["B"]},
        ],
        inputs=[*INPUTS, *((*item, "engine") for item in brought)],
        outputs=said,
    )


def _prefill(b: Builder) -> list[Json]:
    rows = "req_pool_indices"
    b.value("first", "i32", ["B"])
    b.value("ph", "i32", ["B"], "health")
    call = external(
        "prefill_target",
        "prefill_target",
        "null",
        {"logits": b.engine("plogits", "f32", ["B", "V"])},
        rows=rows,
        seq_lens="seq_lens",
    )
    argmax = b.launch(
        "row_argmax",
        op("health.clear", rows, "ph0"),
        op("vocab.argmax", f"plogits {rows}", "first pbad", dtype="i32"),
        op("health.raise", "ph0 pbad", "ph", bit=1),
    )
    start = b.launch(
        "ngram_start",
        op("ngram.start", f"{rows} seq_lens first prompt_tokens", "ptext", window=WINDOW),
        op("carry.store", f"{rows} ptext", field="text"),
        op("carry.store", f"{rows} seq_lens", field="seq_lens"),
        args=({"name": "prompt_ptr", "input": "prompt_tokens"}, {"name": "text_ptr", "buffer": "relay.text"}),
    )
    return [call, argmax, start]


def _prepare(b: Builder) -> Json:
    rows = "req_pool_indices"
    b.value("lens", "i64", ["B"])
    b.value("vpos", "i64", ["B", "N"])
    b.value("vslots", "i64", ["B", "N"])
    b.value("h0", "i32", ["B"], "health")
    ops = [
        op("health.clear", rows, "h0"),
        op("carry.load", rows, "lens", field="seq_lens"),
        op("kv.positions", "lens", "vpos", axis="N", offset=0, stride=1),
        op("kv.slots", f"req_to_token {rows} lens", "vslots", axis="N", offset=0),
    ]
    return b.launch("prepare", *ops)


def _propose(b: Builder, corpus: bool) -> Json:
    rows, more = "req_pool_indices", " corpus" if corpus else ""
    b.value("tokens", "i64", ["B", "A"])
    limits = {"longest": LONGEST, "shortest": SHORTEST, "steps": b.dims["S"], "beyond": "period"}
    ops = [
        op("carry.load", rows, "text", field="text"),
        op("ngram.propose", f"{rows} lens text{more}", "tokens", axis="A", **limits),
    ]
    args = ({"name": "corpus_ptr", "input": "corpus"}, {"name": "corpus_size", "size": "corpus", "axis": 0})
    return b.launch("ngram_propose", *ops, args=args if corpus else ())


def _verify(b: Builder) -> list[Json]:
    rows = "req_pool_indices"
    results = {"logits": b.engine("tlogits", "f32", ["B", "N", "V"])}
    operands: Json = {"tokens": "tokens", "positions": "vpos", "slots": "vslots", "rows": rows, "seq_lens": "lens"}
    b.value("predict", "i32", ["B", "A"])
    b.value("h", "i32", ["B"], "health")
    for name, dtype in {"alens": "i32", "new_lens": "i64", "bonus": "i32"}.items():
        b.value(name, dtype, ["B"])
    ops = [
        op("vocab.argmax", f"tlogits {rows}", "am tbad", dtype="i32"),
        op("health.raise", "h0 tbad", "h", bit=1),
        op("verify.greedy", f"tokens am {rows}", "predict aindex alens"),
        op("commit.lengths", "lens alens predict", "new_lens bonus"),
        op("relay.publish", f"{rows} new_lens", field="seq_lens"),
        op("carry.append", f"{rows} lens predict alens", field="text"),
    ]
    return [external("target", "target", "null", results, **operands), b.launch("verify_commit", *ops)]
