"""Kernel sources to compile, and the tile sizes that the tests hold to their promises."""

from collections.abc import Mapping
from typing import Any

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
# Families that copy rows of bytes and look at no logits: 16 units of 8 bytes per thread.
COPYING = {
    "compact": {"BLOCK": 512, "ROW0": 8192, "ROW1": 1952, "ROW2": 48, "ROW3": 16384}
    | {f"UNIT{i}": 8 for i in range(4)},
    "duplicate_tail": {"BLOCK": 256, "TOKENS": 8, "OFFSET": 0},
    "stash": {"BLOCK": 256},
}

# Families that read no logits but tokens: a text of 4096, looked up by eight programs for a tree of 4 branches.
TEXTS = {
    "ngram_start": {"WINDOW": 4096, "BLOCK": 1024},
    "ngram_propose": {"WINDOW": 4096, "LONGEST": 8, "SHORTEST": 1, "K": 4, "S": 5, "N": 21, "BLOCK": 512, "SPLITS": 8}
    | {"LINKS": 1, "MODE": 0, "WIDTH": 0},
}

# What an engine brings may start anywhere.
BROUGHT = ("prompt_ptr", "corpus_ptr")

# What begins a step or ends one copies and looks at no logits: one warp for a request's own, one for every chunk.
WARPS = {"prepare": 1, "stash": 1}

# Constants of carried fields, and of positions and slots: by name, or for all whose names begin so.
NAMED = {"W_hidden": 4096, "W_states": 8192, "W_": 1, "SIZE_": 4, "OFFSET_": 1, "STRIDE_": 1, "PAGE_": 16, "ROOM_": 3}
NAMED |= {"L_": 4096, "ROW_hidden": 8192, "ROW_": 8, "UNIT_": 8, "KEPT_ROW_": 8192, "KEPT_UNIT_": 8}
NAMED |= {"WINDOW": 4, "LONGEST": 4096, "ROW_bonus": 4, "UNIT_bonus": 4}

# Families and flags with a softmax top-k, here of 8: 8 * 16 partial keys of a row, and all hidden rows in chunks.
TOPK = {"K": 8, "SPLITS": 16}

# Trees of 64 nodes: 64 * 32 partials are combined at once.
TREE = {"N": 64, "A": 6, "SPLITS": 32}


def picks(stem: str, flags: Mapping[str, bool]) -> bool:
    """Whether a kernel has a softmax top-k."""
    return stem in ("tree_step", "row_topk") or flags.get("topk", False)


def source(
    stem: str,
    flags: Mapping[str, int],
    *,
    logits: str = "bf16",
    vocab: int = 128256,
    header: str = "a test",
    name: str | None = None,
) -> KernelSource:
    """One kernel as a compiler would describe it: contiguous logits, every buffer of the arena aligned."""
    family = FAMILIES[stem]
    values = {
        "V": vocab,
        "STRIDE": vocab,
        "SPLITS": SPLITS,
        "BLOCK": BLOCK,
        "HEALTH_BIT": 1,
        "N": 4,
        "A": 4,
        "ROWS": 4 if flags.get("join") else 1,
        "K": 4 if flags.get("tree", stem in COPYING) else 1,
        "PAGE": 16,
        "ROOM": 3,
        "KV_BUFFERS": 64,
        "KV_ROW": 2048,
        "KV_UNIT": 8,
        "KV_ALIGN": 16,
        "FORWARDS": 2,
        "MAX_B": 64,
        "W": 4096,
        "BLOCK_W": BLOCK_W,
        **COPYING.get(stem, {}),
        **TEXTS.get(stem, {}),
        **(TOPK if picks(stem, flags) else {}),
        **(TREE if stem == "verify_commit" and flags["tree"] else {}),
        **(built(flags) if stem == "tree_build" else {}),
    }
    arguments = family.signature(flags, logits, "bf16")
    on = [flag for flag in family.flags if flags[flag]] + [f"steps{flags['steps']}" for _ in family.steps[:1]]
    on += [name for name in family.lists[0] if flags[name]]
    return KernelSource(
        name=name or "_".join([stem, logits, str(vocab), *on]),
        function=stem,
        text=render.render_kernel(stem, flags, [header]),
        arguments=arguments,
        constants=tuple((constant, value_of(constant, values)) for constant in family.constant_names(flags)),
        aligned=frozenset(name for name, kind in arguments if kind.startswith("*") and name not in BROUGHT),
        num_warps=WARPS.get(stem, NUM_WARPS),
        num_stages=NUM_STAGES,
    )


def value_of(constant: str, values: Mapping[str, int]) -> int:
    """The constant's own value, or that of all whose names begin alike."""
    if constant in values:
        return values[constant]
    return next(value for key, value in NAMED.items() if constant.startswith(key))


def built(flags: Mapping[str, int]) -> dict[str, int]:
    """The constants of a tree of 8 branches, of 64 nodes if it has as many."""
    steps = flags["steps"] + flags["fused"]
    tree = {"S": steps, "N": 64 if steps > 1 else 9, "ORPHAN_BIT": 16, "MODE": 0, "WIDTH": 0}
    return TOPK | tree


def all_off(stem: str) -> dict[str, Any]:
    """No flag set, as few steps as there are to try."""
    return next(FAMILIES[stem].combinations())


def all_on(stem: str) -> dict[str, Any]:
    """Every flag set, as many steps as there are to try."""
    *_, last = FAMILIES[stem].combinations()
    return last
