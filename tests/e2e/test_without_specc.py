"""A real program in the hands of a stranger: no specc, no Triton, and an engine that has no KV memory at all.

The engine below remembers which token was written to which slot and runs the whole context of every row from scratch,
so it checks slots, positions and rows of the program independently of specc's own engine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import EXAMPLES, Case, Models, build_wheel, install

STRANGER = '''
import sys

for absent in ("specc", "jinja2", "networkx", "triton"):
    sys.modules[absent] = None
sys.path.insert(0, sys.argv[1])

import importlib
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

package, target_dir, draft_dir, count = sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
k = importlib.import_module(package)
torch.set_num_threads(1)
torch.manual_seed(0)
target, draft = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (target_dir, draft_dir))
tokenizer = AutoTokenizer.from_pretrained(target_dir)
prompts = [tokenizer(text)["input_ids"] for text in ("def main():\\n", "import os\\nimport sys\\n\\n")]

class Memoryless:
    """Which token is in which slot, per model; the first draft position says what the prefill holds."""

    def __init__(self, rows, columns):
        # Slot 0 is the sink; the other slots are scattered, so that a position is never its own slot.
        slots = torch.randperm(rows * columns) + 1
        self.table = slots.to(torch.int32).view(rows, columns)
        self.kept = {model: torch.full((rows * columns + 1,), -1) for model in (target, draft)}

    def scores(self, model, row, length):
        ids = self.kept[model][self.table[row, :length].long()]
        assert (ids >= 0).all(), "a position that nothing was written to is read"
        with torch.no_grad():
            return model(ids[None]).logits[0]

    def forward(self, model, tokens, positions, slots, rows):
        self.kept[model][slots.flatten()] = tokens.flatten()
        table = [self.scores(model, row, int(last) + 1)[first : last + 1]
                 for row, first, last in zip(rows.tolist(), positions[:, 0].tolist(), positions[:, -1].tolist())]
        return torch.stack(table)

    def draft(self, *, step, tokens, positions, slots, rows, seq_lens, capture):
        assert capture == "null"
        return k.Forward(self.forward(draft, tokens, positions, slots, rows))

    def target(self, *, tokens, positions, slots, rows, seq_lens, capture):
        assert capture == "null"
        return k.Forward(self.forward(target, tokens, positions, slots, rows))

    def extend(self, *, tokens, positions, slots, select, rows, seq_lens, capture):
        return k.Forward(self.forward(draft, tokens, positions, slots, rows).flatten(0, 1)[select].contiguous())

    def prefill(self, model, texts, rows):
        for row, text in zip(rows.tolist(), texts):
            self.kept[model][self.table[row, : len(text)].long()] = torch.tensor(text)
        last = [self.scores(model, row, len(text))[-1] for row, text in zip(rows.tolist(), texts)]
        return k.Forward(torch.stack(last))

    def prefill_target(self, *, rows, seq_lens, capture):
        return self.prefill(target, [texts[row] for row in rows.tolist()], rows)

    def prefill_draft(self, *, first, rows, seq_lens, capture):
        whole = [texts[row] + [token] for row, token in zip(rows.tolist(), first.tolist())]
        return self.prefill(draft, whole, rows)

program = k.load("cpu")
rows = [3, 1]
texts = dict(zip(rows, prompts))
engine = Memoryless(program.plan.dims["P"], 128)
step = program.bind(engine, engine.table)
lengths = [len(prompt) for prompt in prompts]
out = [[token] for token in step.prefill(k.Batch(rows, lengths)).to_host().bonus]
steps = 0
while min(map(len, out)) < count:
    result = step.decode(k.Batch(rows, lengths)).to_host()
    lengths, steps = result.new_seq_lens, steps + 1
    for index, tokens in enumerate(out):
        tokens += result.tokens(index)

for prompt, tokens in zip(prompts, out):
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": count, "pad_token_id": 0}
    text = target.generate(ids, attention_mask=torch.ones_like(ids), **options)
    wanted = text[0, len(prompt) :].tolist()
    assert tokens[: len(wanted)] == wanted, (tokens, wanted)
print("identical", steps < count)
'''


@pytest.mark.parametrize("overlap", [True, False])
def test_an_engine_of_a_stranger(overlap: bool, models: dict[str, Models], tmp_path: Path) -> None:
    """The installed wheel decodes real text where specc, jinja2, networkx and triton cannot be imported."""
    case = Case("STANDALONE", "trained", overlap=overlap)
    site = tmp_path / "site"
    install(build_wheel(case, models["trained"], tmp_path), site)
    paths = [str(EXAMPLES / "target"), str(EXAMPLES / "standalone")]
    command = [sys.executable, "-c", STRANGER, str(site), f"specc_{case.name}", *paths, "24"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "identical True"
