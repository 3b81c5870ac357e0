"""The reference ops of sharded logits: the same bits of any number of ranks, and what the ops of whole rows give."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from specc.runtime.semantics.reference import OPS

SIZES = [(90, 96), (40, 64), (1000, 1024)]
SPECIAL = (math.inf, -math.inf, math.nan, 0.0, -0.0, 3e38, -3e38)


def rows_of(tokens: int, source: torch.Generator) -> Tensor:
    """Rows of all kinds: plain, far apart, equal, with infinities, with NaN, and with nothing to choose from."""
    logits = 3 * torch.randn(24, tokens, generator=source)
    logits[1] = 0.5
    logits[2] *= 1e4
    for row in range(3, 20):
        few = torch.rand(tokens, generator=source) < 0.1
        logits[row, few] = SPECIAL[row % len(SPECIAL)]
    logits[20], logits[21] = -math.inf, math.nan
    logits[22, 1:] = -math.inf
    return logits.view(8, 3, tokens)


def gathered(opcode: str, whole: Tensor, rows: Tensor, ranks: int, words: int) -> Tensor:
    """The records of all ranks, of columns that hold NaN where there is no token."""
    tokens, columns = whole.shape[-1], whole.shape[-1]
    columns = next(size[1] for size in SIZES if size[0] == tokens)
    padded = torch.nn.functional.pad(whole, (0, columns - tokens), value=math.nan)
    chunks = min(64, columns & -columns) // ranks
    records: list[Tensor] = []
    for rank, shard in enumerate(padded.chunk(ranks, dim=-1)):
        number = torch.tensor([rank])
        (own,) = OPS["comm.pad"]((shard, number), {"vocab": tokens}, {})
        records += OPS[opcode]((own, rows, number), {"words": words, "chunks": chunks}, {})
    return torch.cat(records)


@pytest.mark.parametrize(("tokens", "columns"), SIZES)
@pytest.mark.parametrize("count", [1, 3])
def test_any_number_of_ranks(tokens: int, columns: int, count: int) -> None:
    whole = rows_of(tokens, torch.Generator().manual_seed(tokens))
    rows = torch.tensor([1, 2, 3, 4, 0, 5, 6, 7])
    attrs, dims = {"dtype": "i32", "keep": ""}, {"K": count}
    index, bad = OPS["vocab.argmax"]((whole, rows), attrs, dims)
    (logprob,) = OPS["vocab.logprob"]((whole, rows, index), {}, dims)
    wanted = (index, bad, logprob, *OPS["vocab.topk"]((whole, rows), {}, dims))
    first: tuple[Tensor, ...] | None = None
    for ranks in (1, 2, 4, 8):
        records = gathered("vocab.argmax_part", whole, rows, ranks, 2), rows
        results = (*OPS["vocab.argmax_merge"](records, attrs, dims), *OPS["vocab.logprob_merge"](records, {}, dims))
        best = gathered("vocab.topk_part", whole, rows, ranks, count + 1), rows
        results += OPS["vocab.topk_merge"](best, {}, dims)
        first = first or results
        assert all(torch.equal(result, reference) for result, reference in zip(results, first, strict=True)), ranks
        for result, reference in zip(results, wanted, strict=True):
            exact = not reference.is_floating_point()
            torch.testing.assert_close(result, reference, rtol=0 if exact else 2e-6, atol=0 if exact else 1e-6)


def test_fewer_tokens_than_are_wanted_on_a_rank() -> None:
    """A rank without tokens, or with fewer than K, gives what never wins."""
    whole = torch.tensor([[2.0, -math.inf, 1.0, -math.inf]])
    records = list[Tensor]()
    for rank in range(4):
        number, shard = torch.tensor([rank]), torch.nn.functional.pad(whole, (0, 4), value=math.nan).chunk(4, -1)[rank]
        (own,) = OPS["comm.pad"]((shard, number), {"vocab": 4}, {})
        records += OPS["vocab.topk_part"]((own, torch.tensor([1]), number), {"words": 4, "chunks": 2}, {})
    p, index, bad = OPS["vocab.topk_merge"]((torch.cat(records), torch.tensor([1])), {}, {"K": 3})
    assert index.tolist() == [[0, 2, 1]]
    assert p.flatten().tolist() == pytest.approx([0.7310586, 0.2689414, 0.0])
    assert not bad.any()
