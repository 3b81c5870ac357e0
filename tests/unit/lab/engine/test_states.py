"""The states of recurrent layers: whatever was accepted, those of transformers fed with the accepted tokens alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from fakes.program import make_plan
from random_hybrids import HYBRIDS
from torch import Tensor
from transformers import DynamicCache

from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.memory.kv_pool import KVPool, PoolShape
from specc.lab.engine.memory.probing import CACHE
from specc.lab.engine.memory.state_pool import CONV, RECURRENT, PartShape, StatePart, StatePool
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.serving.callbacks import EngineMemory, TargetCallbacks
from specc.lab.engine.serving.prompts import PrefillPrompt

from .models_for_tests import VOCAB, make_target
from .test_tree_attention import mask_of, path_of, random_tree, slots_of

torch.set_num_threads(1)
LENGTHS = (9, 1, 14, 9)
COLUMNS, ROUNDS, NODES = 96, 5, 6
MANY, FEW = 1700, 300
"""Steps of texts: of each family in each of three forms, ten thousand together; and where transformers takes long."""
each_family = pytest.mark.parametrize("family", HYBRIDS)


def hybrid(family: str) -> TargetModel:
    """A random target of two layers of attention and two with a state."""
    return make_target(family, layers=4, **HYBRIDS[family])


class Fed:
    """What a cache of transformers has of a text whose tokens come one by one, in doubles."""

    def __init__(self, model: Any) -> None:
        """Begin an empty text of a model of doubles."""
        self.model, self.cache, self.length = model, DynamicCache(config=model.config), 0

    def states(self, text: Sequence[int]) -> dict[StatePart, Tensor]:
        """Those after a text that goes on from the last one."""
        with torch.no_grad(), plain_attention(self.model):
            for place in range(self.length, len(text)):
                token, position = torch.tensor([[text[place]]]), torch.tensor([[place]])
                self.model(token, position_ids=position, **{CACHE: self.cache}, use_cache=True)
        self.length = len(text)
        found: dict[StatePart, Tensor] = {}
        layers: list[Any] = self.cache.layers
        for number, layer in enumerate(layers):
            if hasattr(layer, "conv_states"):
                found[StatePart(number, 0, CONV)], found[StatePart(number, 0, RECURRENT)] = (
                    layer.conv_states[0][0],
                    layer.recurrent_states[0][0],
                )
        return found


class Steps:
    """The callbacks of a target over scattered slots, and the texts of pool rows 1, 2, ..., of which row 5 has none."""

    def __init__(self, target: TargetModel, mode: str | None, seed: int) -> None:
        """Prefill prompts; states of free rows are no numbers."""
        self.generator = torch.Generator().manual_seed(seed)
        table = (torch.randperm(6 * COLUMNS, generator=self.generator) + 1).to(torch.int32).view(6, COLUMNS)
        table[0] = 0
        pool = KVPool(target.facts.pool, table.numel() + 1)
        self.states = self.pool(target, len(table))
        for tensor in self.states.tensors:
            tensor[1:] = torch.nan
        self.texts = [torch.randint(2, VOCAB, (n,), generator=self.generator).tolist() for n in LENGTHS]
        prompts = {row: PrefillPrompt(text) for row, text in enumerate(self.texts, start=1)}
        memory = EngineMemory({"target": pool}, table, prompts, {"target": self.states})
        self.callbacks = TargetCallbacks(target, memory, make_plan(target, None))
        self.callbacks.mask_mode = mode
        self.table = table
        rows = torch.tensor([*prompts])
        self.callbacks.prefill_target(rows=rows, seq_lens=torch.tensor(LENGTHS), capture="null")

    def pool(self, target: TargetModel, rows: int) -> StatePool:
        """The states of so many pool rows."""
        return StatePool(target.facts.states, rows)

    def verify(self, order: list[int], trees: list[list[int]]) -> Tensor:
        """Run a window for pool rows in an order, 0 being padding; returns its tokens."""
        depth = torch.tensor([[len(path_of(tree, node)) - 1 for node in range(NODES)] for tree in trees])
        lengths = [len(self.texts[row - 1]) if row else 0 for row in order]
        rows, seq_lens = torch.tensor(order), torch.tensor(lengths)
        tokens = torch.randint(2, VOCAB, (len(order), NODES), generator=self.generator)
        slots = self.table[rows[:, None], seq_lens[:, None] + torch.arange(NODES)].long()
        call: dict[str, Any] = {"rows": rows, "seq_lens": seq_lens, "tokens": tokens, "slots": slots}
        mode = self.callbacks.mask_mode
        if mode is not None:
            call |= slots_of(trees, slots) if mode == "slots" else {"mask": mask_of(trees, mode, lengths)}
        call |= self.told(rows)
        self.callbacks.target(**call, positions=seq_lens[:, None] + depth, capture="null")
        return tokens

    def told(self, rows: Tensor) -> dict[str, Tensor]:
        """Further arguments of the target, by pool rows."""
        return {}

    def kept(self) -> dict[StatePart, Tensor]:
        """The states of all pool rows, T[P, ...]."""
        return self.states.parts

    def commit(self, order: list[int], accepted: list[list[int]]) -> None:
        """Commit the last node of every row's path; nodes that are no path's last are no numbers any more."""
        most = max(map(len, accepted))
        numbers = [[b * NODES + node for node in path] + [-1] * (most - len(path)) for b, path in enumerate(accepted)]
        with torch.inference_mode():
            for pending in self.states.pending.values():
                for b, path in enumerate(accepted):
                    pending[b, [node for node in range(NODES) if [node] != path[-1:]]] = torch.nan
        self.callbacks.commit_state(
            rows=torch.tensor(order),
            seq_lens=torch.zeros(len(order), dtype=torch.int64),
            accept_index=torch.tensor(numbers, dtype=torch.int32),
            accept_lens=torch.tensor([len(path) for path in accepted], dtype=torch.int32),
            capture="null",
        )


@each_family
@pytest.mark.parametrize("mode", [None, "qlen", "bitpacked", "full", "slots"])
def test_states_are_those_of_the_accepted_tokens(family: str, mode: str | None) -> None:
    """Over steps of chains and random trees, for rows in any order, with padding; a row may be left out of a step."""
    follow(Steps(hybrid(family), mode, seed=5), Random(f"{family} {mode}"))


@each_family
def test_many_steps(family: str) -> None:
    many_steps(lambda mode, seed: Steps(hybrid(family), mode, seed))


def many_steps(begin: Callable[[str | None, int], Steps], least: int = MANY) -> None:
    """Check the states of chains and trees until texts have made so many steps."""
    made, seed = 0, 0
    while made < least:
        steps = begin((None, "qlen", "bitpacked")[seed % 3], seed)
        made += follow(steps, Random(seed), rounds=COLUMNS, near=5e-4)
        seed += 1


def follow(steps: Steps, random: Random, rounds: int = ROUNDS, near: float = 1e-4) -> int:
    """Check the states after each of some steps, as long as texts have room, whatever was accepted; how many were made.

    A step counts for every text that makes it. `near` is how far from doubles a number of 32 bits may be, besides a
    thousandth of it.
    """
    target, mode, made = steps.callbacks.target_model, steps.callbacks.mask_mode, 0
    doubles = copy.deepcopy(target.model).double()
    doubles.set_experts_implementation("eager")  # products of groups of rows are none of doubles
    oracles = [Fed(doubles) for _ in steps.texts]
    for _ in range(rounds):
        if max(map(len, steps.texts)) + NODES > COLUMNS:
            break
        made += len(steps.texts)
        order = [0, *random.sample(range(1, 5), 4)]
        random.shuffle(order)
        trees = (
            [random_tree(NODES, steps.generator) for _ in order] if mode else [[*range(-1, NODES - 1)] for _ in order]
        )
        before = [tensor.clone() for tensor in steps.kept().values()]
        tokens = steps.verify(order, trees)
        assert all(map(same, before, steps.kept().values())), "a verification leaves states as they were"
        paths = [
            path_of(tree, random.randrange(NODES)) if row and random.random() < 0.9 else []
            for row, tree in zip(order, trees, strict=True)
        ]
        steps.commit(order, paths)
        for b, (row, path) in enumerate(zip(order, paths, strict=True)):
            if row:
                # as a step moves what was accepted to the front of the window: its keys and values
                steps.texts[row - 1] += [int(tokens[b, node]) for node in path]
        rewrite(steps, target)
        for row, (text, oracle) in enumerate(zip(steps.texts, oracles, strict=True), start=1):
            for part, wanted in oracle.states(text).items():
                torch.testing.assert_close(steps.kept()[part][row].double(), wanted.double(), rtol=1e-3, atol=near)
        for tensor in steps.states.tensors:
            assert not tensor[0].any()
            assert bool(tensor[5].isnan().all())
    return made


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, also where they are no numbers."""
    return torch.equal(one.nan_to_num(nan=-1e9), other.nan_to_num(nan=-1e9))


def rewrite(steps: Steps, target: TargetModel) -> None:
    """Write the keys and values of the texts where they belong, as a step's moves do, and no states."""
    memory = steps.callbacks.memory
    lengths = torch.tensor([len(text) for text in steps.texts])
    other = StatePool(target.facts.states, len(steps.table))
    prompts = {row: PrefillPrompt(text) for row, text in enumerate(steps.texts, start=1)}
    again = EngineMemory(memory.pools, steps.table, prompts, {"target": other})
    callbacks = TargetCallbacks(target, again, make_plan(target, None))
    callbacks.prefill_target(rows=torch.arange(1, 5), seq_lens=lengths, capture="null")


def test_a_pool_of_keys_and_values_has_the_layers_of_attention() -> None:
    """By the model's own numbers; there are no others."""
    target = hybrid("bamba")
    assert (target.facts.num_layers, target.facts.kv_layers) == (2, (1, 3))
    assert sorted({shape.part.layer for shape in target.facts.states}) == [0, 2]
    pool = KVPool(PoolShape(2, 1, 4, torch.float32, numbers=(1, 3)), 5)
    for layer in (1, 3):
        pool.write(layer, torch.tensor([2]), *(torch.full((1, 1, 4), float(layer)),) * 2)
    assert [float(key[2].sum()) for key, _ in pool.layers] == [4.0, 12.0]
    with pytest.raises(UnsupportedModelError, match="the KV pool has 2 layers, the model has layer 2"):
        pool.read(2, torch.tensor([[1]]))


def test_a_row_that_is_given_back_has_no_state() -> None:
    pool = StatePool([PartShape(StatePart(0, 0, kind), (2, 3), torch.float32) for kind in (CONV, RECURRENT)], 4)
    for tensor in pool.tensors:
        tensor.fill_(7)
    pool.clear(2)
    for tensor in pool.tensors:
        assert tensor.flatten(1).any(1).tolist() == [True, True, False, True]
