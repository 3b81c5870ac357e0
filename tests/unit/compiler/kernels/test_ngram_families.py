"""ngram_start and ngram_propose: which clusters they offer, and what decides their launches."""

from __future__ import annotations

from typing import Any

import pytest
from programs import compile_to, load

from specc.compiler.driver.build import build_program
from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.types import TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import CAPACITY, Cluster, Parameter, read_in_place
from specc.runtime.plan.nodes import Argument, Launch

START, PROPOSE = FAMILIES["ngram_start"], FAMILIES["ngram_propose"]
LOOK_UP = ["carry.load", "ngram.propose"]
LINKS = ["tree.comb", "tree.positions"]
TREE: dict[str, Any] = {"topk": 4, "num_steps": 3, "num_draft_tokens": 13}


def program(**keys: Any) -> Module:
    """The module before kernels are formed."""
    return compile_to("canonicalize", load("NGRAM", **keys))


def opcodes(clusters: list[Cluster]) -> list[list[str]]:
    """The opcodes of every cluster in order."""
    return [[op.opcode for op in cluster] for cluster in clusters]


def offered(module: Module) -> list[list[str]]:
    """What ngram_propose offers."""
    return opcodes(list(PROPOSE.candidates(module)))


def only(module: Module, opcode: str, **attrs: Any) -> Op:
    """The only op of an opcode with these attributes."""
    (op,) = [op for op in module.find(opcode) if attrs.items() <= op.attrs.items()]
    return op


def constants(module: Module) -> dict[str, int]:
    """The constants of the look-up."""
    (cluster,) = PROPOSE.candidates(module)
    return dict(PROPOSE.spec(module, "k", cluster).constants)


@pytest.mark.parametrize("corpus", [None, "words.txt"])
def test_a_chain_is_looked_up_and_nothing_else(corpus: str | None) -> None:
    module = program(options={"corpus": corpus} if corpus else {})
    assert offered(module) == [LOOK_UP]
    assert opcodes(list(START.candidates(module))) == [["ngram.start", "carry.store"]]


@pytest.mark.parametrize("mask", ["none", "qlen", "bitpacked", "full", "slots"])
def test_a_tree_comes_with_all_that_is_known_of_it(mask: str) -> None:
    module = program(**TREE, mask=mask, context_length=64)
    masks = {"none": [], "slots": ["tree.seen_slots"]}.get(mask, ["tree.mask"])
    assert offered(module) == [[*LOOK_UP, *LINKS, *masks]]


def test_links_of_other_branches_are_not_covered() -> None:
    module = program(**TREE)
    only(module, "tree.comb").attrs["steps"] = 2
    assert offered(module) == [LOOK_UP]


def test_depths_that_are_read_elsewhere_are_not_covered() -> None:
    """The kernel stores positions, which are made of them, and not the depths."""
    module = program(**TREE)
    module.outputs["depth"] = only(module, "tree.comb").results[1]
    assert offered(module) == [LOOK_UP]


def test_depths_that_an_op_of_many_results_reads_are_not_covered() -> None:
    module = program(**TREE)
    depth, rows = only(module, "tree.comb").out("depth"), only(module, "ngram.propose")["rows"]
    heat = module.add_input("heat", TensorType("f32", ("B",)))
    results = [("keys", TensorType("i64", ("B", "N"))), ("scales", TensorType("f32", ("B", "N")))]
    module.add_op("verify", "sample.keys", [rows, heat, depth], results, {"kind": 0, "offset": 0}, None)
    assert offered(module) == [LOOK_UP]


def test_positions_of_other_lengths_are_not_covered() -> None:
    module = program(**TREE, overlap=False)
    lens = module.add_input("others", TensorType("i64", ("B",)))
    positions = only(module, "tree.positions")
    module.set_operands(positions, [lens, positions.operands[1]])
    assert offered(module) == [LOOK_UP]


def test_what_is_carried_is_read_in_place_by_one_reader() -> None:
    """The text is the only load that is. Nobody else may need it loaded, and its rows are the reader's."""
    module = program()
    loads = {op.attrs["field"]: read_in_place(module, op) for op in module.find("carry.load")}
    assert loads == {"text": True, "seq_lens": False}
    text = only(module, "carry.load", field="text")
    module.outputs["text"] = text.result
    assert not read_in_place(module, text)
    assert offered(module) == []
    del module.outputs["text"]
    propose, lent = only(module, "ngram.propose"), text.operands
    others = module.add_input("others", TensorType("i64", ("B",)))
    module.set_operands(text, [others if value is text["rows"] else value for value in lent])
    assert not read_in_place(module, text)
    assert offered(module) == []
    module.set_operands(text, lent)
    assert read_in_place(module, text)
    operands = [(value.name, value.type) for value in propose.results]
    module.add_op("draft", "ngram.propose", propose.operands, operands, propose.attrs, None)
    assert not read_in_place(module, text)
    assert offered(module) == []


def test_a_ring_that_is_read_elsewhere_is_not_only_stored() -> None:
    module = program()
    module.outputs["prefill.text"] = only(module, "ngram.start").result
    assert list(START.candidates(module)) == []


@pytest.mark.parametrize("field", ["text", "words"])
def test_arguments_follow_the_field(field: str) -> None:
    """Its name is the algorithm's; a corpus is passed with its length."""
    module = program(options={"corpus": "words.txt"})
    for op in (*module.find("carry.load"), *module.find("carry.store")):
        op.attrs["field"] = str(op.attrs["field"]).replace("text", field)
    for family in (START, PROPOSE):
        (cluster,) = family.candidates(module)
        arguments = {argument.name: argument for argument in family.spec(module, "k", cluster).arguments}
        assert arguments["text_ptr"].passed == Argument("text_ptr", "buffer", f"relay.{field}")
    assert arguments["corpus_ptr"] == Parameter("*i32", Argument("corpus_ptr", "input", "corpus"))
    assert arguments["corpus_size"] == Parameter("i64", Argument("corpus_size", "size", "corpus"))


def test_branches_without_a_node_are_not_looked_for() -> None:
    """Of 4 branches of 3 nodes, 8 nodes are the root, two branches and one node of the third."""
    tree = constants(program(**{**TREE, "num_draft_tokens": 8}))
    assert (tree["K"], tree["S"], tree["N"]) == (3, 3, 8)
    assert constants(program(**{**TREE, "num_draft_tokens": 7}))["K"] == 2
    chain = constants(program())
    assert (chain["K"], chain["S"], chain["N"]) == (1, 3, 4)


@pytest.mark.parametrize(("window", "block", "splits", "warps"), [(64, 64, 1, 1), (513, 512, 1, 4), (4096, 512, 8, 4)])
def test_tiles_and_lists(window: int, block: int, splits: int, warps: int) -> None:
    """A text of 513 tokens has 512 places. Scratch has room for the list of every program."""
    module = program(options={"window": window}, **TREE)
    (cluster,) = PROPOSE.candidates(module)
    spec = PROPOSE.spec(module, "k", cluster)
    assert (dict(spec.constants)["BLOCK"], dict(spec.constants)["SPLITS"]) == (block, splits)
    assert spec.num_warps == warps
    shapes = {scratch.name: (scratch.shape, scratch.zero) for scratch in spec.scratch}
    assert shapes["k.partial_key"] == shapes["k.partial_token"] == ((4, splits, 4), False)
    assert shapes["k.arrivals"] == ((4,), True)


def test_grids() -> None:
    """As many programs as there are tiles, and run at once; one more for links, or some for rows of a full mask."""

    def programs(batch: int, **keys: Any) -> int:
        module = program(**keys)
        (cluster,) = PROPOSE.candidates(module)
        grid = PROPOSE.grid(module, cluster, batch)
        assert (grid[0], grid[2]) == (batch, 1)
        return grid[1]

    assert [programs(batch) for batch in (1, 64, 300, 4000)] == [8, 8, CAPACITY // 300, 1]
    assert programs(1, options={"window": 2049}) == 4
    assert programs(1, options={"window": 2050}) == 5
    assert programs(1, options={"corpus": "words.txt"}) == programs(1, options={"window": 1 << 20}) == 64
    assert programs(1, **TREE) == 9
    assert programs(1, **TREE, mask="full", context_length=64) == 8 + 13
    module = program(options={"window": 2050})
    (cluster,) = START.candidates(module)
    assert START.grid(module, cluster, 5) == (5, 3, 1)


@pytest.mark.parametrize("tree", [False, True])
def test_a_step_is_three_launches(tree: bool) -> None:
    """And one more for what a tree has to move. The plan passes a corpus with its length, and both are the engine's."""
    build = build_program(load("NGRAM", options={"corpus": "words.txt"}, **(TREE if tree else {})))
    plan = build.plan
    launches = [node for node in plan.nodes("step") if isinstance(node, Launch)]
    families = [plan.kernels[node.kernel].family for node in launches]
    assert families == ["rows", "ngram_propose", "argmax", *(["compact"] if tree else [])]
    passed = {argument.name: (argument.kind, argument.target) for argument in launches[1].args}
    assert passed["corpus_ptr"] == ("input", "corpus")
    assert passed["corpus_size"] == ("size", "corpus")
    assert "corpus" in plan.reads("step")
    assert "prompt_tokens" in plan.reads("prefill")
    owners = {name: item.owner for name, item in plan.inputs.items()}
    assert owners == {"req_pool_indices": "arena", "seq_lens": "arena"} | dict.fromkeys(
        ("req_to_token", "prompt_tokens", "corpus"), "engine"
    )
