"""Stands in for xgrammar: SGLang's parsers subclass its models, and none is used with grammar_backend none."""

from pydantic import BaseModel


class StructuralTag(BaseModel):
    """Never filled."""


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (BaseModel,), {})
