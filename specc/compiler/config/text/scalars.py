"""Scalars of YAML 1.2 -> plain values, and values, tags and paths in words."""

from __future__ import annotations

TAG = "tag:yaml.org,2002:"
"""What the tags of YAML's own types begin with."""


def is_text(text: str) -> bool:
    """Whether the text can be written: an escape can make half of a surrogate pair."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _integer(text: str) -> int:
    """Return the YAML 1.2 integer; raises ValueError, also for more than 40 characters."""
    plain = text.replace("_", "").lower()
    if len(plain) > 40:
        raise ValueError("too long")
    return int(plain, 0) if plain.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(plain)


def _float(text: str) -> float:
    """Return the YAML number, `.nan` and `.inf` included; raises ValueError."""
    return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


def _boolean(text: str) -> bool:
    """Return true or false; raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


SCALARS = {"int": _integer, "float": _float, "bool": _boolean}


def short_tag(tag: str) -> str:
    """Return a YAML tag as people write it: ``!!int``, ``!mine``."""
    return "!!" + tag.removeprefix(TAG) if tag.startswith(TAG) else tag


def spell(path: tuple[str | int, ...]) -> str:
    """Return a path as people say it: ``'target.hidden_size'``, ``'buckets[2]'``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return f"'{text}'"
