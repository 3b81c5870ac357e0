"""What ranks share out: logits that are sharded, and heads of keys and values; and what cannot be shared yet."""

from __future__ import annotations

from dataclasses import replace

from specc.compiler.config.block import Role
from specc.compiler.config.presets import PRESETS
from specc.compiler.config.resolved import ModelConfig, Sides
from specc.compiler.config.rules.written_file import Written, refuse
from specc.compiler.config.schema import ConfigFile
from specc.compiler.ir.ops.shards import MOST_CHUNKS
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note

GATHERED = "write logits: gathered, with which every rank has whole rows"


def check_shards(written: Written) -> Findings[None]:
    """With sharded logits, refuse features that need more than the largest entries."""
    file = written.file
    if file.logits != "sharded" or not written.sound("logits"):
        return
    what = "with logits: sharded"
    yield from refuse(written, file.draws, f"verify: {file.verify} {what}", ("verify",), GATHERED)
    yield from refuse(written, file.best_logprobs > 0, f"best_logprobs {what}", ("best_logprobs",), GATHERED)


def share_out(written: Written, models: Sides[ModelConfig]) -> Findings[Sides[ModelConfig]]:
    """Return the models with what each rank has of them, without those that ranks cannot share out."""
    for share in (_columns, _heads):
        target = yield from share(written, "target", models.target)
        draft = yield from share(written, "draft", models.draft)
        models = Sides(target, draft)
    return models


def _columns(written: Written, role: Role, model: ModelConfig | None) -> Findings[ModelConfig | None]:
    """Return a model with the columns of all its shards, None after reporting that they cannot be shared out."""
    block = written.block(role)
    if model is None or block is None:
        return model
    padded, at = block.padded_vocab_size, written.places.value(role, "padded_vocab_size")
    head = role == "draft" and written.file.computes_head
    if written.file.logits != "sharded" and not (head and written.file.tensor_parallel > 1):
        if role == "target" and written.file.step == "rotated":
            return (yield from _rows(written, model, padded))
        if padded is not None and written.sound("logits"):
            message = "padded_vocab_size says how shards of logits are padded, and every rank has whole rows"
            yield Diagnostic("legal/shards", message, at, "write logits: sharded, or leave the key out")
        return model
    if not written.sound("logits", "tensor_parallel"):
        return None
    ranks = written.file.tensor_parallel
    size = padded or (_of_head(model.vocab_size) if head else _of_forwards(written.file, model.vocab_size))
    least = -(-model.vocab_size // ranks) * ranks
    if size % ranks or size < model.vocab_size:
        place = at if padded else written.places.value(role, "vocab_size" if block.vocab_size else "model")
        message = f"{size} columns cannot be shared out: {model.vocab_size} tokens on {ranks} ranks"
        note = Note(f"tensor_parallel is {ranks}", written.places.value("tensor_parallel"))
        hint = f"write padded_vocab_size: a multiple of {ranks}, from {least} on"
        yield Diagnostic("legal/shards", message, place, hint, (note,))
        return None
    return replace(model, padded_vocab_size=size)


def _of_head(tokens: int) -> int:
    """Return the columns of a head that the program computes, which are the same on any number of ranks."""
    return -(-tokens // MOST_CHUNKS) * MOST_CHUNKS


def _of_forwards(file: ConfigFile, tokens: int) -> int:
    """Return the columns of logits that forwards hand over, as the engine pads them."""
    return tokens if file.engine is None else PRESETS[file.engine].columns(tokens, file.tensor_parallel)


def _rows(written: Written, target: ModelConfig, padded: int | None) -> Findings[ModelConfig | None]:
    """Return the target with the elements from row to row of the logits that the engine hands over, where it pads them.

    None after reporting that they are fewer than a row has.
    """
    engine, tokens = written.file.engine, target.vocab_size
    pads = engine is not None and PRESETS[engine].pads_rows
    size = padded or (PRESETS[engine].columns(tokens, 1) if pads and engine is not None else tokens)
    if size < tokens:
        message = f"rows of {tokens} logits cannot be {size} elements apart"
        at, hint = written.places.value("target", "padded_vocab_size"), f"write {tokens} or more, or leave the key out"
        yield Diagnostic("legal/shards", message, at, hint)
        return None
    return target if size == tokens else replace(target, padded_vocab_size=size)


def _heads(written: Written, role: Role, model: ModelConfig | None) -> Findings[ModelConfig | None]:
    """Return a model as an engine's ranks keep its keys and values, None after reporting that they cannot.

    A rank has its share of the heads; where there are fewer heads than ranks, one that others have too. Every
    rank keeps them all without an engine, and always the latent rows of mla.
    """
    file = written.file
    if model is None or file.engine is None or not written.sound("tensor_parallel"):
        return model
    ranks, heads = file.tensor_parallel, model.num_kv_heads
    if max(heads, ranks) % min(heads, ranks):
        block = written.block(role)
        key = "num_kv_heads" if block is not None and block.num_kv_heads else "model"
        message = f"{heads} heads of keys and values cannot be shared out over {ranks} ranks"
        note = Note(f"tensor_parallel is {ranks}", written.places.value("tensor_parallel"))
        hint = "heads are a multiple of the ranks, or ranks of the heads"
        yield Diagnostic("legal/shards", message, written.places.value(role, key), hint, (note,))
        return None
    return replace(model, kv_ranks=ranks)
