"""Configurations for an engine, and what is found wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import config_text

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.support.diagnostics import DiagnosticError

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96,
    "num_key_value_heads": 2, "head_dim": 16, "dtype": "bfloat16", "max_position_embeddings": 4096,
}  # fmt: skip


TREE = {"topk": 4, "num_draft_tokens": 12}


def load(algorithm: str = "STANDALONE", engine: str | None = "sglang", **keys: object) -> LoadedConfig:
    text = config_text(algorithm, **({"engine": engine} if engine else {}), **keys)  # type: ignore[arg-type]
    return load_text(text, Path("small.yaml"), names(), needs)


def findings(algorithm: str = "STANDALONE", **keys: object) -> list[tuple[str, str, int]]:
    """Codes, hints and lines of what is wrong."""
    with pytest.raises(DiagnosticError) as raised:
        load(algorithm, **keys)
    return [(d.code, d.hint or "", d.location.line if d.location else 0) for d in raised.value.diagnostics]
