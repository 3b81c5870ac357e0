"""Kernel sources to compile, and the tile sizes that the tests hold to their promises."""

from collections.abc import Mapping

from kernel_families import FAMILIES

from specc.codegen import render
from specc.codegen.aot import KernelSource

# BLOCK 2048 and 4 warps: 16 elements per thread. For 16-bit logits that is two independent 128-bit loads per
# thread in flight, for f32 four. On sm_90 it takes 60 to 72 registers, so 7 or 8 blocks (28 warps and more)
# fit on a multiprocessor and have 28 KB or more in flight, which covers the latency of its memory (4.8 TB/s
# over 132 multiprocessors, about 0.7 us: 25 KB each). 4096 doubles the loads but takes over 100 registers, so
# hardly more is in flight, and it halves the number of chunks there are to share out.
BLOCK, NUM_WARPS = 2048, 4
# Nothing here has a dot product to pipeline; 1 says so.
NUM_STAGES = 1
# Hidden rows are copied, no state is kept: 8 elements per thread, one 128-bit load of a 16-bit type.
BLOCK_W = 1024
SPLITS = 64


def source(
    stem: str,
    flags: Mapping[str, bool],
    *,
    logits: str = "bf16",
    vocab: int = 128256,
    header: str = "a test",
    name: str | None = None,
) -> KernelSource:
    """One kernel as a compiler would describe it: contiguous logits, every buffer aligned."""
    family = FAMILIES[stem]
    values = {
        "V": vocab,
        "STRIDE": vocab,
        "SPLITS": SPLITS,
        "BLOCK": BLOCK,
        "HEALTH_BIT": 1,
        "N": 4,
        "A": 4,
        "FORWARDS": 2,
        "DRAFT_OFFSET": 0,
        "EXTEND_OFFSET": 1,
        "MAX_B": 64,
        "W": 4096,
        "BLOCK_W": BLOCK_W,
    }
    arguments = family.signature(flags, logits, "bf16")
    on = [flag for flag in family.flags if flags[flag]]
    return KernelSource(
        name=name or "_".join([stem, logits, str(vocab), *on]),
        function=stem,
        text=render.render_kernel(stem, flags, [header]),
        arguments=arguments,
        constants=tuple((constant, values[constant]) for constant in family.constant_names(flags)),
        aligned=frozenset(argument for argument, kind in arguments if kind.startswith("*")),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )


def all_off(stem: str) -> dict[str, bool]:
    """No flag set."""
    return dict.fromkeys(FAMILIES[stem].flags, False)


def all_on(stem: str) -> dict[str, bool]:
    """Every flag set."""
    return dict.fromkeys(FAMILIES[stem].flags, True)
