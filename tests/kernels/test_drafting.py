"""What follows a draft's forward in every algorithm's program: its clusters, launched, against the reference ops."""

from typing import Any

import pytest
import torch
from cluster_cases import POOL, check_cluster, integer
from kernel_cases import generator, random_logits, random_rows
from kernel_launcher import Launcher
from programs import compile_to, load

from specc.ir.core import Module, tensor_type
from specc.kernels import FAMILIES
from specc.kernels.shared.base import Cluster

TREE = {"topk": 3, "num_draft_tokens": 6}
PROGRAMS: dict[str, dict[str, Any]] = {
    "recurrent": {"algorithm": "EAGLE"},
    "recurrent-tree": {"algorithm": "EAGLE", **TREE},
    "assisted": {"algorithm": "FROZEN_KV_MTP"},
    "assisted-once": {"algorithm": "FROZEN_KV_MTP", "num_steps": 1},
    "assisted-tree": {"algorithm": "FROZEN_KV_MTP", **TREE},
    "modules": {"algorithm": "MULTI_LAYER_EAGLE"},
    "one-module": {"algorithm": "MULTI_LAYER_EAGLE", "num_steps": 1},
    "block": {"algorithm": "DFLASH"},
    "block-of-one": {"algorithm": "DFLASH", "num_steps": 1},
}
STEMS = ("draft_step", "row_argmax", "row_topk")


def clusters(module: Module) -> list[tuple[str, Cluster]]:
    """All that the families with one row or one block per request offer, but for the target's rows."""
    found = [(stem, cluster) for stem in STEMS for cluster in FAMILIES[stem].candidates(module)]
    return [(stem, cluster) for stem, cluster in found if all(op.phase != "verify" for op in cluster)]


@pytest.mark.parametrize(
    ("dtype", "hidden", "vocab"),
    [
        ("float32", "float32", 96),
        ("bfloat16", "bfloat16", 4100),
        ("float16", "float16", 2049),
        ("float32", "bfloat16", 200),
        ("float16", "float32", 99),
    ],
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_clusters(launcher: Launcher, program: str, dtype: str, hidden: str, vocab: int) -> None:
    """One chunk of logits, or several, the last of which is no whole one; beside hidden states of any dtype."""
    model = {"dtype": hidden, "logits_dtype": dtype, "vocab_size": vocab}
    source = generator(len(program) + vocab)
    module = compile_to("canonicalize", load(**PROGRAMS[program], target=model, draft=model))
    found = clusters(module)
    assert found
    for stem, cluster in found:
        rows = random_rows(source, integer(source, 1, module.size("B")), POOL)
        (reduction,) = [op for op in cluster if op.opcode in ("vocab.argmax", "vocab.topk")]
        logits = reduction.operands[0]
        _, *sizes, _ = tensor_type(logits).sizes(module.dims)
        count, torch_dtype = len(rows) * (sizes[0] if sizes else 1), getattr(torch, dtype)
        given = {
            "req_pool_indices": rows,
            logits.name: random_logits(source, count, vocab, vocab, torch_dtype).view(len(rows), *sizes, vocab),
            "accept_lens": torch.randint(0, module.size("A") + 1, (len(rows),), generator=source, dtype=torch.int32),
        }
        p = [op.results[0].name for op in cluster if op.opcode == "vocab.topk"]
        check_cluster(launcher, module, stem, cluster, source, given, p)
