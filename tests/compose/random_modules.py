"""Legal modules composed at random: any op on any values that its signature and its meaning allow.

A value may be read often, stored, handed out and carried; several walks, several reductions of one forward's logits and
long chains of ops occur. What types do not say is kept apart by `Fact`: which integers are lengths, paths or parents.
Tensors of any kind come from a forward, `SOURCE`, that is given some values and returns others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from programs import config_text

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.core import NODE, Module, on_nodes
from specc.compiler.ir.declarations import KvLayout
from specc.compiler.ir.types import REDUCED, Dim, TensorType

from .random_logits import LogitOps
from .random_nodes import NodeOps
from .random_state import StateOps
from .random_values import COLUMNS, LONGEST, Fact, Unfit

ESTABLISHED = ("typed", "live", "tree-form", "verify-selected", "compacted", "kv-bound")
FORWARDS = (
    "source source reduce reduce draw draw mass mass change keys translate part allow cut row row logprob scale "
    "best grow grow select product places lattice comb tree_positions mask gather handed_on health advance "
    "chain_of_tokens join walk visit positions convert"
)
COMMIT = (
    "compact compact compact move move move move last lengths extend_ids chosen shift scores scores store append count "
    "convert scores "
    "health handed_on tail load_again load_again"
)
EXTEND = (
    "source reduce draw change keys translate allow cut logprob scale best store load_again handed_on health extend_ids"
)


@dataclass
class Composed:
    """A module, the configuration whose sizes it has, and what its values and carried fields hold."""

    loaded: LoadedConfig
    module: Module
    facts: dict[str, Fact]
    fields: dict[str, Fact]


def compose(rng: random.Random) -> Composed:
    """One module, typed and legal: what form-kernels starts from."""
    loaded = _configuration(rng)
    module = start(loaded)
    if module.size("K") == 1 and rng.random() < 0.4:
        module.erase_input("req_to_token")
        module.add_input("block_table", TensorType("i32", ("P", "C")))
        module.add_input("num_blocks", TensorType("i32", ("P",)))
    composer = Composer(rng, module)
    composer.prefill()
    composer.step()
    facts = {value.name: fact for value, fact in composer.facts.items()}
    return Composed(loaded, composer.module, facts, composer.fields)


def _configuration(rng: random.Random) -> LoadedConfig:
    branches, steps = rng.choice([1, 2, 3]), rng.randint(1, 4)
    keys = {
        "num_steps": steps,
        "topk": branches,
        "buckets": sorted({rng.randint(1, 3), rng.randint(3, 5)}),
        "max_requests": 7,
        "page_size": rng.choice([1, 4]),
    }
    if branches > 1:
        keys |= {"num_draft_tokens": rng.randint(2, min(14, 1 + branches + (steps - 1) * branches**2)), "mask": "none"}
    model = {"num_layers": rng.randint(1, 2), "head_dim": 4, "dtype": rng.choice(["float32", "bfloat16"])}
    model |= {"vocab_size": rng.randint(5, 70)}
    reduced = {"vocab_size": rng.randint(5, max(5, model["vocab_size"] - 1)), "token_map": "engine"}
    draft = model | (reduced if reduced["vocab_size"] < model["vocab_size"] and rng.random() < 0.5 else {})
    text = config_text("STANDALONE", target=model, draft=draft, **keys)
    return load_text(text, Path("random.yaml"), names(), needs)


def start(loaded: LoadedConfig) -> Module:
    """A module without ops that has the dimensions and inputs of a step, and claims what the front establishes."""
    config, module = loaded.config, start_module(loaded)
    module.erase(next(module.ops()))
    sizes = {
        "B": ("request", config.file.buckets[-1]),
        "K": ("branch", config.file.topk),
        "J": ("candidate", config.file.topk + 1),
        "S": ("step", config.num_steps),
    }
    sizes |= {"D": ("forward", config.num_steps - 1), "A": ("path", config.path_slots), "P": ("pool", config.pool_rows)}
    if config.file.topk > 1:
        sizes[NODE] = ("node", config.num_nodes)
    assert config.draft is not None
    numbered = REDUCED if config.draft.token_map else "draft_vocab"
    sizes |= {"V": ("vocab", config.target.vocab_size), "Vd": (numbered, config.draft.vocab_size)}
    module.dims = {name: Dim(name, axis, size, dynamic=name == "B") for name, (axis, size) in sizes.items()}
    module.dims |= {n: Dim(n, axis, None) for n, axis in {"C": "context", "T": "token", "M": "corpus"}.items()}
    module.add_input("req_pool_indices", TensorType("i64", ("B",)))
    module.add_input("seq_lens", TensorType("i64", ("B",)))
    module.add_input("req_to_token", TensorType("i32", ("P", "C")))
    window = COLUMNS - LONGEST
    room = config.num_steps if config.file.topk > 1 else 0
    module.decls.append(KvLayout("kv", config.file.page_size, 0, config.num_nodes, room, window, 2 * window))
    module.established = set(ESTABLISHED)
    return module


class Composer(StateOps, LogitOps, NodeOps):
    """Adds random ops to a module, entry after entry."""

    def prefill(self) -> None:
        """Perhaps some ops of a prefill."""
        if self.rng.random() < 0.4:
            with self.phase("prefill"):
                self._enter()
                self._some(3, 8, "source reduce draw change store load_again health ngram_start handed_on")
                self._read_nodes()
                self._leave("prefill.")

    def step(self) -> None:
        """Ops of every phase of a step."""
        self._enter()
        with self.phase("prepare"):
            self._some(1, 3, "admit load load")
            self._some(1, 5, "positions slots branch_slots health handed_on propose point")
        with self.phase("draft"):
            self._some(2, 8, FORWARDS)
        with self.phase("verify"):
            self._some(2, 9, f"{FORWARDS} walk walk reject reject scores scores scores")
            self._read_nodes()
        with self.phase("commit"):
            self._some(2, 9, COMMIT)
        with self.phase("extend"):
            self._some(0, 6, EXTEND)
            self._leave("")

    def _read_nodes(self) -> None:
        """Let a forward read the rows of all nodes that nothing has read: no output can be such a value."""
        if unread := [value for value in self.here if on_nodes(value) and not self.module.users(value)]:
            self._forward(unread, [("seen", TensorType("i32", ("B",)), Fact())])

    def _enter(self) -> None:
        """Nothing is there but what the engine gives."""
        rows, lens = self.module.inputs["req_pool_indices"], self.module.inputs["seq_lens"]
        self.here, self.stored, self.again = [rows, lens], set(), {}
        self.facts |= {rows: Fact("rows"), lens: Fact("lens", most=LONGEST)}
        self.states = {"target": None, "draft": None}

    def _some(self, least: int, most: int, names: str) -> None:
        """So many ops, each by one of the methods that are named: who is named twice comes twice as often."""
        makers = [getattr(self, name) for name in names.split()]
        for _ in range(self.rng.randint(least, most)):
            for _ in range(20):
                try:
                    self.rng.choice(makers)()
                    break
                except Unfit:
                    continue

    def _leave(self, prefix: str) -> None:
        """Hand out what nothing reads, and some of what is read; a forward reads what has been moved."""
        if moved := [state for state in self.states.values() if state is not None]:
            self._forward(moved, [("moved", TensorType("i32", ("B",)), Fact())])
        for value in (value for value in self.here if value.source and not on_nodes(value)):
            if not self.module.users(value) or self.rng.random() < 0.2:
                self.module.outputs[prefix + value.name] = value
