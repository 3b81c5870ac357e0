"""What the interpreter cannot show: real concurrency, real subnormals, full vocabularies."""

import pytest
import torch
from cluster_cases import FLOATS, Launch, Memory, Scan, TypedBuilder, launch_of, prepared, small_module, with_constants
from kernel_cases import argmax, generator
from kernel_launcher import Launcher
from topk_cases import assert_probabilities, reference_topk
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu(launcher: Launcher) -> Launcher:
    """The launcher, if it is the one of the GPU."""
    if launcher.device != "cuda":
        pytest.skip("only makes sense on a GPU")
    return launcher


def argmaxes(dtype: str, batch: int, vocab: int) -> Module:
    """An argmax with a health word that is cleared."""
    module = small_module(B=batch, K=1, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("draft"):
        index, bad = b.many("vocab.argmax", b.given("logits", dtype, "V"), rows, dtype="i32", keep="")
        b.hand_out(index, b("health.raise", b("health.clear", rows, names=("word",)), bad, names=("health",), bit=1))
    return module


def on_gpu(module: Module, drawn: dict[str, Tensor]) -> tuple[Memory, Launch]:
    """The memory of the only kernel of a module on the GPU, and the launch."""
    memory, launch = prepared(module, drawn, generator(0))
    return memory.moved("cuda", {}), launch


def cut(memory: Memory, launch: Launch, splits: int) -> Launch:
    """The same launch by another number of programs."""
    return launch_of(memory.module, launch.spec.family, memory.cluster, len(memory.rows), Scan(splits))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocab", [32000, 128256, 50257])
def test_last_arriver_under_load(gpu: Launcher, dtype: str, vocab: int) -> None:
    """Many launches in a row on one set of counters, each with other logits, none awaited: no partial is stale."""
    batch, rounds = 16, 200
    logits = torch.randn(batch * 4, vocab, generator=generator(vocab)).to(DTYPES[dtype])
    want = torch.tensor([argmax(row)[0] for row in logits], dtype=torch.int32).view(4, batch)
    given = {"req_pool_indices": torch.arange(1, batch + 1), "logits": logits[:batch]}
    memory, launch = on_gpu(argmaxes(dtype, batch, vocab), given)
    parts = logits.cuda().view(4, batch, vocab)
    results = torch.full((rounds, batch), -1, dtype=torch.int32).cuda()
    launches = [cut(memory, launch, splits) for splits in (1, 7, 16, 63, 64)]
    for i in range(rounds):
        memory.tensors |= {"logits": parts[i % 4], "index": results[i]}
        launches[i % 5].run(gpu, memory)
    assert torch.equal(results.cpu(), want[torch.arange(rounds) % 4])
    assert not memory.tensors["argmax.arrivals"].any()
    assert not memory.tensors["word"].any()


def test_bf16_subnormals(gpu: Launcher) -> None:
    logits = torch.arange(1, 101, dtype=torch.int16).view(1, 100).view(torch.bfloat16)  # all subnormal or tiny
    module = argmaxes("bf16", 1, 100)
    memory, launch = on_gpu(module, {"req_pool_indices": torch.tensor([1]), "logits": logits})
    Launch(with_constants(launch.spec, {"BLOCK": 16}), (1, 1)).run(gpu, memory)
    assert memory.tensors["index"].item() == 99
    assert memory.tensors["word"].item() == 0


@pytest.mark.parametrize("vocab", [32000, 50257, 128256])
def test_last_arriver_of_a_tree_under_load(gpu: Launcher, vocab: int) -> None:
    """As above for a step of a tree, whose last arriver also moves hidden rows: tokens, candidates and rows all fit."""
    batch, k, width, rounds = 8, 8, 4096, 100
    source, rows = generator(vocab), torch.arange(1, batch + 1)
    logits = torch.randn(4, batch, k, vocab, generator=source).to(torch.bfloat16)
    hidden = torch.randn(batch, k, width, generator=source).to(torch.bfloat16)
    exact, index, _ = zip(*(reference_topk(part, rows, k) for part in logits), strict=True)
    module = small_module(B=batch, K=k, V=vocab)
    b = TypedBuilder(module)
    with b.phase("draft"):
        p, places, bad = b.many("vocab.topk", b.given("logits", "bf16", "K", "V"), module.inputs["req_pool_indices"])
        grown = b.many("tree.grow", b.given("parents", "f32", "K"), p, places)
        moved = b("tree.gather", b.given("hidden", "bf16", "K", width), grown[2], names=("moved",))
        b.hand_out(p, places, bad, *grown, moved)
    ones = torch.ones(batch, k)
    memory, launch = on_gpu(module, {"req_pool_indices": rows, "logits": logits[0], "parents": ones, "hidden": hidden})
    parts, outputs = logits.cuda(), []
    launches = [cut(memory, launch, splits) for splits in (1, 7, 16, 5, 2)]
    names = [value.name for value in module.outputs.values()]
    for i in range(rounds):
        out = {name: torch.zeros_like(memory.tensors[name]) for name in names}
        memory.tensors |= {"logits": parts[i % 4], **out}
        launches[i % 5].run(gpu, memory)
        outputs.append(out)
    for i, out in enumerate(outputs):
        got = {name: value.cpu() for name, value in out.items()}
        assert torch.equal(got["index"], index[i % 4])
        assert_probabilities(got["p"], exact[i % 4])
        tokens, scores, kept, candidates = OPS["tree.grow"]((ones, got["p"], index[i % 4]), {}, {"K": k})
        (gathered,) = OPS["tree.gather"]((hidden, kept), {}, {"K": k})
        want = {"tokens": tokens, "scores": scores, "kept": kept, "candidates": candidates, "moved": gathered}
        assert all(torch.equal(got[name], value) for name, value in want.items())
        assert not got["bad"].any()
    assert not memory.tensors["topk.arrivals"].any()
