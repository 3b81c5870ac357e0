"""What the machine code must look like: no spills, and logits read by 128-bit loads only."""

import re
from collections.abc import Iterator

import pytest
from compiled import ARCHS, MODEL, TREE, compiled, kernel, kernels_of
from programs import load

from specc.compiler.codegen import machine_code
from specc.compiler.codegen.aot import CompileError, KernelSource
from specc.compiler.codegen.artifact import KNOWN_ARCHS, KernelBinary

PROGRAMS = {
    "chain": load(target=MODEL, draft=MODEL),
    "logprobs": load(**TREE, outputs=["logprobs"], target=MODEL, draft=MODEL),
    "look_up": load("NGRAM", num_draft_tokens=21, topk=4, num_steps=5, target=MODEL),
}


def sources() -> list[KernelSource]:
    """All kernels of some programs, named after both."""
    return [
        KernelSource(**{**vars(source), "name": f"{program}_{source.name}"})
        for program, loaded in PROGRAMS.items()
        for source in kernels_of(loaded)
    ]


@pytest.fixture(scope="module")
def sm_90() -> dict[str, KernelBinary]:
    """The kernels of the programs."""
    return {name: artifact for (name, _), artifact in compiled(sources(), "sm_90").items()}


def test_registers_leave_room_for_blocks(sm_90: dict[str, KernelBinary]) -> None:
    """A scan has 28 KB in flight with seven blocks of 128 threads, which take 72 registers at most.

    Verification of a tree combines the partials of all its rows at once, log-probabilities are added in every eighth
    lane; a top-k has the state of a softmax in every lane, and a tree's candidates wait while the last one is combined.
    Copying holds a tile, a look-up two.
    """
    over: dict[str, int] = {}
    for name, artifact in sm_90.items():
        assert artifact.spills == 0, name
        heavy = artifact.entry in ("topk", "compact", "ngram_propose")
        heavy |= name.startswith(("logprobs_verify", "logprobs_prefill"))
        most = 128 if "logprobs_draft" in name else 96 if heavy else 72
        if artifact.registers > most:
            over[name] = artifact.registers
        assert artifact.kind == "cubin"
        assert artifact.shared <= 4096
        assert not artifact.global_scratch
        assert not artifact.profile_scratch
    assert not over


def test_parameters_are_the_arguments_and_two_hidden_pointers(sm_90: dict[str, KernelBinary]) -> None:
    for given in sources():
        artifact = sm_90[given.name]
        assert artifact.parameters == (*(kind for _, kind in given.arguments), "*i8", "*i8")
        assert (artifact.entry, artifact.threads) == (given.function, 32 * given.num_warps)


def instructions(sass: str) -> Iterator[str]:
    """The instructions of a disassembly, without address and predicate."""
    for line in sass.splitlines():
        if match := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^;]*);", line):
            yield match[1].strip()


def loads_by_width(sass: str) -> dict[int, int]:
    """Global loads that may read logits, by width in bits: partials (.STRONG.GPU) are not among them."""
    counts: dict[int, int] = {}
    for instruction in instructions(sass):
        opcode = instruction.split()[0]
        if opcode.startswith("LDG") and ".STRONG" not in opcode:
            width = next((int(part) for part in opcode.split(".") if part in ("64", "128")), 32)
            counts[width] = counts.get(width, 0) + 1
    return counts


# Loads of the scalars that each launch of a chain reads, found by hand in its text: pool rows i64, and of the first
# launch after a draft forward the position i64 and the first draft i64, of verification tokens i64 and the length i64,
# of extend the bonus i32.
SCALAR_LOADS = {
    "prefill_argmax": {64: 1},
    "draft_argmax": {64: 3},
    "verify_argmax": {64: 3},
    "extend_argmax": {64: 1, 32: 1},
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
VOCABULARIES = [("bf16", 32000), ("bf16", 128256), ("fp16", 128256), ("fp32", 32000), ("fp32", 128256)]


@pytest.mark.parametrize(("dtype", "vocab"), VOCABULARIES)
def test_logits_are_read_by_128_bit_loads_only(dtype: str, vocab: int) -> None:
    """Every load that is not a known scalar is 128 bits wide; the loop has several independent ones.

    Of two vocabularies one is no multiple of the block. Without hidden states nothing else is read that wide.
    """
    model = MODEL | {"vocab_size": vocab, "logits_dtype": DTYPES[dtype]}
    given = [kernel(name, "STANDALONE", model=model) for name in SCALAR_LOADS]
    for name, artifact in zip(SCALAR_LOADS, compiled(given, "sm_90").values(), strict=True):
        widths = loads_by_width(machine_code.sass(artifact.binary))
        wide = widths.pop(128)
        assert widths == SCALAR_LOADS[name], artifact.kernel
        # 2048 elements over 128 threads: 2 loads of 8 or 4 loads of 4, in the loop and once more in the tail.
        assert wide >= (4 if dtype == "fp32" else 2), artifact.kernel
        assert artifact.spills == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("outputs", [[], ["logprobs"]], ids=["plain", "logprobs"])
def test_logits_of_trees_are_read_by_128_bit_loads_only(dtype: str, outputs: list[str]) -> None:
    """The rest, all i64: row and length, and tokens and parents of a thread's 4 columns."""
    model = MODEL | {"logits_dtype": DTYPES[dtype]}
    (artifact,) = compiled([kernel("verify_argmax", model=model, outputs=outputs, **TREE)], "sm_90").values()
    widths = loads_by_width(machine_code.sass(artifact.binary))
    assert widths.pop(128) >= (4 if dtype == "fp32" else 2), artifact.kernel
    assert widths == {64: 10}, artifact.kernel
    assert artifact.spills == 0


def test_the_criterion_sees_narrow_loads() -> None:
    """The same kernel without the alignment facts reads logits 16 bits at a time."""
    narrow = KernelSource(**{**vars(kernel("prefill_argmax")), "aligned": frozenset()})
    (artifact,) = compiled([narrow], "sm_90").values()
    widths = loads_by_width(machine_code.sass(artifact.binary))
    assert 128 not in widths
    assert sum(widths.values()) > 16


def test_last_arriver_is_ordered(sm_90: dict[str, KernelBinary]) -> None:
    """Partials are stored before a barrier, a fence, the atomic; they are read past the L1 cache."""
    scanning = [name for name, artifact in sm_90.items() if artifact.entry in ("argmax", "ngram_propose")]
    assert len(scanning) > 5
    for stem in scanning:
        code = list(instructions(machine_code.sass(sm_90[stem].binary)))
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


def test_hidden_rows_are_copied_by_128_bits(sm_90: dict[str, KernelBinary]) -> None:
    for name in ("chain_prepare_rows", "chain_extend_argmax", "logprobs_extend_topk"):
        opcodes = [line.split()[0] for line in instructions(machine_code.sass(sm_90[name].binary))]
        stores = [op for op in opcodes if op.startswith("STG")]
        assert any(".128" in op for op in stores), name
        assert not any(".U8" in op or ".U16" in op for op in stores), name


def test_resource_usage_agrees_with_the_artifact(sm_90: dict[str, KernelBinary]) -> None:
    artifact = sm_90["chain_verify_argmax"]
    usage = machine_code.resource_usage(artifact.binary)
    assert (usage.registers, usage.spills) == (artifact.registers, artifact.spills)


def test_tools_refuse_what_is_no_cubin() -> None:
    with pytest.raises(machine_code.ToolError):
        machine_code.sass(b"not a cubin")
    with pytest.raises(machine_code.ToolError):
        machine_code.resource_usage(b"not a cubin")
    with pytest.raises(machine_code.ToolError, match="vgpr_spill_count"):
        machine_code.amd_resource_usage("")


def test_no_spills_on_the_other_targets(sm_90: dict[str, KernelBinary]) -> None:
    """Of each kind the kernel that takes most registers on sm_90: it would be the first."""
    largest = {artifact.entry: name for name, artifact in sorted(sm_90.items(), key=lambda item: item[1].registers)}
    given = [source for source in sources() if source.name in largest.values()]
    assert len(given) == len(largest) > 5
    for artifact in compiled(given, *(KNOWN_ARCHS.keys() - set(ARCHS))).values():
        assert artifact.spills == 0, (artifact.kernel, artifact.arch)


def test_compile_errors_are_tritons_words() -> None:
    given = kernel("verify_argmax")
    broken = KernelSource(**{**vars(given), "text": given.text.replace("SPLITS, BLOCK)", "undefined_name, BLOCK)")})
    with pytest.raises(CompileError, match=r"(?s)verify_argmax.*sm_90.*undefined_name") as caught:
        compiled([broken], "sm_90")
    assert (caught.value.kernel, caught.value.arch) == (given.name, "sm_90")
    assert "undefined_name" in caught.value.message
