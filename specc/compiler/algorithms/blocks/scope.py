"""What an algorithm is, and what it may ask of the configuration while it writes its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from specc.compiler.config import Config, LoadedConfig, ModelConfig, Needs
from specc.compiler.config.block import Block
from specc.compiler.config.resolved import TARGET_OUTPUTS
from specc.compiler.ir.builder import Builder
from specc.compiler.ir.core import Attr, CarriedValue, Module, Value, entry_of
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops.budget import SHARE
from specc.compiler.ir.types import NAMES, REDUCED, SHARDS, Dim, StateType, TensorType
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError, Note
from specc.compiler.support.location import Location
from specc.runtime.plan.plan import TOKEN_MAP

OptionsT = TypeVar("OptionsT", bound=Block)


@dataclass(frozen=True)
class Algorithm:
    """A speculative decoding algorithm.

    Attributes:
        name: its name in the configuration, upper case.
        summary: one line for people.
        build: writes the ops of every phase through a `Scope`.
        needs: what it asks of a configuration.
        forwards: forwards of the engine that it calls and specc does not know: external ops of the dialect ``model``.
        ops: ops of its own, in a dialect of its own, each with a reference.

    """

    name: str
    summary: str
    build: Callable[[Scope], None]
    needs: Needs = field(default_factory=Needs)
    forwards: tuple[OpDef, ...] = ()
    ops: tuple[OpDef, ...] = ()


class Scope:
    """The module under construction, with its standard dimensions and inputs, and the configuration."""

    def __init__(self, module: Module, loaded: LoadedConfig) -> None:
        self.module = module
        self.loaded = loaded
        self.b = Builder(module, self.at("algorithm"))
        _declare_dims(module, loaded.config)
        self.rows = module.add_input("req_pool_indices", TensorType("i64", ("B",)))
        self.seq_lens = module.add_input("seq_lens", TensorType("i64", ("B",)))
        self.req_to_token = module.add_input("req_to_token", TensorType("i32", ("P", "C")))
        self.kv_target = module.add_input("kv_target", StateType("target"))
        self.kv_draft = module.add_input("kv_draft", StateType("draft"))
        given = self.config.rows_given
        self.lens = module.add_input(SHARE[0], TensorType("i32", ("B",))) if given else None
        recurrent = StateType("target", "state")
        self.state_target = (module.add_input("state_target", recurrent),) if self.config.target.state_layers else ()
        reduced = self.config.draft is not None and self.config.draft.token_map is not None
        self.token_map = self.table(TOKEN_MAP, "i64", "Vd") if reduced else None

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.loaded.config

    @property
    def draft(self) -> ModelConfig:
        """The draft model, of an algorithm that has one."""
        if self.config.draft is None:
            raise TypeError(f"{self.config.algorithm} has no draft model")
        return self.config.draft

    def options(self, kind: type[OptionsT]) -> OptionsT:
        """The keys of the algorithm's own, as the block that its `Needs` name."""
        if not isinstance(self.config.options, kind):
            raise TypeError(f"the options are {type(self.config.options).__name__}, not {kind.__name__}")
        return self.config.options

    def table(self, name: str, dtype: str, *shape: str | int, of: str = "") -> Value:
        """Declare a tensor that is there once a program is bound: the engine brings it, or the runtime makes it."""
        return self.module.add_input(name, TensorType(dtype, shape, of))

    def at(self, *key: str) -> Location:
        """Where a key of the configuration was written; for a model's size, ``model:`` if that gave it."""
        if len(key) == 2 and not self.loaded.locations.written(*key):
            return self.loaded.location(key[0], "model")
        return self.loaded.location(*key)

    def carry(
        self,
        name: str,
        dtype: str,
        *shape: str | int,
        limit: str | int | None = None,
        at: tuple[str, ...] = ("algorithm",),
        given: bool = False,
    ) -> None:
        """Declare a value every request carries from step to step; ``shape`` follows the axis B.

        ``given``: the engine writes it when a request is admitted, and no op stores it but one that counts.

        ``limit``: an axis or a count that bounds what is right, which records of other machines are checked for:
        integers are at least 0 and less than it, other numbers from 0 to it, or, where it is negative, from it to its
        opposite. None where any value is: rows of numbers that only models read.
        """
        type_ = TensorType(dtype, ("B", *shape))
        self.module.carries[name] = CarriedValue(name, type_, self.at(*at), limit=limit, given=given)

    def target_extras(self) -> dict[str, str]:
        """Outputs that the target's forward hands over besides logits and hidden states, and their types per node."""
        target = self.config.target
        wanted = {name: key for name, key in TARGET_OUTPUTS.items() if name in self.config.file.outputs}
        return {name: f"i32[B, ?n, {target.depth}, {getattr(target, key)}]" for name, key in wanted.items()}

    @property
    def candidates(self) -> str:
        """The axis of a root's carried children: of a shape that has as many branches as any, its branches."""
        return "K" if self.config.widest == self.config.topk else "J"

    @property
    def proposal(self) -> str:
        """The axis of the root and all drafts of a rotated step, of which a shape may verify fewer."""
        return "Q" if len(self.config.shapes) > 1 else "A"

    def require_one_vocabulary(self) -> None:
        """Refuse models of two vocabularies, for drafts whose tokens are the target's, or a mapped part of them.

        Raises:
            DiagnosticError: ``legal/vocab-mismatch``.
        """
        target, draft = self.config.target.vocab_size, self.draft.vocab_size
        if target != draft and self.token_map is None:
            message = f"{self.config.algorithm} needs one vocabulary: the draft has {draft} tokens"
            note = Note(f"the target has {target}", self.at("target", "vocab_size"))
            hint = "write draft.token_map for a draft that scores a part of the target's tokens" * (draft < target)
            self.refuse("legal/vocab-mismatch", message, ("draft", "vocab_size"), note, hint=hint or None)

    def pick(self, opcode: str, logits: Value, names: tuple[str, ...], **attrs: Attr) -> tuple[Value, ...]:
        """What a reduction over a draft's logits gives, of which the last but one are the target's tokens i64.

        The numbers of a draft that scores a part of them are translated. ``names``: of the results, in order.
        """
        if self.token_map is None:
            return self.b.many(opcode, logits, self.rows, names=names, **attrs)
        *others, token, bad = names
        values = self.b.many(opcode, logits, self.rows, names=(*others, f"{token}_of_draft", bad), **attrs)
        return *values[:-2], self.translated(values[-2], token), values[-1]

    def translated(self, index: Value, name: str) -> Value:
        """The target's tokens i64 that numbers of the draft's vocabulary stand for, under a name."""
        if self.token_map is None:
            return index
        with self.b.at(self.at("draft", "token_map")):
            return self.b("vocab.translate", index, self.token_map, self.rows, names=(name,))

    def refuse(self, code: str, message: str, key: tuple[str, ...], *notes: Note, hint: str | None = None) -> None:
        """Refuse the configuration for what stands at a key.

        Raises:
            DiagnosticError: always, with the diagnostic's code.
        """
        raise DiagnosticError(Diagnostic(code, message, self.at(*key), hint, notes))

    def output(self, name: str, value: Value) -> None:
        """Hand a value back to the engine at the end of a step, or of prefill if the name begins with ``prefill.``.

        Raises:
            TypeError: it is no value of that entry.
        """
        entry = "prefill" if name.startswith("prefill.") else "step"
        source = value.source if isinstance(value, Value) else None  # pyright: ignore[reportUnnecessaryIsInstance]
        if source is None or entry_of(source.phase) != entry:
            raise TypeError(f"the output {name} is {value!r}, which no op of the entry {entry} makes")
        self.module.outputs[name] = value


def dtype_of(model: ModelConfig) -> str:
    """The IR dtype of a model's activations."""
    return NAMES[model.dtype]


def logits_dtype_of(model: ModelConfig) -> str:
    """The IR dtype of the logits that a model's forwards hand over."""
    return NAMES[model.logits_dtype]


def _declare_dims(module: Module, config: Config) -> None:
    drafts: tuple[Dim, ...] = ()
    if config.draft is not None:
        axis = "draft_vocab" if config.draft.token_map is None else REDUCED
        drafts = (Dim("Vd", axis, config.draft.vocab_size),)
    shards = {
        name: model.padded_vocab_size // config.file.tensor_parallel
        for name, model in zip(SHARDS.values(), (config.target, config.draft), strict=True)
        if model is not None
        and model.padded_vocab_size is not None
        and (config.file.logits == "sharded" or model is config.draft)
    }
    dims = (
        Dim("B", "request", config.max_batch, dynamic=True),
        Dim("K", "branch", config.topk),
        *([Dim("J", "candidate", config.widest)] if config.widest > config.topk else []),
        *([Dim("Q", "proposal", config.path_slots)] if config.rotated and len(config.shapes) > 1 else []),
        Dim("S", "step", config.num_steps),
        Dim("D", "forward", max(0, config.num_steps - 1)),
        Dim("N", "node", config.num_nodes),
        Dim("A", "path", config.path_slots),
        *([Dim("E", "draft", config.num_nodes - 1)] if config.budgeted and config.shape.is_tree else []),
        *([] if config.packed is None else [Dim("G", "budget", config.packed)]),
        Dim("V", "vocab", config.target.vocab_size),
        *drafts,
        *(Dim(name, "vocab_shard", size) for name, size in shards.items()),
        *([Dim("R", "rank", config.file.tensor_parallel)] if shards else []),
        Dim("P", "pool", config.pool_rows),
        Dim("C", "context", None),
        Dim("T", "token", None),
        Dim("M", "corpus", None),
    )
    module.dims.update({dim.name: dim for dim in dims})
