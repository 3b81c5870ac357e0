"""What follows a draft's forward in every algorithm's program: its kernels, launched, against the reference ops."""

from typing import Any

import pytest
import torch
from cluster_cases import LOGITS, POOL, check_cluster, integer
from kernel_cases import generator, random_logits, random_rows
from kernel_launcher import Launcher
from programs import compile_to, load

from specc.compiler.ir.core import tensor_type
from specc.compiler.ir.declarations import Kernel
from specc.compiler.kernels.writing.family import cluster_of

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
def test_kernels(launcher: Launcher, program: str, dtype: str, hidden: str, vocab: int) -> None:
    """One chunk of logits, or several, the last of which is no whole one; beside hidden states of any dtype."""
    model = {"dtype": hidden, "logits_dtype": dtype, "vocab_size": vocab}
    source = generator(len(program) + vocab)
    module = compile_to("form-kernels", load(**PROGRAMS[program], target=model, draft=model))
    checked = 0
    for kernel in module.decls_of(Kernel):
        cluster = cluster_of(module, kernel.name)
        reduction = next((op for op in cluster if op.opcode in LOGITS), None)
        if reduction is None or reduction.phase == "verify":
            continue
        rows = random_rows(source, integer(source, 1, module.size("B")), POOL)
        _, *sizes, _ = tensor_type(reduction["logits"]).sizes(module.dims)
        count, torch_dtype = len(rows) * (sizes[0] if sizes else 1), getattr(torch, dtype)
        lines = random_logits(source, count, vocab, vocab, torch_dtype).view(len(rows), *sizes, vocab)
        lens = torch.randint(0, module.size("A") + 1, (len(rows),), generator=source, dtype=torch.int32)
        given = {"req_pool_indices": rows, reduction["logits"].name: lines, "accept_lens": lens}
        given[reduction["rows"].name] = rows
        kept = [op.out("kept").name for op in module.find("tree.grow")]
        branches = module.size("K")
        given |= {name: torch.randint(0, branches**2, (len(rows), branches), generator=source) for name in kept}
        given["admitted_seq_lens"] = torch.randint(0, 99, (len(rows),), generator=source)
        check_cluster(launcher, module, kernel.family, cluster, source, given)
        checked += 1
    assert checked
