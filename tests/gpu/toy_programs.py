"""Configurations of the toy programs: chains and trees, of every mask, page size, KV layout and kind of output."""

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
draft: {{hidden_size: 24, num_layers: 1, num_kv_heads: 1, head_dim: 8, vocab_size: {vocab}, dtype: {dtype}}}
"""
ROW = "num_kv_heads: 1, head_dim: 8"


@dataclass(frozen=True)
class Toy:
    """One toy program; ``more`` has the top-level keys that only some have, ``target`` the KV rows of the target."""

    name: str
    algorithm: str
    steps: int
    overlap: bool
    vocab: int
    dtype: str
    target: str = ROW
    more: dict[str, object] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The configuration as YAML."""
        top = {key: getattr(self, key) for key in ("name", "algorithm", "steps", "vocab", "dtype", "target")}
        lines = [f"{key}: {value}\n" for key, value in self.more.items()]
        return TOY.format(**top, overlap=str(self.overlap).lower()) + "".join(lines)


def tree(topk: int, nodes: int, page: int, mask: str, **more: object) -> dict[str, object]:
    """The keys of a tree."""
    return {"topk": topk, "num_draft_tokens": nodes, "page_size": page, "mask": mask, **more}


CHAINS = (
    Toy("toy_standalone", "STANDALONE", 3, True, 64, "float32"),
    Toy("toy_standalone_plain", "STANDALONE", 1, False, 51, "bfloat16"),
    Toy("toy_eagle", "EAGLE", 3, True, 64, "bfloat16"),
    Toy("toy_eagle_plain", "EAGLE", 4, False, 51, "float32"),
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
)  # fmt: skip
TOYS = (*CHAINS, *TREES)
