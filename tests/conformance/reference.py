"""specc's reference ops (the CPU backend of every generated wheel) on the cases of `cases.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specc.runtime.semantics.reference import evaluate

Case = dict[str, Any]
Answer = dict[str, Tensor]


class Chain:
    """The state of one chain case: pools by field, and the sizes of the axes."""

    def __init__(self, case: Case) -> None:
        self.case, self.rows, self.nodes = case, case["rows"], case["steps"] + 1
        self.pools = {
            name: case[name].clone() for name in ("bonus", "topk_index", "seq_lens", "hidden") if name in case
        }
        steps, count = case["steps"], len(self.rows)
        self.dims = {"B": count, "K": 1, "S": steps, "D": steps - 1, "N": self.nodes, "A": self.nodes}

    def op(self, name: str, *operands: Tensor, **attrs: object) -> tuple[Tensor, ...]:
        """The results of one op."""
        return evaluate(name, operands, attrs, self.dims, self.pools)

    def one(self, name: str, *operands: Tensor, **attrs: object) -> Tensor:
        """The result of an op that has one."""
        (result,) = self.op(name, *operands, **attrs)
        return result

    def round(self, given: Case) -> Answer:
        """One decode step."""
        rows, offset, table = self.rows, self.case["draft_offset"], self.case["table"]
        lens = self.one("carry.load", rows, field="seq_lens")
        bonus, token = (self.one("carry.load", rows, field=field) for field in ("bonus", "topk_index"))
        answer: Answer = {"seq_lens": lens, "root": bonus.to(torch.int64), "draft_token": token}
        if "hidden" in self.case:
            answer["draft_hidden"] = self.one("carry.load", rows, field="hidden")
        for name, axis, at in (("verify", "N", 0), ("extend", "A", offset)):
            answer[f"{name}_positions"] = self.one("kv.positions", lens, axis=axis, offset=at, stride=1).flatten()
            answer[f"{name}_slots"] = self.one("kv.slots", table, rows, lens, axis=axis, offset=at).flatten()
        tokens = self.draft(given, self.one("chain.start", bonus, token), lens, answer)
        answer["tokens"] = tokens.flatten()
        answer |= self.verify(given, tokens, lens)
        self.op("relay.publish", rows, answer["new_seq_lens"], field="seq_lens")
        index, _ = self.op("vocab.argmax", given["extend_logits"], rows, dtype="i64", keep="K")
        answer["next_topk_index"] = index
        self.op("carry.store", rows, answer["bonus"], field="bonus")
        self.op("carry.store", rows, index, field="topk_index")
        if "hidden" in self.case:
            self.op("carry.store", rows, given["extend_hidden"], field="hidden")
        return answer

    def draft(self, given: Case, tokens: Tensor, lens: Tensor, answer: Answer) -> Tensor:
        """The draft loop; tokens i64[B, N]."""
        if not given["draft_logits"]:
            return tokens
        rows, offset, table = self.rows, self.case["draft_offset"], self.case["table"]
        answer["draft_slots"] = self.one("kv.slots", table, rows, lens, axis="D", offset=offset)
        positions, seen = self.one("kv.positions", lens, axis="K", offset=offset, stride=0), []
        for i, logits in enumerate(given["draft_logits"]):
            seen.append(positions[:, 0])
            token, _ = self.op("vocab.argmax", logits[:, None], rows, dtype="i64")
            tokens = self.one("chain.append", tokens, token, column=i + 2)
            positions = self.one("kv.advance", positions)
        answer["draft_positions"] = torch.stack(seen)
        return tokens

    def verify(self, given: Case, tokens: Tensor, lens: Tensor) -> Answer:
        """Argmax, walk and commit."""
        argmax, _ = self.op("vocab.argmax", given["target_logits"], self.rows, dtype="i32")
        predict, accept_index, accept_lens = self.op("verify.greedy", tokens, argmax, self.rows)
        answer = {"predict": predict.flatten(), "accept_index": accept_index, "accept_lens": accept_lens}
        answer["new_seq_lens"], answer["bonus"] = self.op("commit.lengths", lens, accept_lens, predict)
        answer["extend_ids"] = self.one("commit.extend_ids", predict, accept_lens).flatten()
        answer["select"] = self.one("commit.select", accept_lens)
        return answer


def chain(case: Case) -> list[Answer]:
    """Every round of a chain case."""
    state = Chain(case)
    return [state.round(given) for given in case["rounds"]]


def argmax(case: Case) -> Answer:
    """One argmax, with its token column and positions."""
    rows, tokens = torch.arange(1, len(case["logits"]) + 1), case["tokens"]
    index, bad = evaluate("vocab.argmax", (case["logits"], rows), {"dtype": "i64", "keep": "K"}, {}, {})
    (tokens,) = evaluate("chain.append", (tokens, index), {"column": case["column"]}, {}, {})
    (positions,) = evaluate("kv.advance", (case["positions"],), {}, {}, {})
    return {"index": index, "positions": positions, "tokens": tokens, "health": bad.to(torch.int32)}


def tree(case: Case) -> Answer:
    """A draft tree: grown, selected, linked, masked, verified, committed; rows of padding behind the batch."""
    count, nodes, steps = len(case["bonus"]), case["nodes"], case["steps"]
    rows = torch.cat((torch.arange(1, count + 1), torch.zeros(case["padding"], dtype=torch.int64)))
    dims = {"B": len(rows), "K": case["branches"], "S": steps, "N": nodes, "A": steps + 1}

    def op(name: str, *operands: Tensor, **attrs: object) -> tuple[Tensor, ...]:
        return evaluate(name, operands, attrs, dims, {})

    def batch(value: Tensor) -> Tensor:
        """The value with rows of padding, which repeat the first request: nothing of it may show."""
        return torch.cat((value, value[:1].expand(case["padding"], *value.shape[1:])))

    seq_lens, bonus = batch(case["seq_lens"]), batch(case["bonus"])
    tokens, parent, depth, orphan = op("tree.select", rows, bonus, *grow(case, batch, op), steps=steps)
    answer = {"tokens": tokens, "parent": parent, "orphan": orphan}
    answer["positions"] = op("tree.positions", seq_lens, depth)[0]
    answer["mask"] = op("tree.mask", seq_lens, parent, mode="qlen", width=0)[0]
    if nodes <= 64:
        width = next(size for size in (1, 2, 4, 8) if 8 * size >= nodes)
        answer["packed"] = op("tree.mask", seq_lens, parent, mode="bitpacked", width=width)[0]
    if case["full"]:
        longest = nodes * (int(seq_lens.max()) + nodes)
        answer["full"] = op("tree.mask", seq_lens, parent, mode="full", width=longest)[0]
    argmax = batch(case["target"]).to(torch.int32)
    predict, accept_index, accept_lens = op("verify.greedy", tokens, argmax, rows, parent)
    answer |= {"predict": predict, "accept_index": accept_index, "accept_lens": accept_lens}
    (path,) = op("commit.compact", predict, accept_index)
    answer["states"] = op("commit.compact", batch(case["states"]), accept_index)[0]
    answer["new_seq_lens"], answer["bonus"] = op("commit.lengths", seq_lens, accept_lens, path)
    (answer["extend_ids"],) = op("commit.extend_ids", path, accept_lens)
    (answer["select"],) = op("commit.select", accept_lens)
    return {name: value[:count] if name != "full" else value.flatten() for name, value in answer.items()}


def grow(case: Case, batch: Callable[[Tensor], Tensor], op: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The operands of `tree.select`: scores, tokens, and what all but the first and the last step kept."""
    scores, kept = batch(case["p"][0]), []
    parts, tokens = [scores], [batch(case["index"][0])]
    for p, index in zip(case["p"][1:], case["index"][1:], strict=True):
        _, scores, best, candidates = op("tree.grow", scores, batch(p), batch(index))
        parts.append(candidates)
        tokens.append(batch(index))
        kept.append(best)
    return (*parts, *tokens, *kept[:-1])


def reject(case: Case) -> Answer:
    """Verification of drafts that were drawn."""
    tokens, mode = case["tokens"], "block" if case["block_verification"] else "rejection"
    rows, steps = torch.arange(1, len(tokens) + 1), tokens.shape[1] - 1
    scales = (1 / case["temperature"])[:, None].expand(tokens.shape)

    def op(name: str, *operands: Tensor, **attrs: object) -> tuple[Tensor, ...]:
        return evaluate(name, operands, attrs, {"A": steps + 1}, {})

    drawn, _ = op("sample.draw", case["target"], rows, case["keys"], scales, dtype="i32", keep="")
    (own,) = op("sample.mass", case["target"], rows, scales, tokens, ahead=1, keep="")
    (mass,) = op("sample.mass", case["draft"], rows, scales[:, 1:], tokens[:, 1:], ahead=0, keep="")
    (weights,) = op("sample.weigh", rows, case["coin_keys"], scales, own, mass, mode=mode, parts=1)
    given = tokens, case["target"], rows, case["keys"], scales, drawn, own, weights, mass, case["draft"]
    left, sums = op("sample.residual", *given, parts=1, cut=0, most=steps if mode == "block" else 1)
    (index,) = op("sample.accept", tokens, rows, case["coin_keys"], drawn, weights, left, sums)
    predict, _, accept_lens = op("verify.greedy", tokens, index, rows)
    return {"predict": predict, "accept_lens": accept_lens}
