"""The least that a serving engine has to do: a target, a draft and plain KV pools run the wheel of a STANDALONE chain.

    specc build examples/standalone-chain.yaml -o dist
    pip install --no-deps dist/specc_program_standalone_chain-*.whl
    python examples/minimal_engine.py specc_program_standalone_chain

prints every text, which is what transformers' `generate` writes, or fails. docs/runtime.md has all that it leaves out.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

EXAMPLES = Path(__file__).parent
COUNT, CONTEXT = 48, 256  # new tokens of a text; the most tokens of one, prompt included


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **given: Any) -> tuple[Tensor, None]:
    """Put keys and values T[b, heads, n, d] of new tokens into their slots; each attends to its text up to itself."""
    pool, slots, positions, table = given["memory"]
    keys, values = pool[module.layer_idx]
    keys[slots], values[slots] = key.transpose(1, 2), value.transpose(1, 2)
    key, value = keys[table].transpose(1, 2), values[table].transpose(1, 2)
    seen = torch.arange(CONTEXT) <= positions[:, None, :, None]
    out = scaled_dot_product_attention(query, key, value, seen, scale=given["scaling"], enable_gqa=True)
    return out.transpose(1, 2), None


class Model:
    """A language model over a pool T[layers, 2, slots, heads, d] of its own."""

    def __init__(self, folder: str, table: Tensor) -> None:
        """Have room for every slot of the table i32[P, C], and for slot 0, where padding goes."""
        AttentionInterface.register("pool", attend)
        self.model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "models" / folder, attn_implementation="pool")
        self.table, sizes = table, self.model.config
        self.pool = torch.zeros(sizes.num_hidden_layers, 2, table.max() + 1, sizes.num_key_value_heads, sizes.head_dim)

    def __call__(self, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, **_: object) -> Tensor:
        """Logits f32[b, n, V] of tokens at positions and slots i64[b, n] in rows i64[b] of the table."""
        memory = self.pool, slots, positions, self.table[rows]
        return self.model(input_ids=tokens, position_ids=positions, use_cache=False, memory=memory).logits

    def prefill(self, rows: Tensor, texts: dict[int, list[int]], *first: Tensor) -> Tensor:
        """Logits f32[b, V] of the last tokens of the texts in rows i64[b], or of first tokens i32[b] behind them."""
        last: list[Tensor] = []
        for row, *more in torch.stack((rows, *first), dim=1).tolist():
            tokens = torch.tensor([[*texts[row], *more]])
            positions = torch.arange(tokens.shape[1])[None]
            last.append(self(tokens, positions, self.table[row, positions].long(), torch.tensor([row]))[0, -1])
        return torch.stack(last)


def forwards(k: Any, texts: dict[int, list[int]], table: Tensor) -> SimpleNamespace:
    """What a program calls, by keyword; `texts` has the tokens of every row that is prefilled."""
    target, draft = Model("target", table), Model("standalone", table)
    return SimpleNamespace(
        prefill_target=lambda rows, **_: k.Forward(target.prefill(rows, texts)),
        prefill_draft=lambda rows, first, **_: k.Forward(draft.prefill(rows, texts, first)),
        draft=lambda **window: k.Forward(draft(**window)),
        target=lambda **window: k.Forward(target(**window)),
        extend=lambda select, **window: k.Forward(draft(**window).flatten(0, 1)[select]),
    )


@torch.inference_mode()
def main(package: str) -> None:
    """Decode the prompts of the examples and compare every text with that of `generate`."""
    k, tokenizer = importlib.import_module(package), AutoTokenizer.from_pretrained(EXAMPLES / "models" / "target")
    prompts = [tokenizer(text).input_ids for text in json.loads((EXAMPLES / "prompts.json").read_text())]
    texts = {row: list(prompt) for row, prompt in enumerate(prompts, start=1)}
    table = 1 + torch.arange(k.plan.dims["P"] * CONTEXT, dtype=torch.int32).view(-1, CONTEXT)
    step, running = k.load("cpu").bind(forwards(k, texts, table), table), list(texts)
    result = step.prefill(k.Batch(running, [len(prompt) for prompt in prompts])).to_host()
    while running:
        for index, row in enumerate(running):
            texts[row] += result.tokens(index)
        running = [row for row in running if len(texts[row]) < len(prompts[row - 1]) + COUNT]
        # The last token of a text has no keys and values yet.
        result = step.decode(k.Batch(running, [len(texts[row]) - 1 for row in running])).to_host()
    oracle = AutoModelForCausalLM.from_pretrained(EXAMPLES / "models" / "target")
    for prompt, text in zip(prompts, texts.values(), strict=True):
        wanted = oracle.generate(torch.tensor([prompt]), max_new_tokens=COUNT, do_sample=False)[0].tolist()
        assert text[: len(wanted)] == wanted, "generate writes another text"
        print(tokenizer.decode(wanted, skip_special_tokens=True), end="\n-- as generate writes it\n\n")


if __name__ == "__main__":
    main(sys.argv[1])
