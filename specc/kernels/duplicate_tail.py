"""duplicate_tail: the draft's partly filled KV page, copied to where every other branch starts."""

from __future__ import annotations

from collections.abc import Iterable

from specc.ir.core import Module
from specc.kernels.shared import copying
from specc.kernels.shared.base import Arguments, Cluster, Family, Spec, kv_pool, only, power_of_two

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
        arguments = Arguments()
        arguments.value("rows_ptr", op["rows"])
        arguments.value("seq_lens_ptr", op["seq_lens"])
        arguments.input("req_to_token_ptr", op["req_to_token"])
        arguments.stride("req_to_token_stride", op["req_to_token"])
        arguments.kv_pointers("kv_pointers_ptr", "draft")
        arguments.slot_stride("kv_stride", "draft")
        tokens, block = _tile(module, cluster)
        constants = (
            ("K", module.size("K")),
            ("OFFSET", int(op.attrs["offset"])),
            ("PAGE", int(op.attrs["page"])),
            ("ROOM", int(op.attrs["room"])),
            ("TOKENS", tokens),
            ("BLOCK", block),
            *copying.kv_constants(pool),
        )
        tiles = f"{tokens} tokens of {block} units, {copying.TILE} units at most"
        return Spec(self.stem, {}, constants, tuple(arguments.found), tiles=tiles)

    def grid(self, module: Module, cluster: Cluster, batch: int) -> tuple[int, int, int]:
        """The longest tail, a token less than a page, cut into tiles; a request's programs share them."""
        pool, (tokens, block) = kv_pool(module, "draft"), _tile(module, cluster)
        tail = int(only(cluster, "kv.duplicate_tail").attrs["page"]) - 1
        columns = -(-pool.row_bytes // (copying.kv_unit(pool) * block))
        pieces = -(-tail // tokens) * columns * pool.layers * pool.buffers
        return batch, copying.programs(max(pieces, 1), batch), 1


def _tile(module: Module, cluster: Cluster) -> tuple[int, int]:
    """Tokens and units of one tile, powers of two."""
    pool, page = kv_pool(module, "draft"), int(only(cluster, "kv.duplicate_tail").attrs["page"])
    tokens = min(_TOKENS, power_of_two(max(page - 1, 1)))
    units = power_of_two(pool.row_bytes // copying.kv_unit(pool))
    return tokens, min(units, copying.TILE // tokens)


FAMILY = DuplicateTail()
