"""duplicate_tail: the draft's partly filled KV page, copied to where every other branch starts."""

from __future__ import annotations

from collections.abc import Iterable

from specc.compiler.ir.analysis.page_runs import PageRuns
from specc.compiler.ir.core import Module
from specc.compiler.kernels import copying
from specc.compiler.kernels.writing.family import Cluster, Family, KernelArguments, Spec, kv_pool, only, power_of_two
from specc.compiler.kernels.writing.knobs import WARPS, Knobs, tuned_split

_TOKENS = 8


class DuplicateTail(Family):
    """One launch of its own: it copies between slots, and touches nothing else of the step."""

    stem = "duplicate_tail"

    def candidates(self, module: Module) -> Iterable[Cluster]:
        """Every kv.duplicate_tail alone."""
        return [(op,) for op in module.find("kv.duplicate_tail")]

    def spec(self, module: Module, name: str, cluster: Cluster) -> Spec:
        """See `Family.spec`."""
        op, pool = only(cluster, "kv.duplicate_tail"), kv_pool(module, "draft")
        arguments = KernelArguments()
        arguments.value("rows_ptr", op["rows"])
        arguments.value("seq_lens_ptr", op["seq_lens"])
        arguments.input("req_to_token_ptr", op["req_to_token"])
        arguments.stride("req_to_token_stride", op["req_to_token"])
        arguments.kv_pointers("kv_pointers_ptr", "draft")
        arguments.slot_stride("kv_stride", "draft")
        runs, (tokens, block) = _runs(cluster), _tile(module, cluster)
        constants = (
            ("K", module.size("K")),
            ("OFFSET", int(op.attrs["offset"])),
            ("PAGE", runs.page),
            ("ROOM", runs.room),
            ("TOKENS", tokens),
            ("BLOCK", block),
            *copying.kv_constants(pool),
        )
        tiles = f"{tokens} tokens of {block} units, {copying.TILE} units at most"
        return Spec(self.stem, {}, constants, tuple(arguments.parameters), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """The longest tail, a token less than a page, cut into tiles; a request's programs share them."""
        shared = tuned_split(module, cluster[0], batch) or copying.programs(_pieces(module, cluster), batch)
        return batch, shared, 1

    def knobs(self, module: Module, cluster: Cluster) -> Knobs:
        """See `Family.knobs`."""
        return Knobs(warps=WARPS, split=_pieces(module, cluster))


def _pieces(module: Module, cluster: Cluster) -> int:
    """Tiles of the longest tail in all KV buffers."""
    pool, (tokens, block) = kv_pool(module, "draft"), _tile(module, cluster)
    columns = -(-pool.row_bytes // (copying.kv_unit(pool) * block))
    return max(1, -(-_runs(cluster).tails[-1] // tokens) * columns * pool.layers * pool.buffers)


def _runs(cluster: Cluster) -> PageRuns:
    return PageRuns.of(only(cluster, "kv.duplicate_tail"))


def _tile(module: Module, cluster: Cluster) -> tuple[int, int]:
    """Tokens and units of one tile, powers of two."""
    pool = kv_pool(module, "draft")
    tokens = min(_TOKENS, power_of_two(max(_runs(cluster).tails[-1], 1)))
    units = power_of_two(pool.row_bytes // copying.kv_unit(pool))
    return tokens, min(units, copying.TILE // tokens)


FAMILY = DuplicateTail()
