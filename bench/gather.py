"""What ranks send to choose tokens: the records of a step beside all logits of the same step, one collective each.

    python bench/gather.py [--ranks N] [--json FILE] [--check-only]

Every rank scores its columns of a draft's S - 1 forwards, of the target's nodes and of an extend. One side gathers the
records that a program with `logits: sharded` makes of them, the other all columns, as an engine does that hands whole
rows to every rank. Both must choose the same tokens, those of whole logits, before anything is timed. A line has the
bytes that a rank sends, and how many times longer the logits take, both captured: NCCL, a process a GPU. With fewer
GPUs than ranks tokens are compared over gloo, on tiny shapes, and nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from specc.runtime.capabilities.collective import GroupCollective
from specc.runtime.semantics.reference import OPS

REAL = [(k, s, n, v, b) for k, s, n in ((1, 3, 4), (4, 3, 16), (8, 5, 64)) for v in (32000, 128256) for b in (1, 8, 32)]
TINY = [(1, 2, 3, 96, 2), (3, 2, 6, 320, 2)]
COPIES, SAMPLES = 10, 30
CHUNKS = 64


@dataclass(frozen=True)
class Read:
    """Rows of logits that one forward hands over, and how many tokens of each are wanted: one, or the best."""

    rows: int
    best: int

    @property
    def words(self) -> int:
        """Of the record of a row."""
        return 1 if self.best == 1 else self.best + 1


def reads_of(topk: int, steps: int, nodes: int, batch: int) -> list[Read]:
    """Those of a step: drafts of every branch, all nodes, and the rows that extend selects."""
    drafts = [Read(batch * topk, topk)] * (steps - 1)
    return [*drafts, Read(batch * nodes, 1), Read(batch, topk)]


class Side:
    """The tensors of a step's collectives on one rank, and the collectives."""

    def __init__(self, reads: Sequence[Read], vocab: int, device: torch.device, rank: int, ranks: int) -> None:
        source = torch.Generator().manual_seed(vocab)
        self.reads, self.collective = reads, GroupCollective()
        self.whole = [torch.randn(read.rows, vocab, generator=source).to(device, torch.bfloat16) for read in reads]
        self.shards = [logits.chunk(ranks, dim=-1)[rank].contiguous() for logits in self.whole]
        self.number, self.live = (
            torch.tensor([rank], device=device),
            [torch.ones(read.rows, device=device) for read in reads],
        )
        self.records = [
            self._record(read, *given, ranks) for read, *given in zip(reads, self.shards, self.live, strict=True)
        ]
        self.gathered = [record.new_empty(ranks, *record.shape[1:]) for record in self.records]
        self.columns = [shard.new_empty(ranks, *shard.shape) for shard in self.shards]

    def _record(self, read: Read, shard: Tensor, live: Tensor, ranks: int) -> Tensor:
        opcode = "vocab.argmax_part" if read.best == 1 else "vocab.topk_part"
        attrs = {"words": read.words, "chunks": min(CHUNKS, shard.shape[-1] & -shard.shape[-1])}
        return OPS[opcode]((shard, live, self.number), attrs, {})[0]

    def gather_records(self) -> None:
        """What a program's collectives do."""
        for out, record in zip(self.gathered, self.records, strict=True):
            self.collective.all_gather(out, record)

    def gather_logits(self) -> None:
        """What an engine's do that hands over whole rows."""
        for out, shard in zip(self.columns, self.shards, strict=True):
            self.collective.all_gather(out, shard[None])

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes that a rank sends to each other one: as records, as logits."""
        records, logits = (sum(t.numel() * t.element_size() for t in ts) for ts in (self.records, self.shards))
        return records, logits

    def check(self) -> None:
        """Both sides choose the tokens of whole logits."""
        self.gather_records()
        self.gather_logits()
        for index, read in enumerate(self.reads):
            want = self.whole[index].topk(read.best, dim=-1).values
            opcode, attrs = ("argmax", {"dtype": "i64", "keep": "K"}) if read.best == 1 else ("topk", {})
            results = OPS[f"vocab.{opcode}_merge"]((self.gathered[index], self.live[index]), attrs, {"K": read.best})
            tokens = results[0] if read.best == 1 else results[1]
            columns = self.columns[index].transpose(0, 1).flatten(1)
            if not torch.equal(columns, self.whole[index]) or not torch.equal(columns.gather(1, tokens), want):
                raise SystemExit(f"forward {index}: the ranks do not choose the tokens of whole logits")


def run(rank: int, ranks: int, port: int, check_only: bool, file: str | None) -> None:
    """One rank."""
    on_gpus = torch.cuda.device_count() >= ranks
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("nccl" if on_gpus else "gloo", rank=rank, world_size=ranks)
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    lines: list[dict[str, object]] = []
    for topk, steps, nodes, vocab, batch in REAL if on_gpus else TINY:
        side = Side(reads_of(topk, steps, nodes, batch), vocab, device, rank, ranks)
        side.check()
        records, logits = side.sent
        line: dict[str, object] = {"topk": topk, "steps": steps, "nodes": nodes, "vocab": vocab, "batch": batch}
        line |= {"ranks": ranks, "record_bytes": records, "logits_bytes": logits}
        if on_gpus and not check_only:
            from specc.lab.measure.results.ratios import Ratio
            from specc.lab.measure.timing import capture, pairs

            graphs = [capture(gather, COPIES) for gather in (side.gather_logits, side.gather_records)]
            line["ratio"] = str(Ratio.of(*pairs(graphs[0].replay, graphs[1].replay, SAMPLES)))
        lines.append(line)
        if rank == 0:
            print("same tokens", *(f"{key} {value}" for key, value in line.items()), sep="  ", flush=True)
    if rank == 0 and file is not None:
        Path(file).write_text(json.dumps(lines, indent=2) + "\n")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=max(2, torch.cuda.device_count()), help="a power of two")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check-only", action="store_true")
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (given.ranks, port, given.check_only, given.json)
    torch.multiprocessing.spawn(run, arguments, nprocs=given.ranks)  # pyright: ignore[reportPrivateImportUsage]


if __name__ == "__main__":
    main()
