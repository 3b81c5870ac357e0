"""Imported by SGLang, which needs it for structured output alone."""

from __future__ import annotations

from pydantic import BaseModel


class StructuralTag(BaseModel):
    """Nothing makes one."""


def __getattr__(name: str) -> type[BaseModel]:
    """Any other name is a class, for annotations."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (BaseModel,), {})
