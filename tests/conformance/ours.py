"""specc's rendered kernels in Triton's interpreter, on the cases of `cases.py`.

    python tests/conformance/ours.py CASES.pt ANSWERS.pt

A program of its own, because Triton decides between interpreting and compiling when it is first imported. Kernels are
rendered and launched by the helpers of tests/kernels.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kernels"))

import our_trees
import torch
from kernel_cases import POISON, poison, scratch
from kernel_families import FAMILIES, PREPARED
from kernel_launcher import PACKAGE, Launcher
from torch import Tensor

from specc.codegen import render
from specc.ir.ops.health import ROOM_BIT

Case = dict[str, Any]
Answer = dict[str, Tensor]
SPLITS, MORE_ROWS, BLOCK_W = 8, 2, 16
DRAFT_BIT, TARGET_BIT, EXTEND_BIT = 1, 2, 4


class Chain:
    """The buffers of one chain case, laid out for a larger batch than it has, and its launches."""

    def __init__(self, launcher: Launcher, case: Case) -> None:
        self.launcher, self.case = launcher, case
        self.live, self.nodes = len(case["rows"]), case["steps"] + 1
        self.rows = torch.cat((case["rows"], torch.zeros(case["padding"], dtype=torch.int64)))
        self.max_b = len(self.rows) + MORE_ROWS
        self.relay = {
            "relay_bonus_ptr": case["bonus"].clone(),
            "relay_topk_index_ptr": case["topk_index"].clone(),
            "relay_seq_lens_ptr": case["seq_lens"].clone(),
        }
        if "hidden" in case:
            self.relay["relay_hidden_ptr"] = case["hidden"].clone()
            self.width = case["hidden"].shape[1]

    @property
    def hidden(self) -> bool:
        """Whether hidden states are relayed."""
        return "hidden" in self.case

    def round(self, given: Case) -> Answer:
        """One decode step; the answer has the live rows only, in SGLang's shapes."""
        self.health = poison(self.max_b, dtype=torch.int32)
        self.tokens = poison(self.max_b, self.nodes, dtype=torch.int64)
        answer = self.prepare()
        if self.case["steps"] > 1:
            answer["draft_positions"] = self.draft(given)
        answer["tokens"] = self.tokens[: self.live].flatten()
        answer |= self.verify(given)
        self.stash(given, answer)
        answer["health"] = self.health[: self.live].clone()
        return answer

    def prepare(self) -> Answer:
        """Launch `prepare`."""
        case, nodes, steps = self.case, self.nodes, self.case["steps"]
        at, drafts = case["draft_offset"], steps > 1
        flags: dict[str, Any] = {name: () if isinstance(value, tuple) else False for name, value in PREPARED[0].items()}
        flags |= {"health": True, "length": ("seq_lens",), "scalars": ("seq_lens", "bonus")}
        flags |= {"admit": True, "admitted": ("seq_lens",), "chain_root": ("bonus",), "chain_drafts": ("topk_index",)}
        flags |= {"vectors": ("topk_index",), "places": ("verify_positions", "extend_positions")}
        flags |= {"windows": ("verify_slots", "extend_slots")}
        constants = {"A": nodes, "W_topk_index": 1, "WINDOW": nodes + at, "LONGEST": -1, "HEALTH_BIT": 1 << ROOM_BIT}
        for window, offset in (("verify", 0), ("extend", at)):
            constants |= {f"OFFSET_{window}_positions": offset, f"STRIDE_{window}_positions": 1}
            constants |= {f"SIZE_{window}_positions": nodes, f"SIZE_{window}_slots": nodes}
            constants[f"OFFSET_{window}_slots"] = offset
        out = {
            "admitted_seq_lens_ptr": poison(self.max_b, dtype=torch.int64),
            "kv_verify_positions_ptr": poison(self.max_b, nodes, dtype=torch.int64),
            "kv_verify_slots_ptr": poison(self.max_b, nodes, dtype=torch.int64),
            "kv_extend_positions_ptr": poison(self.max_b, nodes, dtype=torch.int64),
            "kv_extend_slots_ptr": poison(self.max_b, nodes, dtype=torch.int64),
        }
        if drafts:
            self.draft_tokens = poison(self.max_b, 1, dtype=torch.int64)
            self.draft_positions = poison(self.max_b, 1, dtype=torch.int64)
            out |= {"out_topk_index_ptr": self.draft_tokens, "kv_draft_positions_ptr": self.draft_positions}
            out["kv_draft_slots_ptr"] = poison(steps - 1, self.max_b, 1, dtype=torch.int64)
            flags |= {"kept_vectors": ("topk_index",), "runs": ("draft_slots",)}
            flags["places"] = ("draft_positions", *flags["places"])
            constants |= {"OFFSET_draft_positions": at, "STRIDE_draft_positions": 0, "SIZE_draft_positions": 1}
            constants |= {"OFFSET_draft_slots": at, "PAGE_draft_slots": 1, "ROOM_draft_slots": 0}
            constants |= {"K": 1, "FORWARDS": steps - 1, "MAX_B": self.max_b}
        columns = 1
        if self.hidden:
            out["copies_hidden_ptr"] = poison(self.max_b, 1, self.width, dtype=case["hidden"].dtype)
            flags |= {"wide": ("hidden",), "repeated": ("hidden",)}
            constants |= {"K": 1, "W_hidden": self.width, "BLOCK_W": BLOCK_W}
            columns += -(-self.width // BLOCK_W)
        table = {"req_to_token_ptr": case["table"], "req_to_token_stride": case["table"].stride(0)}
        table["columns"] = case["table"].shape[1]
        arguments = {"rows_ptr": self.rows, "health_ptr": self.health, "tokens_ptr": self.tokens, **out, **table}
        grid = (len(self.rows), columns)
        self.launcher.launch("prepare", flags, grid, {**arguments, **self.relay}, constants)
        self.seq_lens = out["admitted_seq_lens_ptr"]
        return self.prepared(out)

    def prepared(self, out: dict[str, Tensor]) -> Answer:
        """What `prepare` wrote, under the names of the answer."""
        live = self.live
        answer = {"seq_lens": self.seq_lens[:live].clone(), "root": self.tokens[:live, 0].clone()}
        answer["draft_token"] = self.tokens[:live, 1:2].clone()
        for name in ("verify_positions", "verify_slots", "extend_positions", "extend_slots"):
            answer[name] = out[f"kv_{name}_ptr"][:live].flatten()
        if "kv_draft_slots_ptr" in out:
            answer["draft_slots"] = out["kv_draft_slots_ptr"][:, :live]
            assert torch.equal(self.draft_tokens[:live], answer["draft_token"])
        if "copies_hidden_ptr" in out:
            answer["draft_hidden"] = out["copies_hidden_ptr"][:live, 0]
        return answer

    def argmax_inputs(self, logits: Tensor, *partials: int) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Pointers and constants that every argmax family has; logits of padding rows are +inf."""
        padded = torch.full((len(self.rows), *logits.shape[1:]), torch.inf, dtype=logits.dtype)
        padded[: self.live] = logits
        arguments = {"rows_ptr": self.rows, "logits_ptr": padded, "health_ptr": self.health}
        vocab = logits.shape[-1]
        constants = {"V": vocab, "STRIDE": vocab, "SPLITS": SPLITS, "BLOCK": self.case["block"]}
        return arguments | scratch(self.max_b, *partials, SPLITS), constants

    def draft(self, given: Case) -> Tensor:
        """Launch `draft_step` after every draft forward; returns the positions that each forward saw."""
        forwards, seen = self.case["steps"] - 1, []
        for i, logits in enumerate(given["draft_logits"]):
            seen.append(self.draft_positions[: self.live, 0].clone())
            arguments, constants = self.argmax_inputs(logits)
            arguments |= {"tokens_ptr": self.tokens, "column": i + 2}
            advance = i + 1 < forwards
            if advance:
                arguments["draft_tokens_ptr"] = self.draft_tokens
                arguments["draft_positions_ptr"] = self.draft_positions
            constants |= {"N": self.nodes, "HEALTH_BIT": DRAFT_BIT}
            grid = (len(self.rows), self.case["splits"])
            flags = FAMILIES["draft_step"].flagged(*(["token", "advance"] if advance else []))
            self.launcher.launch("draft_step", flags, grid, arguments, constants)
        return torch.stack(seen)

    def verify(self, given: Case) -> Answer:
        """Launch `verify_commit`."""
        nodes = self.nodes
        arguments, constants = self.argmax_inputs(given["target_logits"], nodes)
        out = {
            "predict_ptr": poison(self.max_b, nodes, dtype=torch.int32),
            "accept_index_ptr": poison(self.max_b, nodes, dtype=torch.int32),
            "accept_lens_ptr": poison(self.max_b, dtype=torch.int32),
            "new_seq_lens_ptr": poison(self.max_b, dtype=torch.int64),
            "bonus_ptr": poison(self.max_b, dtype=torch.int32),
            "extend_ids_ptr": poison(self.max_b, nodes, dtype=torch.int64),
            "select_ptr": poison(self.max_b, dtype=torch.int64),
        }
        arguments |= {"tokens_ptr": self.tokens, "seq_lens_ptr": self.seq_lens, **out}
        arguments["relay_seq_lens_ptr"] = self.relay["relay_seq_lens_ptr"]
        constants |= {"N": nodes, "A": nodes, "HEALTH_BIT": TARGET_BIT}
        flags = {"tree": False, "accept_index": True, "logprobs": False, "extend_ids": True, "select": True}
        flags |= {"lengths": ("seq_lens",), "bonuses": (), "rings": ()}
        grid = (len(self.rows), nodes * self.case["splits"])
        self.launcher.launch("verify_commit", flags, grid, arguments, constants)
        self.bonus = out["bonus_ptr"]
        answer = {name.removesuffix("_ptr"): value[: self.live] for name, value in out.items()}
        return answer | {name: answer[name].flatten() for name in ("predict", "extend_ids")}

    def stash(self, given: Case, answer: Answer) -> None:
        """Launch `extend_stash`; the next round's relay is what it leaves."""
        arguments, constants = self.argmax_inputs(given["extend_logits"])
        arguments |= {"new_bonus_ptr": self.bonus, **self.relay}
        del arguments["relay_seq_lens_ptr"]  # published by verify_commit already
        constants |= {"HEALTH_BIT": EXTEND_BIT, "W_bonus": 1}
        if self.hidden:
            hidden = given["extend_hidden"]
            padded = torch.full((len(self.rows), self.width), POISON, dtype=hidden.dtype)
            padded[: self.live] = hidden
            arguments["new_hidden_ptr"] = padded
            constants |= {"W_hidden": self.width, "BLOCK_W": BLOCK_W}
        flags = {"topk": False, "index": ("topk_index",), "p": (), "narrow": ("bonus",)}
        flags["wide"] = ("hidden",) if self.hidden else ()
        self.launcher.launch("extend_stash", flags, (len(self.rows), self.case["splits"]), arguments, constants)
        answer["next_topk_index"] = self.relay["relay_topk_index_ptr"][self.case["rows"]]


def chain(launcher: Launcher, case: Case) -> list[Answer]:
    """Every round of a chain case."""
    state = Chain(launcher, case)
    return [state.round(given) for given in case["rounds"]]


def argmax(launcher: Launcher, case: Case) -> Answer:
    """`draft_step` alone."""
    count, vocab = case["logits"].shape
    tokens, positions = case["tokens"].clone(), case["positions"].clone()
    index, health = poison(count, 1, dtype=torch.int64), torch.zeros(count, dtype=torch.int32)
    arguments = {"rows_ptr": torch.arange(1, count + 1), "logits_ptr": case["logits"], "health_ptr": health}
    arguments |= {"tokens_ptr": tokens, "column": case["column"], "draft_tokens_ptr": index}
    arguments |= {"draft_positions_ptr": positions, **scratch(count, SPLITS)}
    constants = {"V": vocab, "STRIDE": vocab, "N": tokens.shape[1], "SPLITS": SPLITS, "BLOCK": case["block"]}
    constants["HEALTH_BIT"] = DRAFT_BIT
    flags = FAMILIES["draft_step"].flagged("token", "advance")
    launcher.launch("draft_step", flags, (count, case["splits"]), arguments, constants)
    return {"index": index, "positions": positions, "tokens": tokens, "health": health}


def main() -> None:
    """Answer all cases; trees only those that are for kernels."""
    source, target = sys.argv[1:]
    torch.set_num_threads(1)
    cases = torch.load(source, weights_only=True)
    kinds = {"chain": chain, "argmax": argmax, "tree": our_trees.tree}
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
