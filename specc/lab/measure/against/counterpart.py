"""Which programs have a counterpart on the other side, and of what sizes."""

from __future__ import annotations

from specc.lab.measure.against.work import WorkSizes
from specc.lab.measure.against.work_tree import SPARE
from specc.runtime.plan.nodes import External, Launch
from specc.runtime.plan.plan import Plan
from specc.runtime.semantics.convention import DTYPES

CARRIED = {"bonus", "topk_index", "hidden", "seq_lens"}
OUTPUTS = {"predict", "accept_lens", "new_seq_lens", "bonus", "health"}
"""What a greedy step with hidden states and overlap carries and hands out; a tree carries `topk_p` besides."""


def obstacle(plan: Plan) -> str | None:
    """Why a program's step has no counterpart; None if it has one: a greedy chain or tree that drafts from hidden rows.

    It is read off what the program does, not off its algorithm's name.
    """
    target, draft = plan.models.get("target"), plan.models.get("draft")
    if plan.ranks > 1:
        return "logits are sharded over ranks"
    if plan.samples:
        return "it samples, and only greedy verification is compared"
    if target is None or draft is None:
        return "there is no draft model"
    if plan.size("S") == 0:
        return "a step without drafts is not compared"
    if plan.size("K") > 1 and plan.size("S") < 2:
        return "a tree of one step is not compared"
    if plan.size("K") + SPARE > plan.size("V"):
        return "its vocabulary is hardly larger than topk"
    return _of_dataflow(plan) or _of_sizes(plan) or _of_launches(plan)


def shape_of(plan: Plan, batch: int) -> WorkSizes:
    """The sizes of a program that has a counterpart, for a batch."""
    target, names = plan.models["target"], {"steps": "S", "nodes": "N", "vocab": "V", "pool": "P", "topk": "K"}
    return WorkSizes(
        batch=batch,
        **{key: plan.size(name) for key, name in names.items()},
        width=plan.models["draft"].hidden_size,
        page=plan.kv.page_size,
        layers=target.num_layers,
        heads=target.num_kv_heads,
        head_dim=target.head_dim,
        target_width=target.spec_width,
        dtype=DTYPES[target.dtype],
    )


def _of_dataflow(plan: Plan) -> str | None:
    carried = CARRIED | ({"topk_p"} if plan.size("K") > 1 else set())
    for name in ("hidden", "seq_lens"):
        if name not in plan.carry:
            return f"it carries no {name} from step to step"
    if carried != set(plan.carry):
        return f"it carries {_listed(set(plan.carry) ^ carried)}"
    others = {output.name for output in plan.outputs if output.entry == "step"} ^ OUTPUTS
    if others:
        return f"it hands out {_listed(others)}"
    return None if plan.kv.shifted else "its draft sees tokens at their own positions"


def _of_sizes(plan: Plan) -> str | None:
    target, draft = plan.models["target"], plan.models["draft"]
    if plan.size("Vd") != plan.size("V"):
        return "its draft scores a part of the tokens"
    pools = [pool for pool in plan.kv_pools.values() if pool.bound]
    kept = {target.dtype, target.logits_dtype, draft.dtype, draft.logits_dtype}
    if len(kept) > 1 or any(pool.dtype != str(DTYPES[target.dtype]).removeprefix("torch.") for pool in pools):
        return "its models, logits or keys and values differ in dtype"
    row = DTYPES[target.dtype].itemsize * target.num_kv_heads * target.head_dim
    if any((pool.buffers, pool.row_bytes) != (2, row) for pool in pools):
        return "keys and values are not those of one form of attention with as many heads in both models"
    copied = plan.kv_pools.get("draft")
    return "its draft has several layers" if copied is not None and copied.bound and copied.layers > 1 else None


def _of_launches(plan: Plan) -> str | None:
    """Launches and forwards other than those that both sides are made of."""
    tree, steps, nodes = plan.size("K") > 1, plan.size("S"), plan.nodes("step")
    launches = [
        node.name.rstrip("0123456789").rstrip("_") if isinstance(node, Launch) else _called(node) for node in nodes
    ]
    drafting = ["draft", "draft_topk" if tree else "draft_argmax"] * (steps - 1)
    tails = ["duplicate_tail"] if tree and plan.kv.page_size > 1 else []
    verifying = ["target", "verify_argmax", *(["compact"] if tree else []), "extend"]
    wanted = ["prepare_rows", *tails, *drafting, *verifying, "extend_topk" if tree else "extend_argmax"]
    if launches != wanted:
        return f"its step is made of other parts: {_listed(set(launches) ^ set(wanted)) or 'in another order'}"
    names = [node.operands.get("mask") for node in plan.externals("step")]
    masks = [plan.values[name] for name in names if name is not None]
    if tree and [(mask.dtype, mask.axes) for mask in masks] != [("i1", ("B", "N", "N"))]:
        return "its mask is not one of nodes by nodes"
    return None


def _called(node: object) -> str:
    return node.callback if isinstance(node, External) else type(node).__name__


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
