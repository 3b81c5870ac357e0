"""What the machine code must look like: no spills, and logits read by 128-bit loads only."""

import re
from collections.abc import Iterator

import pytest
from aot_sources import COPYING, NUM_WARPS, WARPS, all_off, all_on, source
from compiled import ARCHS, compiled
from kernel_families import FAMILIES

from specc.codegen import machine_code
from specc.codegen.aot import KNOWN_ARCHS, Artifact, CompileError, KernelSource

SCANNING = [stem for stem, family in FAMILIES.items() if "logits_ptr" in family.names(all_off(stem))]
SCANNING = [stem for stem in SCANNING if stem not in ("row_topk", "tree_step")]


@pytest.fixture(scope="module")
def sm_90() -> dict[tuple[str, str], Artifact]:
    """Every family under every combination of flags."""
    return compiled([source(s, flags) for s in FAMILIES for flags in FAMILIES[s].combinations()], "sm_90")


def test_every_combination_compiles_without_spills(sm_90: dict[tuple[str, str], Artifact]) -> None:
    assert len(sm_90) == sum(len(list(family.combinations())) for family in FAMILIES.values())
    over = {}
    for artifact in sm_90.values():
        assert artifact.spills == 0, artifact.kernel
        # Copying holds a tile in registers, and where its rows go; a top-k has the state of a softmax in every lane,
        # log-probabilities in every eighth; a look-up has two tiles in flight, and where their tokens are.
        heavy = artifact.entry in (*COPYING, "ngram_propose", "tree_step")
        heavy |= "topk" in artifact.kernel or "logprobs" in artifact.kernel
        # Storing all that a path gives, which no program does, takes a few more than half of it.
        heavy |= "tree" in artifact.kernel and "rings" in artifact.kernel
        # A tree's candidates wait in registers while the last top-k is combined.
        # Releases of Triton differ by a few: 3.7.1 takes 78 for the verification of a tree, 3.8.0 106 for its step.
        most = 112 if artifact.entry == "tree_step" else 96 if heavy else 80 if "tree" in artifact.kernel else 72
        most = 128 if "tree_build" in artifact.kernel and "fused" in artifact.kernel else most
        if artifact.registers > most:
            over[artifact.kernel] = artifact.registers
        assert (artifact.kind, artifact.threads) == ("cubin", 32 * WARPS.get(artifact.entry, NUM_WARPS))
        assert artifact.entry in FAMILIES
        assert artifact.shared <= 4096
        assert not artifact.global_scratch
        assert not artifact.profile_scratch
    assert not over


def test_parameters_are_the_arguments_and_two_hidden_pointers(sm_90: dict[tuple[str, str], Artifact]) -> None:
    for stem in FAMILIES:
        given = source(stem, all_on(stem))
        artifact = sm_90[given.name, "sm_90"]
        assert artifact.parameters == (*(kind for _, kind in given.arguments), "*i8", "*i8")


def instructions(sass: str) -> Iterator[str]:
    """The instructions of a disassembly, without address and predicate."""
    for line in sass.splitlines():
        if found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*);", line):
            yield found[1].strip()


def loads_by_width(sass: str) -> dict[int, int]:
    """Global loads that may read logits, by width in bits: partials (.STRONG.GPU) are not among them."""
    counts: dict[int, int] = {}
    for instruction in instructions(sass):
        opcode = instruction.split()[0]
        if opcode.startswith("LDG") and ".STRONG" not in opcode:
            width = next((int(part) for part in opcode.split(".") if part in ("64", "128")), 32)
            counts[width] = counts.get(width, 0) + 1
    return counts


# Loads of the scalars each family reads, found by hand in the template: rows i64, and in the tail positions
# i64 (draft_step+advance), tokens i64 and seq_lens i64 (verify_commit), bonus i32 (extend_stash).
SCALAR_LOADS = {
    "row_argmax": {64: 1},
    "draft_step": {64: 1},
    "verify_commit": {64: 3},
    "extend_stash": {64: 1, 32: 1},
}


@pytest.fixture(scope="module")
def vocabularies() -> dict[tuple[str, str], Artifact]:
    """Families by dtype and by two vocabularies, one of them no multiple of the block."""
    return compiled(
        [
            source(stem, all_off(stem), logits=dtype, vocab=vocab)
            for stem in SCANNING
            for dtype, vocab in (
                ("bf16", 32000),
                ("bf16", 128256),
                ("fp16", 128256),
                ("fp32", 32000),
                ("fp32", 128256),
            )
        ],
        "sm_90",
    )


def test_logits_are_read_by_128_bit_loads_only(vocabularies: dict[tuple[str, str], Artifact]) -> None:
    """Every load that is not a known scalar is 128 bits wide; the loop has several independent ones."""
    for artifact in vocabularies.values():
        widths = loads_by_width(machine_code.sass(artifact.binary))
        wide = widths.pop(128)
        assert widths == SCALAR_LOADS[artifact.entry], artifact.kernel
        # 2048 elements over 128 threads: 2 loads of 8 or 4 loads of 4, in the loop and once more in the tail.
        assert wide >= (4 if "fp32" in artifact.kernel else 2), artifact.kernel
        assert artifact.spills == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_logits_of_trees_are_read_by_128_bit_loads_only(dtype: str) -> None:
    """With log-probabilities too. The rest, all i64: row and length, and tokens and parents of a thread's 4 columns."""
    sources = [
        source("verify_commit", {**all_off("verify_commit"), "tree": True, "logprobs": logprobs}, logits=dtype)
        for logprobs in (False, True)
    ]
    for artifact in compiled(sources, "sm_90").values():
        widths = loads_by_width(machine_code.sass(artifact.binary))
        assert widths.pop(128) >= (4 if dtype == "fp32" else 2), artifact.kernel
        assert widths == {64: 10}, artifact.kernel
        assert artifact.spills == 0


def test_the_criterion_sees_narrow_loads() -> None:
    """The same kernel without the alignment facts reads logits 16 bits at a time."""
    given = source("row_argmax", all_off("row_argmax"))
    narrow = KernelSource(**{**vars(given), "aligned": frozenset()})
    (artifact,) = compiled([narrow], "sm_90").values()
    widths = loads_by_width(machine_code.sass(artifact.binary))
    assert 128 not in widths
    assert sum(widths.values()) > 16


def test_last_arriver_is_ordered(sm_90: dict[tuple[str, str], Artifact]) -> None:
    """Partials are stored before a barrier, a fence, the atomic; they are read past the L1 cache."""
    for stem in (*SCANNING, "ngram_propose"):
        code = list(instructions(machine_code.sass(sm_90[source(stem, all_off(stem)).name, "sm_90"].binary)))
        opcodes = [instruction.split()[0] for instruction in code]
        atomic = next(i for i, op in enumerate(opcodes) if op.startswith("ATOMG") and ".STRONG.GPU" in op)
        fence = max(i for i, op in enumerate(opcodes[:atomic]) if op.startswith("MEMBAR") and op.endswith(".GPU"))
        barrier = max(i for i, op in enumerate(opcodes[:fence]) if op.startswith("BAR.SYNC"))
        stores = [i for i, op in enumerate(opcodes[:atomic]) if op.startswith("STG")]
        assert stores, stem
        assert max(stores) < barrier < fence < atomic, stem
        strong = [i for i, op in enumerate(opcodes) if op.startswith("LDG") and ".STRONG.GPU" in op]
        assert len(strong) >= 2, stem
        assert min(strong) > atomic, stem
        assert any(op.startswith("BAR.SYNC") for op in opcodes[atomic : min(strong)]), stem


def test_hidden_rows_are_copied_by_128_bits(sm_90: dict[tuple[str, str], Artifact]) -> None:
    for stem in ("prepare", "extend_stash", "stash"):
        sass = machine_code.sass(sm_90[source(stem, all_on(stem)).name, "sm_90"].binary)
        opcodes = [instruction.split()[0] for instruction in instructions(sass)]
        stores = [op for op in opcodes if op.startswith("STG")]
        assert any(".128" in op for op in stores), stem
        assert not any(".U8" in op or ".U16" in op for op in stores), stem


def test_resource_usage_agrees_with_the_artifact(sm_90: dict[tuple[str, str], Artifact]) -> None:
    artifact = sm_90[source("row_argmax", all_off("row_argmax")).name, "sm_90"]
    usage = machine_code.resource_usage(artifact.binary)
    assert (usage.registers, usage.spills) == (artifact.registers, artifact.spills)


def test_tools_refuse_what_is_no_cubin() -> None:
    with pytest.raises(machine_code.ToolError):
        machine_code.sass(b"not a cubin")
    with pytest.raises(machine_code.ToolError):
        machine_code.resource_usage(b"not a cubin")
    with pytest.raises(machine_code.ToolError, match="vgpr_spill_count"):
        machine_code.amd_resource_usage("")


@pytest.mark.slow
def test_no_spills_on_the_other_targets() -> None:
    given = [source(stem, all_on(stem)) for stem in SCANNING]
    for artifact in compiled(given, *(KNOWN_ARCHS.keys() - set(ARCHS))).values():
        assert artifact.spills == 0, (artifact.kernel, artifact.arch)


def test_compile_errors_are_tritons_words() -> None:
    given = source("row_argmax", all_off("row_argmax"))
    wrong = given.text.replace("V: tl.constexpr", "V").replace("r < ROWS", "r < undefined_name")
    broken = KernelSource(**{**vars(given), "text": wrong})
    with pytest.raises(CompileError, match=r"(?s)row_argmax.*sm_90.*undefined_name") as caught:
        compiled([broken], "sm_90")
    assert (caught.value.kernel, caught.value.arch) == (given.name, "sm_90")
    assert "undefined_name" in caught.value.message
