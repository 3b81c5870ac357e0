"""What ranks share out: logits that are sharded, and heads of keys and values; and what cannot be shared yet."""

from __future__ import annotations

from dataclasses import replace

from specc.compiler.config.presets import PRESETS
from specc.compiler.config.resolution.roles import Role
from specc.compiler.config.resolved import ModelConfig
from specc.compiler.config.rules.checked import Checked, refuse
from specc.compiler.config.schema import ConfigFile
from specc.compiler.ir.ops.shards import MOST_CHUNKS
from specc.compiler.support.diagnostics import Note

GATHERED = "write logits: gathered, with which every rank has whole rows"


def check_shards(checked: Checked) -> None:
    """With sharded logits, refuse features that need more than the largest entries."""
    file = checked.file
    if file.logits != "sharded" or not checked.sound("logits"):
        return
    what = "with logits: sharded"
    refuse(checked, file.draws, f"verify: {file.verify} {what}", ("verify",), GATHERED)
    refuse(checked, file.best_logprobs > 0, f"best_logprobs {what}", ("best_logprobs",), GATHERED)


def with_shards(checked: Checked, role: Role, model: ModelConfig | None) -> ModelConfig | None:
    """Return a model with the columns of all its shards, None after reporting that they cannot be shared out."""
    block = checked.file.target if role == "target" else checked.file.draft
    if model is None or block is None:
        return model
    written, at = block.padded_vocab_size, checked.places.value(role, "padded_vocab_size")
    head = role == "draft" and checked.file.computes_head
    if checked.file.logits != "sharded" and not (head and checked.file.tensor_parallel > 1):
        if role == "target" and checked.file.step == "rotated":
            return _with_rows(checked, model, written)
        if written is not None and checked.sound("logits"):
            message = "padded_vocab_size says how shards of logits are padded, and every rank has whole rows"
            checked.findings.error("legal/shards", message, at, hint="write logits: sharded, or leave the key out")
        return model
    if not checked.sound("logits", "tensor_parallel"):
        return None
    ranks = checked.file.tensor_parallel
    size = written or (_of_head(model.vocab_size) if head else _of_forwards(checked.file, model.vocab_size))
    least = -(-model.vocab_size // ranks) * ranks
    if size % ranks or size < model.vocab_size:
        place = at if written else checked.places.value(role, "vocab_size" if block.vocab_size else "model")
        message = f"{size} columns cannot be shared out: {model.vocab_size} tokens on {ranks} ranks"
        notes = [Note(f"tensor_parallel is {ranks}", checked.places.value("tensor_parallel"))]
        hint = f"write padded_vocab_size: a multiple of {ranks}, from {least} on"
        checked.findings.error("legal/shards", message, place, hint=hint, notes=notes)
        return None
    return replace(model, padded_vocab_size=size)


def _of_head(tokens: int) -> int:
    """Return the columns of a head that the program computes, which are the same on any number of ranks."""
    return -(-tokens // MOST_CHUNKS) * MOST_CHUNKS


def _of_forwards(file: ConfigFile, tokens: int) -> int:
    """Return the columns of logits that forwards hand over, as the engine pads them."""
    return tokens if file.engine is None else PRESETS[file.engine].columns(tokens, file.tensor_parallel)


def _with_rows(checked: Checked, target: ModelConfig, written: int | None) -> ModelConfig | None:
    """Return the target with the elements from row to row of the logits that the engine hands over, where it pads them.

    None after reporting that they are fewer than a row has.
    """
    engine, tokens = checked.file.engine, target.vocab_size
    pads = engine is not None and PRESETS[engine].pads_rows
    size = written or (PRESETS[engine].columns(tokens, 1) if pads and engine is not None else tokens)
    if size < tokens:
        message = f"rows of {tokens} logits cannot be {size} elements apart"
        at, hint = checked.places.value("target", "padded_vocab_size"), f"write {tokens} or more, or leave the key out"
        checked.findings.error("legal/shards", message, at, hint=hint)
        return None
    return target if size == tokens else replace(target, padded_vocab_size=size)


def with_heads(checked: Checked, role: Role, model: ModelConfig | None) -> ModelConfig | None:
    """Return a model as an engine's ranks keep its keys and values, None after reporting that they cannot.

    A rank has its share of the heads; where there are fewer heads than ranks, one that others have too. Every
    rank keeps them all without an engine, and always the latent rows of mla.
    """
    file = checked.file
    if model is None or file.engine is None or not checked.sound("tensor_parallel"):
        return model
    ranks, heads = file.tensor_parallel, model.num_kv_heads
    if max(heads, ranks) % min(heads, ranks):
        block = file.target if role == "target" else file.draft
        key = "num_kv_heads" if block is not None and block.num_kv_heads else "model"
        message = f"{heads} heads of keys and values cannot be shared out over {ranks} ranks"
        notes = [Note(f"tensor_parallel is {ranks}", checked.places.value("tensor_parallel"))]
        hint = "heads are a multiple of the ranks, or ranks of the heads"
        checked.findings.error("legal/shards", message, checked.places.value(role, key), hint=hint, notes=notes)
        return None
    return replace(model, kv_ranks=ranks)
