"""ngram_start: the text that a request's drafts are looked up in, put into its pool row after the prefill."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.core import Module
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, leaves, only

_BLOCK = 1024


class NgramStart(Family):
    """One launch of its own: it reads the prompts, and nothing else of a prefill does."""

    stem = "ngram_start"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every ngram.start with the carry.store that is the only reader of its result."""
        for start in module.find("ngram.start"):
            users = [op for op in module.users(start.result) if op.opcode == "carry.store"]
            stores = [op for op in users if op["rows"] is start["rows"]]
            if len(stores) == 1 and not leaves(module, start.result, stores):
                yield start, stores[0]

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        start = only(cluster, "ngram.start")
        arguments = KernelArguments()
        for name in ("rows", "seq_lens", "first"):
            arguments.value(f"{name}_ptr", start[name])
        arguments.input("prompt_ptr", start["prompt"])
        arguments.buffer("text_ptr", "i32", f"relay.{only(cluster, 'carry.store').attrs['field']}")
        constants = (("WINDOW", int(start.attrs["window"])), ("BLOCK", _BLOCK))
        tiles = f"{_BLOCK} entries of the ring per program, eight per thread"
        return Spec(self.stem, {}, constants, tuple(arguments.parameters), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """One program per request and chunk of its ring."""
        return batch, -(-int(only(cluster, "ngram.start").attrs["window"]) // _BLOCK), 1


FAMILY = NgramStart()
