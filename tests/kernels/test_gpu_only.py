"""What the interpreter cannot show: real concurrency, real subnormals, full vocabularies."""

import pytest
import torch
from kernel_cases import DTYPES, argmax, generator, scratch
from kernel_families import FAMILIES
from kernel_launcher import Launcher
from topk_cases import assert_probabilities, reference_topk, topk_scratch

from specc.runtime.reference import OPS

pytestmark = pytest.mark.gpu
BLOCKS = {"bf16": 2048, "fp16": 2048, "fp32": 2048}


@pytest.fixture
def gpu(launcher: Launcher) -> Launcher:
    """The launcher, if it is the one of the GPU."""
    if launcher.device != "cuda":
        pytest.skip("only makes sense on a GPU")
    return launcher


def launch_row_argmax(
    gpu: Launcher,
    rows: torch.Tensor,
    logits: torch.Tensor,
    splits: int,
    buffers: dict[str, torch.Tensor],
    block: int,
) -> None:
    """One launch of row_argmax over a contiguous [B, V]."""
    vocab = logits.shape[1]
    constants = {"ROWS": 1, "V": vocab, "STRIDE": vocab, "SPLITS": 128, "BLOCK": block, "HEALTH_BIT": 1}
    arguments = {"rows_ptr": rows, "logits_ptr": logits, **buffers}
    gpu.launch(
        "row_argmax", FAMILIES["row_argmax"].flagged("health", "clear"), (len(rows), splits), arguments, constants
    )


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("vocab", [32000, 128256, 50257])
def test_last_arriver_under_load(gpu: Launcher, dtype: str, vocab: int) -> None:
    """Many launches in a row on one set of counters, each with other logits, none awaited: no partial is
    stale.
    """
    batch, rounds = 16, 200
    source = generator(vocab)
    logits = torch.randn(batch * 4, vocab, generator=source).to(DTYPES[dtype])
    want = torch.tensor([argmax(row)[0] for row in logits], dtype=torch.int32).view(4, batch)
    on_gpu = logits.cuda().view(4, batch, vocab)
    rows = torch.arange(1, batch + 1).cuda()
    shared = {name: value.cuda() for name, value in scratch(batch, 128).items()}
    health = torch.zeros(batch, dtype=torch.int32).cuda()
    results = torch.full((rounds, batch), -1, dtype=torch.int32).cuda()
    for i in range(rounds):
        splits = (1, 7, 16, 63, 128)[i % 5]
        buffers = {**shared, "health_ptr": health, "index_ptr": results[i]}
        launch_row_argmax(gpu, rows, on_gpu[i % 4], splits, buffers, BLOCKS[dtype])
    assert torch.equal(results.cpu(), want[torch.arange(rounds) % 4])
    assert not shared["arrivals_ptr"].any()
    assert not health.any()


def test_bf16_subnormals(gpu: Launcher) -> None:
    logits = torch.arange(1, 301, dtype=torch.int16).view(1, 300).view(torch.bfloat16)  # all subnormal or tiny
    logits = logits[:, :100].contiguous()
    buffers = {name: value.cuda() for name, value in scratch(1, 128).items()}
    buffers |= {"health_ptr": torch.zeros(1, dtype=torch.int32).cuda()}
    buffers |= {"index_ptr": torch.zeros(1, dtype=torch.int32).cuda()}
    launch_row_argmax(gpu, torch.tensor([1]).cuda(), logits.cuda(), 1, buffers, 16)
    assert buffers["index_ptr"].item() == 99
    assert buffers["health_ptr"].item() == 0


@pytest.mark.parametrize("vocab", [32000, 50257, 128256])
def test_last_arriver_of_a_tree_under_load(gpu: Launcher, vocab: int) -> None:
    """As above for tree_step, whose last arriver also moves the hidden rows: tokens, candidates and rows all fit."""
    batch, k, width, rounds = 8, 8, 4096, 100
    source = generator(vocab)
    logits = torch.randn(4, batch, k, vocab, generator=source).to(torch.bfloat16)
    hidden = torch.randn(batch, k, width, generator=source).to(torch.bfloat16)
    rows = torch.arange(1, batch + 1)
    p, index, _ = zip(*(reference_topk(part, rows, k) for part in logits), strict=True)
    fixed = {"rows_ptr": rows, "parent_scores_ptr": torch.ones(batch, k), "hidden_ptr": hidden}
    fixed |= {**topk_scratch(batch, k, 16, k), "health_ptr": torch.zeros(batch, dtype=torch.int32)}
    fixed = {name: value.cuda() for name, value in fixed.items()}
    on_gpu, outputs = logits.cuda(), []
    for i in range(rounds):
        out: dict[str, torch.Tensor] = {
            "index_ptr": torch.full((batch, k, k), -1).cuda(),
            "candidates_ptr": torch.zeros(batch, k, k).cuda(),
            "tokens_ptr": torch.full((batch, k), -1).cuda(),
            "scores_ptr": torch.zeros(batch, k).cuda(),
            "kept_ptr": torch.full((batch, k), -1).cuda(),
            "next_hidden_ptr": torch.zeros_like(hidden).cuda(),
            "positions_ptr": torch.zeros(batch, k, dtype=torch.int64).cuda(),
        }
        constants = {"K": k, "V": vocab, "STRIDE": vocab, "SPLITS": 16, "BLOCK": 2048, "HEALTH_BIT": 1}
        constants |= {"W": width, "BLOCK_W": 1024}
        flags = {"frontier": True, "gather": True, "advance": True}
        grid = (batch, k * (1, 7, 16, 5, 2)[i % 5])
        gpu.launch("tree_step", flags, grid, {**fixed, "logits_ptr": on_gpu[i % 4], **out}, constants)
        outputs.append(out)
    for i, out in enumerate(outputs):
        got = {name: value.cpu() for name, value in out.items()}
        assert torch.equal(got["index_ptr"], index[i % 4])
        assert_probabilities(got["candidates_ptr"], p[i % 4])
        ones = torch.ones(batch, k)
        tokens, scores, kept, _ = OPS["tree.grow"]((ones, got["candidates_ptr"], index[i % 4]), {}, {"K": k})
        assert torch.equal(got["tokens_ptr"], tokens)
        assert torch.equal(got["scores_ptr"], scores)
        assert torch.equal(got["kept_ptr"], kept)
        (gathered,) = OPS["tree.gather"]((hidden, kept), {}, {"K": k})
        assert torch.equal(got["next_hidden_ptr"], gathered)
        assert (got["positions_ptr"] == 1).all()
    assert not fixed["arrivals_ptr"].any()
    assert not fixed["health_ptr"].any()
