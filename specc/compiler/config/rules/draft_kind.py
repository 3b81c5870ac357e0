"""What config.json of an algorithm's drafts says, by which they are known; anything else is another kind of draft.

A draft is never guessed. Its class is one that the algorithm lists, and of the keys that speak of drafting it has none
that the algorithm does not know: a Markov head, a selector or a second token per forward would be left out in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from specc.compiler.config.models.attributes import PARTS
from specc.compiler.support.speculators import MARK

Values = tuple[object, ...]
"""Values of a key that an algorithm knows; none for any."""
ANY: Values = ()
_OF_DRAFTING = re.compile(
    r"draft|specul|markov|mask_token|anchor|selector|confidence_head|dspark|parallel_draft|pard_|ptd_|medusa|hydra"
    r"|eagle|dflash|noise_token|target_layer|aux_hidden_state|n_candidate|^(block_size|projector_type|gru_hidden_dim"
    r"|emb_dim|shift_label|conv_(kernel|group)_size|k_train|lookahead\w*)$",
    re.IGNORECASE,
)
"""Keys of config.json that speak of how tokens are drafted."""
BLOCKS = ("eagle_config", "dflash_config")
"""Keys of config.json under which keys of drafting stand."""
_SHOWN = 60
"""Most characters of a value that are shown."""


@dataclass(frozen=True)
class DraftKind:
    """The drafts of an algorithm.

    Attributes:
        classes: names of ``architectures``.
        keys: keys of drafting, with the values that are known.
        blocks: keys whose values are blocks, with the keys in these, likewise.

    """

    classes: frozenset[str] = frozenset()
    keys: Mapping[str, Values] = field(default_factory=dict[str, Values])
    blocks: Mapping[str, Mapping[str, Values]] = field(default_factory=dict[str, Mapping[str, Values]])

    def named(self, names: tuple[str, ...]) -> str | None:
        """Return the first of the names of ``architectures`` that is a class of this kind."""
        return next((name for name in names if name in self.classes), None)

    def sign(self, names: tuple[str, ...], content: Mapping[str, Any]) -> str | None:
        """Return what says that a draft is of this kind, in words: its class, or its type in speculators' format."""
        if (head := self.named(names)) is not None:
            return f"the draft's class is {head}"
        kind = content.get(MARK)
        return f"the draft's {MARK} is {kind}" if kind in self.keys.get(MARK, ()) else None

    def unknown(self, content: Mapping[str, Any]) -> list[str]:
        """Return the keys of a config.json that speak of drafting and are not of this kind, with their values."""
        return [*self._unknown(content)]

    def _unknown(self, content: Mapping[str, Any]) -> Iterator[str]:
        for part, keys in _parts(content):
            yield from (f"{part}{said}" for said in self._unknown_here(keys))

    def _unknown_here(self, keys: Mapping[str, Any]) -> Iterator[str]:
        for key, value in keys.items():
            inner = self.blocks.get(key)
            if inner is not None and isinstance(value, Mapping):
                of_block = cast("Mapping[str, object]", value).items()
                yield from (f"{key}.{_said(name, of)}" for name, of in of_block if not _known(inner, name, of))
            elif isinstance(value, Mapping) and key in BLOCKS:
                yield from (f"{key}.{_said(name, of)}" for name, of in cast("Mapping[str, object]", value).items())
            elif inner is None and _OF_DRAFTING.search(key) and not _known(self.keys, key, value):
                yield _said(key, value)


def _parts(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the keys of a config.json, and of its language model's part, with the name before each."""
    waiting = [("", content)]
    while waiting:
        name, keys = waiting.pop()
        yield name, keys
        waiting += [(f"{name}{part}.", keys[part]) for part in PARTS if isinstance(keys.get(part), Mapping)]


def _known(keys: Mapping[str, Values], key: str, value: object) -> bool:
    """Whether a key has a value that is known, or one that asks for nothing."""
    if value in (None, False, 0, "", [], {}):
        return True
    return key in keys and (keys[key] == ANY or value in keys[key])


def _said(key: str, value: object) -> str:
    text = json.dumps(value, default=str)
    return f"{key}: {text if len(text) <= _SHOWN else '...'}"
