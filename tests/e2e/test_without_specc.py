"""A real program in the hands of a stranger: no specc, no Triton, and an engine without keys and values.

The engine below keeps in its KV buffers which token was written to which slot, and runs the whole context of every row
from scratch, so it checks slots, positions, masks and moved rows of the program independently of specc's own engine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .conftest import EXAMPLES, Case, Models, build_wheel, install

STRANGER = '''
import json
import sys
import traceback

for absent in ("specc", "jinja2", "networkx", "triton"):
    sys.modules[absent] = None
sys.path.insert(0, sys.argv[1])

import importlib
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

target_dir, draft_dir, count = sys.argv[3], sys.argv[4], int(sys.argv[5])
torch.set_num_threads(1)
target, a_draft = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (target_dir, draft_dir))
tokenizer = AutoTokenizer.from_pretrained(target_dir)
prompts = [tokenizer(text)["input_ids"] for text in ("def main():\\n", "import os\\nimport sys\\n\\n")]

class Memoryless:
    """Which token is in which slot, per model: that is all its KV buffers hold, each of them."""

    def __init__(self, plan, columns):
        # Slot 0 is the sink; the other slots are scattered, so that a position is never its own slot.
        rows = plan.dims["P"]
        slots = torch.randperm(rows * columns) + 1
        self.table = slots.to(torch.int32).view(rows, columns)
        self.layout = plan.kv
        self.pools = {}
        for owner, pool in plan.kv_pools.items():
            dtype = getattr(torch, pool.dtype)
            shape = (rows * columns + 1, pool.row_bytes // dtype.itemsize)
            self.pools[owner] = [torch.full(shape, -1, dtype=dtype) for _ in range(pool.layers * pool.buffers)]
        models = {"target": target, "draft": draft}
        self.kept = {models[owner]: buffers for owner, buffers in self.pools.items()}

    def write(self, model, slots, tokens):
        for buffer in self.kept[model]:
            buffer[slots.flatten()] = tokens.flatten()[:, None].to(buffer.dtype)

    def read(self, model, slots):
        first, *others = [buffer[slots.long()].long() for buffer in self.kept[model]]
        assert all(torch.equal(first, other) for other in others), "a buffer was left behind"
        assert (first == first[:, :1]).all(), "part of a row was left behind"
        return first[:, 0]

    def scores(self, model, slots):
        ids = self.read(model, slots)
        assert (ids >= 0).all(), "a position that nothing was written to is read"
        with torch.no_grad():
            return model(ids[None]).logits[0]

    def forward(self, model, tokens, positions, slots, rows):
        self.write(model, slots, tokens)
        table = [self.scores(model, self.table[row, : int(last) + 1])[first : last + 1]
                 for row, first, last in zip(rows.tolist(), positions[:, 0].tolist(), positions[:, -1].tolist())]
        return torch.stack(table)

    def draft(self, *, step, tokens, positions, slots, rows, seq_lens, capture):
        assert capture == "null"
        self.write(draft, slots, tokens)
        found, page = [], self.layout.page_size
        for row, length in zip(rows.tolist(), seq_lens.tolist()):
            base = length + self.layout.first_draft_position
            tail = base % page
            run = -(-(self.layout.branch_room + tail) // page) * page
            for branch in range(tokens.shape[1]):
                # Whole pages of the text, then those of the branch, which begin with a copy of the text's last tokens.
                start = base + branch * run
                own = self.table[row, start - tail : start + step + 1]
                found.append(self.scores(draft, torch.cat([self.table[row, : base - tail], own]))[-1])
        return k.Forward(torch.stack(found).view(*tokens.shape, -1))

    def target(self, *, tokens, positions, slots, rows, seq_lens, capture, mask=None):
        assert capture == "null"
        if mask is None:
            return k.Forward(self.forward(target, tokens, positions, slots, rows))
        self.write(target, slots, tokens)
        found = []
        for row, length, own, seen, at in zip(rows.tolist(), seq_lens.tolist(), slots, mask, positions):
            for node in range(len(own)):
                above = seen[node].nonzero().flatten()
                above = above[at[above].argsort()]
                assert (at[above] == length + torch.arange(len(above))).all(), "ancestors must be one per position"
                found.append(self.scores(target, torch.cat([self.table[row, :length], own[above].int()]))[-1])
        return k.Forward(torch.stack(found).view(*tokens.shape, -1))

    def extend(self, *, tokens, positions, slots, select, accept_lens, rows, seq_lens, capture):
        return k.Forward(self.forward(draft, tokens, positions, slots, rows).flatten(0, 1)[select].contiguous())

    def prefill(self, model, texts, rows):
        for row, text in zip(rows.tolist(), texts):
            self.write(model, self.table[row, : len(text)].long(), torch.tensor(text))
        last = [self.scores(model, self.table[row, : len(text)])[-1] for row, text in zip(rows.tolist(), texts)]
        return k.Forward(torch.stack(last))

    def prefill_target(self, *, rows, seq_lens, capture):
        return self.prefill(target, [texts[row] for row in rows.tolist()], rows)

    def prefill_draft(self, *, first, rows, seq_lens, capture):
        whole = [texts[row] + [token] for row, token in zip(rows.tolist(), first.tolist())]
        return self.prefill(draft, whole, rows)

wanted = []
for prompt in prompts:
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": count, "pad_token_id": 0}
    text = target.generate(ids, attention_mask=torch.ones_like(ids), **options)
    wanted.append(text[0, len(prompt) :].tolist())

def decode():
    """How many steps the program takes for the texts, which are right."""
    program = k.load("cpu")
    engine = Memoryless(program.plan, 160)
    step = program.bind(engine, engine.table, engine.pools)
    lengths = [len(prompt) for prompt in prompts]
    read = {} if draft else {"prompt_tokens": [token for prompt in prompts for token in prompt]}
    out = [[token] for token in step.prefill(k.Batch(rows, lengths, **read)).to_host().bonus]
    steps = 0
    while min(map(len, out)) < count:
        result = step.decode(k.Batch(rows, lengths)).to_host()
        lengths, steps = result.new_seq_lens, steps + 1
        for index, tokens in enumerate(out):
            tokens += result.tokens(index)
    for tokens, text in zip(out, wanted):
        assert tokens[: len(text)] == text, (tokens, text)
    return steps

rows = [3, 1]
texts = dict(zip(rows, prompts))
for package, has_draft in json.loads(sys.argv[2]):
    k, draft = importlib.import_module(package), a_draft if has_draft else None
    torch.manual_seed(0)
    try:
        said = "identical" if decode() < count else "no step was saved"
    except Exception:
        said = traceback.format_exc()
    print(json.dumps(said))
'''


CASES = {
    "relayed": Case("STANDALONE", "trained", overlap=True),
    "plain": Case("STANDALONE", "trained", overlap=False),
    "tree": Case("STANDALONE", "trained", topk=3, nodes=8),
    "looked up": Case("NGRAM", "trained"),
    "looked up tree": Case("NGRAM", "trained", page_size=4, topk=3, nodes=8, overlap=False),
    "paged tree": Case("STANDALONE", "trained", steps=4, page_size=4, topk=2, nodes=7, overlap=False),
}


@pytest.fixture(scope="module")
def verdicts(models: dict[str, Models], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the stranger says of each case: one process for all, which imports torch and reads models once."""
    folder = tmp_path_factory.mktemp("stranger")
    wheels = [build_wheel(case, models["trained"], tmp_path_factory.mktemp(case.name)) for case in CASES.values()]
    install(folder / "site", *wheels)
    programs = [(f"specc_program_{case.name}", case.algorithm == "STANDALONE") for case in CASES.values()]
    paths = [str(EXAMPLES / "target"), str(EXAMPLES / "standalone")]
    command = [sys.executable, "-c", STRANGER, str(folder / "site"), json.dumps(programs), *paths, "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_an_engine_of_a_stranger(name: str, verdicts: dict[str, str]) -> None:
    """The installed wheel decodes real text where specc, jinja2, networkx and triton cannot be imported."""
    assert verdicts[name] == "identical"
