"""Machine code of the kernels with a softmax top-k: no spills, few registers, wide loads, ordered arrival."""

import re
from collections import Counter

import pytest
from compiled import ARCHS, MODEL, TREE, compiled, kernel, kernels_of, opcodes
from programs import load

from specc.compiler.codegen import machine_code
from specc.compiler.codegen.artifact import KernelBinary

VOCABULARIES = [("bf16", 32000), ("bf16", 128256), ("fp16", 128256), ("fp32", 128256)]
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def model(dtype: str, vocab: int = 128256) -> dict[str, object]:
    """A model with such logits and hidden rows of 16 bits."""
    return MODEL | {"vocab_size": vocab, "logits_dtype": DTYPES[dtype]}


@pytest.fixture(scope="module")
def scans() -> dict[tuple[str, int], KernelBinary]:
    """The plainest kernel with a top-k, by dtype and vocabulary: no hidden rows follow."""
    artifacts = {
        case: compiled([kernel("extend_topk", "STANDALONE", model=model(*case), **TREE)], "sm_90")
        for case in VOCABULARIES
    }
    return {case: artifact for case, made in artifacts.items() for artifact in made.values()}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_large_trees_on_every_target(dtype: str) -> None:
    """K = 8, V = 128256, hidden rows of 4096: no spills anywhere, four blocks on a multiprocessor of sm_90 at least.

    Where nothing but what is carried follows, five.
    """
    loaded = load(**TREE, target=model(dtype), draft=model(dtype))
    for artifact in compiled(kernels_of(loaded, "topk"), *ARCHS).values():
        assert artifact.spills == 0, (artifact.kernel, artifact.arch)
        assert artifact.shared <= 4096
        if artifact.arch == "sm_90" and dtype == "bf16":
            blocks = 4 if artifact.kernel.startswith("draft") else 5
            assert artifact.registers <= 65536 // (blocks * 128) // 8 * 8, artifact.kernel


def test_logits_are_scanned_by_128_bit_loads_only(scans: dict[tuple[str, int], KernelBinary]) -> None:
    """Narrow loads are the request's row, its bonus, and of each winner's group 64 elements at once.

    They stand in the code twice: for a chunk that has no more of a group, and in a loop for one that has.
    """
    for (dtype, _), artifact in scans.items():
        loads = Counter(op for op in opcodes(artifact) if op.startswith("LDG") and ".STRONG" not in op)
        columns = 2 * TREE["topk"] * 64 // artifact.threads
        narrow = {"LDG.E.64": 1, "LDG.E": 1}
        narrow |= {"LDG.E": 1 + columns} if dtype == "fp32" else {"LDG.E.U16": columns}
        wide = loads.pop("LDG.E.128")
        assert dict(loads) == narrow, artifact.kernel
        # 2 loads of 8 elements a thread or 4 of 4, before the loop and in it: a block is loaded while one is folded.
        assert wide >= 2 * (4 if dtype == "fp32" else 2), artifact.kernel


def test_one_exponential_per_logit_and_group(scans: dict[tuple[str, int], KernelBinary]) -> None:
    """The loop over whole blocks: 16 elements in two groups a thread, fewer than 10 instructions an element."""
    lines = machine_code.sass(scans["bf16", 128256].binary).splitlines()
    labels = {line.strip().rstrip(":"): i for i, line in enumerate(lines) if re.match(r"\s*\.L_x_\d+:", line)}
    loops = []
    for i, line in enumerate(lines):
        branch = re.search(r"BRA `\((\.L_x_\d+)\)", line)
        if branch and labels[branch[1]] < i:
            loops.append([op for op in lines[labels[branch[1]] : i] if re.search(r"/\*[0-9a-f]{4,}\*/\s+[@A-Z]", op)])
    fast = min((loop for loop in loops if any("MUFU.EX2" in op for op in loop)), key=len)
    assert sum("MUFU.EX2" in op for op in fast) == 18
    assert sum("LDG.E.128" in op for op in fast) == 2
    assert len(fast) < 10 * 16


@pytest.mark.parametrize("name", ["draft_topk", "extend_topk"])
def test_last_arriver_is_ordered(name: str) -> None:
    """Keys and sums are stored before a barrier, a fence, the atomic; they are read past the L1 cache."""
    (artifact,) = compiled([kernel(name, **TREE)], "sm_90").values()
    code = opcodes(artifact)
    atomic = next(i for i, op in enumerate(code) if op.startswith("ATOMG") and ".STRONG.GPU" in op)
    fence = max(i for i, op in enumerate(code[:atomic]) if op.startswith("MEMBAR") and op.endswith(".GPU"))
    barrier = max(i for i, op in enumerate(code[:fence]) if op.startswith("BAR.SYNC"))
    stores = [i for i, op in enumerate(code[:atomic]) if op.startswith("STG")]
    assert len(stores) >= 3
    assert max(stores) < barrier < fence < atomic
    strong = [i for i, op in enumerate(code) if op.startswith("LDG") and ".STRONG.GPU" in op]
    assert len(strong) >= 3
    assert min(strong) > atomic
    assert any(op.startswith("BAR.SYNC") for op in code[atomic : min(strong)])


@pytest.mark.parametrize("name", ["draft_topk", "extend_topk", "prefill_topk"])
def test_lanes_that_share_a_sum_agree_in_every_bit(name: str) -> None:
    """A lane adds what another one has, and the other way round; then all of them store the sum in one place.

    An addition fused with the product before it would round one of the two and not the other.
    """
    (artifact,) = compiled([kernel(name, **TREE)], "sm_90").values()
    code = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.+?) ;", machine_code.sass(artifact.binary))
    shuffled: set[str] = set()
    added = 0
    for line in code:
        opcode, *registers = re.findall(r"(?<![\w.])[A-Z][\w.]*", re.sub(r"^@!?U?P\w+ ", "", line))
        written = registers[1] if opcode.startswith("SHFL") else registers[0] if registers else ""
        read = {register.partition(".")[0] for register in registers} - {written}
        assert not (opcode.startswith("FFMA") and read & shuffled), line
        added += opcode.startswith("FADD") and bool(read & shuffled)
        shuffled = shuffled | {written} if opcode.startswith("SHFL") else shuffled - {written}
    assert added
