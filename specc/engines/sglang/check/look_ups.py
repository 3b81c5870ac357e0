"""How SGLang 0.5.23 looks drafts up: by a tree of so many nodes, of which a program drafts a chain or branches.

SGLang's tree has the form that its texts give it, up to a breadth, and no number of steps. A program has as many nodes.
"""

from __future__ import annotations

from specc.compiler.config.models import Fact
from specc.engines.sglang.check.command_line import BREADTH, NODES, Arguments
from specc.runtime.plan.shape import Shape

USUAL_NODES, USUAL_BREADTH = 12, 10
"""What SGLang takes where nothing is written."""


def form(arguments: Arguments) -> tuple[Fact, Fact, Fact]:
    """Return steps, topk and nodes of a program: a chain, unless a breadth is written, whose branches are as long."""
    nodes, written = arguments.number(NODES), arguments.number(BREADTH)
    count = nodes or USUAL_NODES
    branches = max(1, min(written or 1, count - 1))
    steps = -(-(count - 1) // branches)
    drafted = f"{branches} branches" if branches > 1 else "a chain"
    return (
        Fact(steps, f"{drafted} of as many nodes as SGLang's tree has"),
        Fact(branches, BREADTH if written else "a chain, as no breadth is written"),
        Fact(count, NODES if nodes else "SGLang's default"),
    )


def breadth(arguments: Arguments) -> int:
    """Return the most branches of a node of SGLang's own tree."""
    return arguments.number(BREADTH) or USUAL_BREADTH


def check_pages(arguments: Arguments, page_size: Fact, verify: Fact) -> None:
    """Report pages on which SGLang looks no trees up, where this attention backend verifies."""
    if int(page_size.value) > 1 and breadth(arguments) > 1 and verify.value != "flashinfer":
        what = f"pages of {page_size.value} tokens ({page_size.origin}) under trees that are looked up"
        arguments.refuse(what, f"SGLang starts no such server; write {BREADTH} 1")


def arguments_of(shape: Shape, *, looked_up: bool, blocks: bool = False) -> list[str]:
    """Return the arguments by which a server has a program's shape, whose drafts are looked up or are a model's."""
    if blocks:
        return [NODES, str(shape.num_nodes)]
    steps, topk = [] if looked_up else ["--speculative-num-steps", str(shape.num_steps)], str(shape.topk)
    return [*steps, BREADTH if looked_up else "--speculative-eagle-topk", topk, NODES, str(shape.num_nodes)]
