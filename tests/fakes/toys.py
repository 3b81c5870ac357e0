"""Configurations of the toy programs: chains and trees of all algorithms; every mask, page size, KV layout, output."""

from __future__ import annotations

from dataclasses import dataclass, field

TOY = """\
name: {name}
algorithm: {algorithm}
num_steps: {steps}
buckets: [1, 2, 4, 6]
max_requests: 9
overlap: {overlap}
target: {{hidden_size: 24, num_layers: 2, vocab_size: {vocab}, dtype: {dtype}, {target}}}
"""
DRAFT = "draft: {{vocab_size: {vocab}, dtype: {dtype}, {draft}}}\n"
ROW = "num_kv_heads: 1, head_dim: 8"
SAME = f"hidden_size: 24, num_layers: 1, {ROW}"


@dataclass(frozen=True)
class Toy:
    """One toy program; ``more`` has the top-level keys that only some have, ``target`` the KV rows of the target.

    ``draft`` is the draft model, empty where there is none.
    """

    name: str
    algorithm: str
    steps: int
    overlap: bool
    vocab: int
    dtype: str
    target: str = ROW
    draft: str = SAME
    more: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The configuration as YAML."""
        text = TOY + (DRAFT if self.draft else "")
        keys = ("name", "algorithm", "steps", "vocab", "dtype", "target", "draft")
        lines = [f"{key}: {value}\n" for key, value in self.more.items()]
        return text.format(**{key: getattr(self, key) for key in keys}, overlap=str(self.overlap).lower()) + "".join(
            lines
        )


def tree(topk: int, nodes: int, page: int, mask: str, **more: object) -> dict[str, object]:
    """The keys of a tree."""
    return {"topk": topk, "num_draft_tokens": nodes, "page_size": page, "mask": mask, **more}


AUX = f"aux_layers: [1, 2], {ROW}"
HEAD = f"hidden_size: 16, num_layers: 1, num_aux_layers: 2, target_hidden_size: 24, {ROW}"
CHAINS = (
    Toy("toy_standalone", "STANDALONE", 3, True, 64, "float32"),
    Toy("toy_standalone_plain", "STANDALONE", 1, False, 51, "bfloat16"),
    Toy("toy_eagle", "EAGLE", 3, True, 64, "bfloat16"),
    Toy("toy_eagle_plain", "EAGLE", 4, False, 51, "float32"),
    Toy("toy_eagle3", "EAGLE3", 3, True, 64, "bfloat16", AUX, HEAD),
    Toy("toy_frozen_kv", "FROZEN_KV_MTP", 3, True, 51, "bfloat16"),
    Toy("toy_modules", "MULTI_LAYER_EAGLE", 3, True, 64, "bfloat16", draft=f"hidden_size: 24, num_layers: 4, {ROW}"),
    Toy("toy_block", "DFLASH", 4, True, 51, "float32", AUX, HEAD),
    Toy("toy_ngram", "NGRAM", 4, True, 12, "bfloat16", draft="", more={"options": "{window: 64}"}),
)
BUDGETS = (
    Toy("toy_budget", "EAGLE", 4, True, 64, "bfloat16", more={"budget": 2}),
    Toy("toy_budget_block", "DFLASH", 4, False, 51, "float32", AUX, HEAD, {"budget": 3, "outputs": "[hidden_states]"}),
)
EXPERTS = "num_kv_heads: 2, head_dim: 6, experts_per_token: 2"
TREES = (
    Toy("toy_tree", "STANDALONE", 3, True, 64, "float32", more=tree(2, 6, 1, "qlen")),
    Toy(
        "toy_tree_paged", "EAGLE", 3, True, 64, "bfloat16",
        more=tree(4, 12, 16, "bitpacked", outputs="[accept_index, hidden_states]"),
    ),
    Toy(
        "toy_tree_full", "EAGLE", 4, False, 51, "float32", target=EXPERTS,
        more=tree(3, 20, 1, "full", context_length=160, outputs="[logprobs, routed_experts]"),
    ),
    Toy(
        "toy_tree_latent", "STANDALONE", 2, False, 64, "bfloat16",
        target="num_kv_heads: 1, head_dim: 12, kv_layout: mla", more=tree(2, 3, 16, "qlen"),
    ),
    Toy("toy_tree_one_step", "EAGLE", 1, True, 51, "float32", more=tree(3, 4, 16, "bitpacked")),
    Toy("toy_eagle3_tree", "EAGLE3", 3, True, 51, "float32", AUX, HEAD, tree(3, 8, 16, "slots")),
    Toy("toy_frozen_kv_tree", "FROZEN_KV_MTP", 3, True, 64, "float32", more=tree(2, 6, 16, "bitpacked")),
    Toy(
        "toy_ngram_tree", "NGRAM", 3, False, 12, "float32", draft="",
        more=tree(3, 8, 16, "full", context_length=160, options="{window: 64, longest: 4, corpus: words.txt}"),
    ),
)  # fmt: skip
ALONE = (*CHAINS, *TREES)
"""Programs in which what a request gets does not depend on who else is served."""
TOYS = (*ALONE, *BUDGETS)
LAUNCHED = Toy("toy_path", "DFLASH2", 4, True, 51, "float32", AUX, f"{HEAD}, selector_rank: 12, selector_top_k: 3")
"""One whose launches are tried alone: the engine here has no selector."""
ENGINES = (
    "{bonus: {dtype: int64, written_by: engine}, seq_lens: {dtype: int32, written_by: engine}, drafts: {dtype: int64}}"
)
DRAFTS = "{drafts: {}}"
HISTORY = "{text: {dtype: int32}, bonus: {dtype: int64, written_by: engine}, drafts: {}}"
THEIRS = "{bonus: {dtype: int64}, drafts: {dtype: int32, written_by: engine}}"
ROTATED = (
    Toy(
        "toy_rotated", "STANDALONE", 3, True, 51, "float32", target=f"{ROW}, padded_vocab_size: 64",
        more={"step": "rotated", "page_size": 4, "tables": f"{{slots: block_table, carry: {ENGINES}}}"},
    ),
    Toy(
        "toy_rotated_eagle", "EAGLE", 3, True, 64, "bfloat16", target=f"{ROW}, padded_vocab_size: 72",
        more={"step": "rotated", "tables": f"{{carry: {THEIRS}}}", "outputs": "[logprobs]"},
    ),
    Toy(
        "toy_rotated_ngram", "NGRAM", 4, True, 12, "bfloat16", target=f"{ROW}, padded_vocab_size: 16", draft="",
        more={"step": "rotated", "page_size": 4, "options": "{window: 64}",
              "tables": f"{{slots: block_table, carry: {HISTORY}}}"},
    ),
    Toy(
        "toy_rotated_block", "DFLASH", 4, False, 51, "float32", AUX, HEAD,
        {"step": "rotated", "tables": f"{{carry: {DRAFTS}}}"},
    ),
)  # fmt: skip
"""Programs whose target the engine runs, with tables of its own."""
SAMPLED = Toy(
    "toy_rotated_sampled", "EAGLE", 2, True, 300, "float32", target=f"{ROW}, padded_vocab_size: 308",
    more={
        "step": "rotated", "verify": "target_only", "sampling": "[penalties, logit_bias, top_k, top_p, min_p]",
        "outputs": "[logprobs]", "logprobs": "processed", "best_logprobs": 3,
    },
)  # fmt: skip
"""One whose kernels read padded logits in every way there is."""
