"""A hand-written plan of a step that moves KV rows, reads a tree mask and has a forward with an extra result.

Tokens and parents of the tree are memory that nobody writes: a test puts them there.
"""

from __future__ import annotations

from .plans import Builder, Json, external, kv_pool, op, plan_of

PAGE, ROOM = 4, 2
POINTERS = "kv.{}.pointers"


def tree_plan(*, batch: int = 4, layers: int = 2, row_bytes: int = 16, dtype: str = "float32") -> Json:
    """K = 2 branches, N = 5 nodes, paths of A = 3; target and draft have `layers` layers of keys and values."""
    dims = {"B": batch, "K": 2, "S": 2, "D": 1, "N": 5, "A": 3, "V": 16, "Vd": 16, "P": 6, "W": 4}
    b = Builder(dims, overlap=False)
    rows = b.value("req_pool_indices", "i64", ["B"], b.arena("req_pool_indices", "i64", ["B"]))
    b.arena("seq_lens", "i64", ["B"])
    for owner in ("target", "draft"):
        b.arena(POINTERS.format(owner), "i64", [str(2 * layers)], init="zero")
    for name in ("tokens", "parent", "vslots"):
        b.value(name, "i64", ["B", "N"])
    b.value("mask", "u8", ["B", "N", "1"])
    pool = kv_pool(bound=True, layers=layers, row_bytes=row_bytes, dtype=dtype)
    outputs = {"predict": "predict", "accept_lens": "alens", "routed_experts": "experts"}
    return plan_of(
        b,
        {"prepare": [_prepare(b, rows)], "verify": _verify(b, rows)},
        name="toy_tree",
        algorithm="STANDALONE",
        kv={"page_size": PAGE, "branch_room": ROOM, "window": 10, "reserve": 20},
        kv_pools=dict.fromkeys(("target", "draft"), pool),
        carry=[],
        outputs=[(name, value, "step") for name, value in outputs.items()],
    )


def _pool_args(owner: str) -> tuple[Json, ...]:
    return (
        {"name": f"{owner}_pointers_ptr", "buffer": POINTERS.format(owner)},
        {"name": f"{owner}_slot_stride", "slot_stride": owner},
    )


def _prepare(b: Builder, rows: str) -> Json:
    ops = [
        op("kv.duplicate_tail", f"req_to_token {rows} seq_lens", offset=0, page=PAGE, room=ROOM),
        op("kv.slots", f"req_to_token {rows} seq_lens", "vslots", axis="N", offset=0),
        op("tree.mask", "seq_lens parent", "mask", mode="bitpacked", width=1),
    ]
    return b.launch("prepare", *ops, args=_pool_args("draft"))


def _verify(b: Builder, rows: str) -> list[Json]:
    results = {
        "logits": b.engine("tlogits", "f32", ["B", "N", "V"]),
        "routed_experts": b.engine("node_experts", "i32", ["B", "N", "3"]),
    }
    call = external("target", "target", "null", results, tokens="tokens", slots="vslots", mask="mask")
    b.value("predict", "i32", ["B", "A"])
    b.value("alens", "i32", ["B"])
    b.value("experts", "i32", ["B", "A", "3"])
    ops = [
        op("vocab.argmax", f"tlogits {rows}", "am tbad", dtype="i32"),
        op("verify.greedy", f"tokens am {rows} parent", "node_predict aindex alens"),
        op("commit.compact", "node_predict aindex", "predict"),
        op("commit.compact", "node_experts aindex", "experts"),
        op("kv.move", "vslots aindex alens"),
    ]
    return [call, b.launch("compact", *ops, args=_pool_args("target"))]
