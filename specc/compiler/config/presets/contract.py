"""What a serving engine asks of a configuration, as data. `specc.compiler.config.resolution.engine` applies it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from specc.compiler.config.presets.engine_tables import TablesBlock

Value = bool | int | str
OWN_HEADS = re.compile(r"\w+Heads?")
"""What the reference engine's own heads are called, and no class that an engine serves."""


@dataclass(frozen=True)
class EngineNeeds:
    """What a configuration asks of its engine, as far as models and their layouts are concerned.

    Attributes:
        algorithm: its canonical name; None where it is unknown.
        models: by side what its directory says, by key, for those that have one.
        layouts: by side its ``kv_layout``, where that is written.
        topk: drafts kept per step.
        ranks: among which models are shared out.
        head_rows: whether the draft scores rows of the target's head by a token map.

    """

    algorithm: str | None
    models: Mapping[str, Mapping[str, Value]]
    layouts: Mapping[str, str]
    topk: int
    ranks: int
    head_rows: bool


def nothing(asked: EngineNeeds) -> Iterable[tuple[tuple[str, ...], str]]:
    """Return that all that is asked is served."""
    return ()


@dataclass(frozen=True)
class Preset:
    """One engine, in one version.

    Attributes:
        name: the engine's, as people write it.
        tested: its versions in which programs are tried; the last is the one whose ways these are.
        plugins: group of the entry points by which the engine finds its plugins.
        adapter: returns the files of its adapter, by path inside of a program's package.
        algorithms: names of the algorithms that the adapter serves.
        demands: path of a key -> its only value; the default where the file does not write it. A path that begins with
            a block counts where the block is there.
        heads_of_target: algorithms whose head scores rows of the target's own by a token map.
        parts_of_tokens: whether a draft whose head the engine computes may score a part of the target's tokens.
        verifies: values of ``verify`` that its adapter serves.
        tree_masks: values of ``mask`` for a tree, the default first; none where it has no trees.
        padding: what the columns of logits on several ranks together are a multiple of.
        max_requests: default of the key, where the largest bucket is not larger.
        missing_outputs: outputs that the adapter does not serve.
        gpus: what the names of the architectures that it runs on start with.
        pads_rows: whether it hands logits over, to a program whose target it runs, as rows that are padded so, also on
            one rank.
        options: by algorithm its options, each with its only value; None for one that the adapter does not serve.
        whole_text: by algorithm its option that is as long as a text may be in the engine.
        missing_sampling: values of ``sampling`` that its adapter does not serve.
        missing_state_forms: values of ``state_form`` that its adapter does not serve.
        one_dtype: whether every draft runs in the element type of its target, not heads alone.
        unserved: what its adapter does not serve of the models: the path of a key, and what is not served in words.
        budgets: whether it has the callback `target_rows`.
        gives_rows: whether it says itself how many rows of each request its target has read.
        tables: its tables; of carried fields that a program does not have they say nothing. None where it has none.

    """

    name: str
    tested: tuple[str, ...]
    plugins: str
    adapter: Callable[[], Mapping[str, str]]
    algorithms: tuple[str, ...]
    demands: Mapping[tuple[str, ...], Value]
    heads_of_target: tuple[str, ...]
    verifies: tuple[str, ...]
    tree_masks: tuple[str, ...]
    padding: int
    max_requests: int
    missing_outputs: tuple[str, ...]
    gpus: str
    pads_rows: bool = False
    options: Mapping[str, Mapping[str, Value | None]] = field(default_factory=dict[str, Mapping[str, Value | None]])
    whole_text: Mapping[str, str] = field(default_factory=dict[str, str])
    parts_of_tokens: bool = True
    missing_sampling: tuple[str, ...] = ()
    missing_state_forms: tuple[str, ...] = ("fold", "point", "auto")
    one_dtype: bool = False
    unserved: Callable[[EngineNeeds], Iterable[tuple[tuple[str, ...], str]]] = nothing
    budgets: bool = False
    gives_rows: bool = False
    tables: TablesBlock | None = None

    @property
    def title(self) -> str:
        """The engine and the version whose ways these are."""
        return f"{self.name} {self.tested[-1]}"

    def longest(self, context_length: int, num_steps: int) -> int:
        """Return how long a text may be when a step starts, in tokens.

        A step is launched before the one that ends a request is known to, so that the text may be two steps longer than
        the engine's ``context_length``.
        """
        return context_length + 2 * (num_steps + 1)

    def columns(self, vocab_size: int, ranks: int) -> int:
        """Return how many columns of logits so many ranks have together, where each has its own."""
        return vocab_size if ranks == 1 and not self.pads_rows else -(-vocab_size // self.padding) * self.padding

    @property
    def rotates(self) -> bool:
        """Whether it runs the target by itself."""
        return self.demands.get(("step",)) == "rotated"

    def settles(self, path: tuple[str, ...], chain: bool) -> bool:
        """Whether a key that the file of a chain, or of a tree, does not write has a default of this engine's."""
        defaults = path == ("max_requests",) or path[-1] == "padded_vocab_size"
        defaults = defaults or (path[0] == "tables" and self.tables is not None)
        options = {*self.whole_text.values(), *(key for keys in self.options.values() for key in keys)}
        defaults = defaults or (path[0] == "options" and path[-1] in options)
        return defaults or path in self.demands or (path == ("mask",) and not chain)
