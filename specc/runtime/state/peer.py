"""What a machine that prefills and one that decodes must agree on. Imports the standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import SchemaMismatchError
from ..plan.fields import own
from ..plan.plan import Plan
from ..plan.typed import to_json

RECORD_FORMAT = 1
"""Version of the layout of records, see `transfer`."""
MODEL_KEYS = ("vocab_size", "spec_width", "num_kv_heads", "head_dim", "dtype", "aux_layers")
_ABSENT = object()


def schema(plan: Plan) -> dict[str, Any]:
    """What both sides must agree on, as JSON has it; send this to the peer and give it to `check_peer`.

    It has the carried fields with their sizes, the KV pools, the page size and the positions of the draft's tokens, the
    vocabularies, heads and hidden states of the models, the algorithm and its options. Names, batch buckets, pool rows
    and archs are each side's own, and so is what only decoding reads.
    """
    return {
        "record_format": RECORD_FORMAT,
        "algorithm": plan.algorithm,
        "options": dict(plan.options),
        "page_size": plan.kv.page_size,
        "draft_positions": plan.kv.draft_positions,
        "carry": {
            field.name: {
                "dtype": field.dtype,
                "shape": [plan.size(axis) for axis in field.axes[1:]],
                "limit": plan.dims.get(field.limit or "", field.limit),
            }
            for field in own(plan).values()
        },
        "kv_pools": {
            owner: {"layers": pool.layers, "buffers": pool.buffers, "row_bytes": pool.row_bytes, "dtype": pool.dtype}
            for owner, pool in plan.kv_pools.items()
        },
        "models": {
            role: {key: value for key, value in to_json(model).items() if key in MODEL_KEYS}
            for role, model in plan.models.items()
        },
    }


def schema_digest(plan: Plan) -> str:
    """The sha256 of `schema(plan)` as canonical JSON, in hex: equal exactly when `check_peer` finds no difference."""
    return hashlib.sha256(_canonical(schema(plan)).encode()).hexdigest()


def check_peer(mine: Mapping[str, Any], peer: Mapping[str, Any]) -> None:
    """SchemaMismatchError, naming everything that differs, unless two results of `schema` are the same."""
    differences = list(_differences("", mine, peer))
    if differences:
        raise SchemaMismatchError(f"the peer's program is another one: {'; '.join(differences)}")


def _differences(path: str, mine: object, peer: object) -> Iterator[str]:
    if isinstance(mine, Mapping) and isinstance(peer, Mapping):
        for key in sorted(mine.keys() | peer.keys()):
            below = f"{path}.{key}" if path else str(key)
            yield from _differences(below, mine.get(key, _ABSENT), peer.get(key, _ABSENT))
    elif _spell(mine) != _spell(peer):
        yield f"{path or 'schema'} is {_spell(mine)} here, {_spell(peer)} there"


def _spell(value: object) -> str:
    return "absent" if value is _ABSENT else _canonical(value)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
