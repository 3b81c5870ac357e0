"""ngram_propose: drafts looked up in the text of a request, and of a tree all that does not depend on tokens.

The text is read where it is carried. Programs share its places, and those of a corpus, of which nobody knows yet how
many there are; the last one to arrive has the best of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specc.compiler.ir.core import Module, Op, Value, tensor_type
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.opdef import Trait
from specc.compiler.ir.ops.ngram import LAST
from specc.compiler.ir.ops.tree import SEEN_SLOTS
from specc.compiler.kernels.writing.family import (
    CAPACITY,
    MASK_MODES,
    MAX_SPLITS,
    Cluster,
    Family,
    KernelArguments,
    Scratch,
    Spec,
    in_order,
    leaves,
    maybe,
    only,
    power_of_two,
    read_in_place,
)

_BLOCK = 512
"""Places of a tile; of 256, 512 and 1024 the fastest for small batches on an H200."""

_PER_WARP = 128
"""Places of a tile that a warp takes: four per thread."""

_PREFIX_PROGRAMS = 16
"""Most programs per request that write the rows of a full mask, whose prefixes are long."""


class NgramPropose(Family):
    """The whole of drafting where drafts are looked up; in a tree with links, positions and mask."""

    stem = "ngram_propose"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every ngram.propose of a carried text with the load of that text, and the links of its branches."""
        for propose in module.find("ngram.propose"):
            load = propose["text"].source
            if load is not None and read_in_place(module, load):
                yield in_order(module, [load, propose, *_links(module, propose)])

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        shape = _Shape.of(module, cluster)
        attrs = only(cluster, "ngram.propose").attrs
        constants = [("WINDOW", shape.window), ("LONGEST", int(attrs["longest"])), ("SHORTEST", int(attrs["shortest"]))]
        constants += [("K", shape.branches), ("S", int(attrs["steps"])), ("N", shape.nodes), ("BLOCK", shape.block)]
        constants.append(("SPLITS", power_of_two(shape.most)))
        constants += [("LINKS", shape.links)] if shape.links else []
        if shape.mask is not None:
            mode, width = str(shape.mask.attrs["mode"]), int(shape.mask.attrs["width"])
            constants += [("MODE", MASK_MODES[mode]), ("WIDTH", width)]
        flags = {
            "corpus": shape.corpus is not None,
            "last": attrs["beyond"] == LAST,
            "tree": shape.links > 0,
            "mask": shape.mask is not None,
            "slots": shape.seen is not None,
        }
        tiles = f"{shape.block} places a tile, {_PER_WARP} a warp"
        return Spec(
            self.stem,
            flags,
            tuple(constants),
            tuple(_arguments(name, cluster, shape).parameters),
            _scratch(module, name, shape),
            num_warps=max(1, shape.block // _PER_WARP),
            tiles=tiles,
        )

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request, or as many as share its places; and those that write links."""
        shape = _Shape.of(module, cluster)
        return batch, shape.scans(batch) + shape.links, 1


@dataclass(frozen=True)
class _Shape:
    """Sizes of a cluster, and which of its optional parts it has.

    Attributes:
        window: entries of the ring.
        nodes: columns of the tokens.
        branches: those that have a node.
        corpus: tokens that are looked through besides.
        mask: the op that makes the mask.
        seen: the op that makes it of slots.
        links: programs per request that write links.

    """

    window: int
    nodes: int
    branches: int
    corpus: Value | None
    mask: Op | None
    seen: Op | None
    links: int

    @staticmethod
    def of(module: Module, cluster: Cluster) -> _Shape:
        propose, mask, seen = only(cluster, "ngram.propose"), maybe(cluster, "tree.mask"), maybe(cluster, SEEN_SLOTS)
        window = tensor_type(propose["text"]).sizes(module.dims)[-1]
        nodes, steps = module.size(str(propose.attrs["axis"])), int(propose.attrs["steps"])
        branches = min(module.size("K"), -(-(nodes - 1) // steps))
        links = 1 if maybe(cluster, "tree.comb") is not None else 0
        if mask is not None and mask.attrs["mode"] == "full":
            links = min(nodes, _PREFIX_PROGRAMS)
        return _Shape(window, nodes, branches, propose.get("corpus"), mask, seen, links)

    @property
    def block(self) -> int:
        """Places of a tile. All but the last token of a text are one."""
        return min(_BLOCK, power_of_two(self.window - 1))

    @property
    def most(self) -> int:
        """The most programs that share the places of a request: as many as there are tiles."""
        return MAX_SPLITS if self.corpus is not None else min(MAX_SPLITS, -(-(self.window - 1) // self.block))

    def scans(self, batch: int) -> int:
        """Programs that share the places of a request, no more of all requests than run at once."""
        return max(1, min(self.most, CAPACITY // batch))


def _links(module: Module, propose: Op) -> list[Op]:
    """The links of the branches of an ngram.propose, and what is made of nothing else: positions and the mask.

    None where another kernel reads the positions: what a step begins with makes them then, and what follows from them.
    """
    rows, seq_lens = propose["rows"], propose["seq_lens"]
    for comb in module.find("tree.comb"):
        parent, depth = comb.out("parent"), comb.out("depth")
        positions, masks = module.users(depth), [user for user in module.users(parent) if user.has(Trait.MASKS)]
        derived = [*positions, *masks]
        of_branches = comb["rows"] is rows and comb.attrs["steps"] == propose.attrs["steps"]
        whole = [op.opcode for op in positions] == ["tree.positions"] and len(masks) <= 1
        stored = leaves(module, parent, derived) and not leaves(module, depth, derived)
        links = [value for op in positions for value in op.results]
        computed = any(not is_external(user) for value in links for user in module.users(value))
        lengths = {op.named.get("seq_lens", seq_lens) for op in derived}  # a mask of slots reads none
        if of_branches and whole and stored and not computed and lengths == {seq_lens}:
            return [comb, *derived]
    return []


def _arguments(name: str, cluster: Cluster, shape: _Shape) -> KernelArguments:
    propose = only(cluster, "ngram.propose")
    arguments = KernelArguments()
    arguments.value("rows_ptr", propose["rows"])
    arguments.value("seq_lens_ptr", propose["seq_lens"])
    arguments.buffer("text_ptr", "i32", f"relay.{only(cluster, 'carry.load').attrs['field']}")
    if shape.corpus is not None:
        arguments.input("corpus_ptr", shape.corpus)
        arguments.size("corpus_size", shape.corpus)
    arguments.buffer("partial_key_ptr", "i64", f"{name}.partial_key")
    arguments.buffer("partial_token_ptr", "i32", f"{name}.partial_token")
    arguments.buffer("arrivals_ptr", "i32", f"{name}.arrivals")
    arguments.value("tokens_ptr", propose.result)
    if shape.links:
        arguments.value("parent_ptr", only(cluster, "tree.comb").out("parent"))
        arguments.value("positions_ptr", only(cluster, "tree.positions").result)
    if shape.mask is not None:
        arguments.value("mask_ptr", shape.mask.result)
    if shape.seen is not None:
        arguments.value("mask_ptr", shape.seen.out("mask"))
        arguments.value("counts_ptr", shape.seen.out("counts"))
        arguments.value("slots_ptr", shape.seen["slots"])
    return arguments


def _scratch(module: Module, name: str, shape: _Shape) -> tuple[Scratch, ...]:
    """The best places of every program, with the tokens after them, and one arrival counter per request."""
    batch, splits = module.size("B"), power_of_two(shape.most)
    return (
        Scratch(f"{name}.partial_key", "i64", (batch, splits, shape.branches)),
        Scratch(f"{name}.partial_token", "i32", (batch, splits, shape.branches)),
        Scratch(f"{name}.arrivals", "i32", (batch,), zero=True),
    )


FAMILY = NgramPropose()
