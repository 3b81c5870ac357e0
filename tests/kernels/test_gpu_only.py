"""What the interpreter cannot show: real concurrency, real subnormals, full vocabularies."""

import pytest
import torch
from kernel_cases import DTYPES, argmax, generator, scratch
from kernel_launcher import Launcher

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
    constants = {"V": vocab, "STRIDE": vocab, "SPLITS": 128, "BLOCK": block, "HEALTH_BIT": 1}
    arguments = {"rows_ptr": rows, "logits_ptr": logits, **buffers}
    gpu.launch("row_argmax", {"clear": True}, (len(rows), splits), arguments, constants)


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
