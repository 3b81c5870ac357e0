"""Verification that draws one row after the other along the path: as when all rows are drawn, and as its ops say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from cluster_cases import (
    FLOATS,
    PLAIN,
    POOL,
    Drawn,
    Scan,
    TypedBuilder,
    carry,
    check_module,
    choice,
    integer,
    small_module,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick, quicker, random_rows
from kernel_launcher import Launcher
from test_cut import parameters_of
from test_penalize import PENALTIES, parents_of, penalties_of, words_of
from test_sample import TEMPERATURES, bitmasks
from topk_cases import hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module, Value
from specc.compiler.ir.declarations import Options
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.select_verify import SelectVerify
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS, evaluate

RESULTS = ("predict", "accept_index", "accept_lens", "health")


@dataclass(frozen=True)
class Case:
    """Verification of a tree or a chain of so many nodes, of which so many are on a path, and what changes logits."""

    form: str
    dtype: str
    nodes: int
    slots: int
    vocab: int
    filters: tuple[str, ...]
    features: tuple[str, ...]


cases = st.builds(
    Case,
    form=st.sampled_from(["chain", "tree"]),
    dtype=st.sampled_from(FLOATS),
    nodes=st.integers(1, 9),
    slots=st.integers(1, 5),
    vocab=st.integers(2, 40) | st.integers(200, 700),
    filters=st.sampled_from([(), ("top_k",), ("top_k", "top_p", "min_p"), ("min_p",)]),
    features=st.sampled_from([(), ("penalties",), ("grammar",), ("penalties", "grammar", "bias")]),
)


def verifying(case: Case, rows: str) -> Module:
    """A module that draws, walks and raises a bit, lowered by the pass."""
    module = small_module(N=case.nodes, A=case.slots, V=case.vocab)
    module.decls.append(Options("options", (6,), 1, -1))
    b, batch = TypedBuilder(module), module.inputs["req_pool_indices"]
    for name, dtype in (("counts", "i32"), ("bias", "f32")):
        carry(module, name, dtype, "V")
    logits, tokens = b.given("logits", case.dtype, "N", "V"), b.given("tokens", "i64", "N")
    links = (b.given("parent", "i64", "N"),) if case.form == "tree" else ()
    given = {name: b.given(name, "i32" if name == "top_k" else "f32") for name in case.filters}
    noise = b.given("keys", "i64", "N"), b.given("scales", "f32", "N")
    with b.phase("verify"):
        if "penalties" in case.features:
            counts = b("carry.load", batch, field="counts")
            penalties = [b.given(name, "f32") for name in PENALTIES]
            logits = b("sample.penalize_nodes", logits, counts, *penalties, tokens, *links)
        if "bias" in case.features:
            logits = b("sample.bias", logits, b("carry.load", batch, field="bias"))
        if "grammar" in case.features:
            logits = b("sample.allow", logits, b.given("bitmask", "i32", "N", -(-case.vocab // 32)))
        cuts: tuple[Value, ...] = ()
        for name in case.filters:
            cuts = (b(f"sample.{name}", logits, noise[1], given[name], *cuts, names=(f"cut_{name}",)),)
        token, flags = b.many("sample.draw", logits, batch, *noise, *cuts, dtype="i32", keep="")
        path = b.many("verify.greedy", tokens, token, batch, *links)
        bad = b("walk.bad", flags, path[1], rows=rows)
        health = b("health.raise", b("health.clear", batch), bad, bit=1)
    module.outputs |= dict(zip(RESULTS, (*path, health), strict=True))
    SelectVerify().run(module, Context())
    return module


def given_for(source: torch.Generator, case: Case, count: int = 6) -> Drawn:
    """Inputs: rows of every kind, few tokens, so that drafts are accepted often, and some greedy requests."""
    batch = random_rows(source, integer(source, 1, count), POOL)
    shape = (len(batch), case.nodes)
    kinds = hostile_logits(source, len(batch) * case.nodes, case.vocab, case.vocab, DTYPES[case.dtype])
    plain = torch.randn(len(batch) * case.nodes, case.vocab, generator=source).to(DTYPES[case.dtype])
    plain[:, : min(3, case.vocab)] += 6
    logits = torch.where(torch.rand(len(plain), 1, generator=source) < 0.15, kinds, plain)
    temperature = TEMPERATURES[torch.randint(len(TEMPERATURES), (len(batch),), generator=source)]
    seeds = torch.randint(2**62, (len(batch),), generator=source)
    positions = torch.randint(90, shape, generator=source)
    keys, scales = OPS["sample.keys"]((seeds, temperature, positions), {"offset": 1, "kind": 0}, {})
    values = {"req_pool_indices": batch, "logits": logits.view(*shape, case.vocab), "keys": keys, "scales": scales}
    values |= {"tokens": torch.randint(min(3, case.vocab), shape, generator=source)}
    values |= {"parent": parents_of(source, *shape), "relay.counts": words_of(source, POOL, case.vocab)}
    values |= {"relay.bias": torch.randn(POOL, case.vocab, generator=source)}
    for table in ("relay.counts", "relay.bias"):  # of padding, which cuts do not ask for
        values[table][0] = 0
    values |= parameters_of(source, len(batch), case.vocab) | penalties_of(source, len(batch))
    mask = bitmasks(source, *shape, -(-case.vocab // 32))
    mask[..., 0] |= 7
    return values | {"bitmask": mask}


def computed(module: Module, values: Drawn) -> dict[str, Tensor]:
    """The outputs of a module by the references."""
    dims = {dim.name: dim.size for dim in module.dims.values() if dim.size is not None}
    dims |= {"B": len(values["req_pool_indices"])}
    known = {value: values[name] for name, value in module.inputs.items() if name in values}
    pools = {name: values[f"relay.{name}"] for name in module.carries}
    for op in module.ops():
        results = evaluate(op.opcode, tuple(known[value] for value in op.operands), op.attrs, dims, pools)
        known |= dict(zip(op.results, results, strict=True))
    return {name: known[value] for name, value in module.outputs.items()}


def visited(module: Module) -> int:
    """How many rows of a request are drawn at most."""
    return len(module.find("vocab.row"))


@settings(quick, max_examples=400)
@given(seed=st.integers(0, 2**32), case=cases)
def test_both_forms_compute_the_same(seed: int, case: Case) -> None:
    """Tokens, paths, lengths and health, of padding and greedy requests among them."""
    eager, lazy = verifying(case, "eager"), verifying(case, "lazy")
    values = given_for(generator(seed), case)
    want, lazy_results = computed(eager, values), computed(lazy, values)
    for name in RESULTS:
        assert torch.equal(want[name], lazy_results[name]), name
    assert visited(lazy) == min(case.nodes, case.slots)
    assert not visited(eager)


def test_drafts_are_accepted_and_rows_are_bad() -> None:
    """The inputs above bring about what they are for: paths of every length, and bad rows on them and beside them."""
    case = Case("tree", "f32", 8, 4, 30, (), ())
    lens, health, beside = set[int](), set[int](), 0
    for seed in range(20):
        values = given_for(generator(seed), case)
        results = computed(verifying(case, "lazy"), values)
        lens |= set(results["accept_lens"].tolist())
        health |= set(results["health"].tolist())
        live = (values["req_pool_indices"] != 0)[:, None]
        beside += int(((values["logits"].float().amax(-1).isnan() & live).any(1) & (results["health"] == 0)).sum())
    assert lens == {0, 1, 2, 3, 4}
    assert health == {0, 2}
    assert beside


@pytest.mark.parametrize("rows", ["eager", "lazy"])
@settings(quicker, max_examples=12)
@given(seed=st.integers(0, 2**32), case=cases)
def test_kernels_of_both(launcher: Launcher, rows: str, seed: int, case: Case) -> None:
    """Every launch leaves what its ops say, on poisoned memory, however rows are cut."""
    source = generator(seed)
    values = given_for(source, case, count=3)
    scan = Scan(integer(source, 1, 3), int(choice(source, ("64", "256"))))
    module = verifying(case, rows)
    check_module(launcher, module, source, values, PLAIN if case.filters else scan)
    assert {op.attrs["kernel"].split("_")[0] for op in module.ops()} <= {"verify", "cut", "prepare"}


@pytest.mark.parametrize("ended", [False, True])
def test_no_walk_goes_on_from_where_it_ended(launcher: Launcher, ended: bool) -> None:
    """Though nodes that were not kept have parent -1, too, and the token that was drawn."""
    module = small_module(N=4)
    b, source = TypedBuilder(module), generator(2)
    given = b.given("tokens", "i64", "N"), b.given("token", "i32"), module.inputs["req_pool_indices"]
    with b.phase("verify"):
        b.hand_out(*b.many("walk.step", *given, b.given("at", "i64"), b.given("parent", "i64", "N")))
    values = {"req_pool_indices": torch.tensor([3, 1]), "tokens": torch.full((2, 4), 7)}
    values |= {"token": torch.full((2,), 7, dtype=torch.int32), "at": torch.full((2,), -1 if ended else 0)}
    values["parent"] = torch.tensor([[-1, -1, -1, 0], [-1, 0, -1, -1]])
    results = check_module(launcher, module, source, values)
    assert results["node"].tolist() == ([-1, -1] if ended else [3, 1])
    assert results["rows"].tolist() == ([0, 0] if ended else [3, 1])


def test_a_launch_a_round(launcher: Launcher) -> None:
    """One for what a walk begins with, then one a round; what changes logits costs none."""
    case = Case("tree", "bf16", 9, 5, 700, (), ("penalties", "grammar", "bias"))
    module = verifying(case, "lazy")
    source = generator(1)
    check_module(launcher, module, source, given_for(source, case, count=3))
    assert sorted({op.attrs["kernel"] for op in module.ops()}) == [
        *(f"verify_draw_{i}" for i in range(5)),
        "verify_rows",
    ]
