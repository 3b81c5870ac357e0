"""What transformers said about a config.json, remembered: importing it takes longer than all the rest of a build.

The key is the file's content and the installed transformers, so an entry is never stale. A memory never fails: what
cannot be read back is asked again, what cannot be written is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from specc.compiler.support.files.cachedir import default_directory, keep, kept

FORMAT = 16
"""Part of every key. Raise it when other facts are read from a model."""

Facts = dict[str, list[str | int]]


@dataclass(frozen=True)
class RememberedFacts:
    """What was said: the model's type, whether transformers has a class for it, and facts with their origins."""

    model_type: str
    known: bool
    facts: Facts


def remembered(config_json: bytes, ask: Callable[[], RememberedFacts]) -> RememberedFacts:
    """Return the answer to a config.json; ``ask`` is called when there is none yet.

    Raises what ``ask`` raises.
    """
    directory = default_directory()
    path = directory / "models" / f"{_key(config_json)}.json"
    entry = _opened(kept(directory, path))
    if entry is None:
        entry = ask()
        keep(directory, path, json.dumps(asdict(entry), sort_keys=True).encode())
    return entry


def _key(config_json: bytes) -> str:
    try:
        reader = version("transformers")
    except PackageNotFoundError:
        reader = "none"
    return hashlib.sha256(f"{FORMAT} {reader} ".encode() + config_json).hexdigest()


def _opened(raw: bytes | None) -> RememberedFacts | None:
    """Return an entry, or None when there is none or it is not what `remembered` keeps."""
    try:
        entry = json.loads(raw or b"")
        facts = {str(key): [value, str(origin)] for key, (value, origin) in entry["facts"].items()}
        well_formed = all(isinstance(value, (int, str)) for value, _ in facts.values())
        return RememberedFacts(str(entry["model_type"]), bool(entry["known"]), facts) if well_formed else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
