"""Drafts whose layers keep more than one kind of cache, or attend to what an earlier forward has picked.

No such model runs in vLLM on a CPU as it is published: sparse attention needs a GPU. So the first is a draft some of
whose layers have a window, in a group of its own, and the second is a module of multi-token prediction to which a
plugin of vLLM's gives picks, which change what it drafts.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import tokenizer
from vllm_programs import build_program, plugin_wheel
from vllm_server import BLOCK, Served, Variant, serve
from vllm_workload import workloads

WINDOW = 24
WINDOWED = Variant("draft_model", "standalone_windowed", program=True)
PICKING = Variant("mtp", "mimo_picking", target="mimo_picking", program=True, ahead=True)
PICKS = """
import torch

def register():
    from vllm.model_executor.models.mimo_mtp import MiMoMultiTokenPredictor as Module

    make, run = Module.__init__, Module.forward

    def made(self, **given):
        make(self, **given)
        self.topk_indices_buffer = torch.zeros(4096, dtype=torch.int64)
        self.skip_topk, self.counts = False, dict.fromkeys(("picked", "kept", "reused"), 0)

    def set_skip_topk(self, skip):
        self.skip_topk = skip

    def compact_topk_indices(self, slot_ids):
        self.counts["kept"] += 1
        self.topk_indices_buffer[: len(slot_ids)] = self.topk_indices_buffer[slot_ids]

    def forward(self, input_ids, positions, *given, **named):
        count, picks = len(input_ids), (31 * input_ids + 17 * positions) % 64
        if not self.skip_topk:
            self.topk_indices_buffer[:count] = picks
        self.counts["reused" if self.skip_topk else "picked"] += 1
        made = run(self, input_ids, positions, *given, **named)
        errors = torch.randn(64, made.shape[-1], generator=torch.Generator().manual_seed(3)).to(made)
        print("picks", self.counts)
        return made + 0.25 * made.std() * errors[self.topk_indices_buffer[:count]]

    Module.__init__, Module.forward = made, forward
    Module.set_skip_topk, Module.compact_topk_indices = set_skip_topk, compact_topk_indices
"""


def written(models: Path) -> None:
    """Write both drafts below the other models, unless they are there."""
    for name, of, changes in (
        ("standalone_windowed", "standalone",
         {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": WINDOW}),
        ("mimo_picking", "mimo", {"index_share_for_mtp_iteration": True}),
    ):  # fmt: skip
        if not (models / name).exists():
            shutil.copytree(models / of, models / name)
            config = json.loads((models / of / "config.json").read_text())
            (models / name / "config.json").write_text(json.dumps(config | changes))


def runs(variant: Variant, code: str, models: Path, folder: Path) -> tuple[Served, Served]:
    """What vLLM's own steps answer to the same requests, and the program's, both beside a plugin."""
    written(models)
    requests = workloads(tokenizer(models), (4,))
    engine = variant.engine(models) | {"num_gpu_blocks_override": 90 if variant == WINDOWED else 14}
    for name in ("plugin", "both"):
        (folder / name).mkdir()
    own = serve(engine, requests, folder / "own", wheel=plugin_wheel(code, folder / "plugin") if code else None)
    block = 2 * BLOCK if variant == WINDOWED else BLOCK  # layers of half as many heads get blocks of twice the tokens
    wheel = build_program(replace(variant, block=block), models, folder / "wheel")
    wheel = plugin_wheel(code, folder / "both", [wheel]) if code else wheel
    return own, serve(engine, requests, folder / "program", wheel=wheel)


@pytest.mark.parametrize(("variant", "code"), [(WINDOWED, ""), (PICKING, PICKS)], ids=["windowed", "picking"])
def test_drafts_are_vllms(variant: Variant, code: str, models: Path, tmp_path: Path) -> None:
    """Every verification accepts as much, so texts and drafts are equal; and layers' groups are several."""
    own, served = runs(variant, code, models, tmp_path)
    lengths = [length for output in own.outputs for length in output.get("accepted", [])]
    assert sum(lengths) / len(lengths) > 1.2
    for number, (output, expected) in enumerate(zip(served.outputs, own.outputs, strict=True)):
        assert output.get("accepted") == expected.get("accepted"), number
        assert output["token_ids"] == expected["token_ids"], number
    assert served.counts is not None and served.counts["program_steps"] > served.seen["steps"] / 3
    if code:
        counts = [
            json.loads(line.split("picks ")[1].replace("'", '"'))
            for line in served.log.splitlines()
            if "picks {" in line
        ]
        assert counts[-1]["reused"] > counts[-1]["picked"] > 50
