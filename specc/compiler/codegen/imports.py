"""Which files of device code a kernel imports, directly or not."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable


def reached(kernels: Iterable[str], read: Callable[[str], str | None]) -> dict[str, str]:
    """The files that the texts of some kernels need: path -> text, in path order.

    `read` gives the text of a path relative to the folder of the kernels, None where there is no such file.
    """
    texts, waiting = dict[str, str](), ["lib/__init__.py", *(name for text in kernels for name in _imported(text))]
    while waiting:
        name = waiting.pop()
        text = None if name in texts else read(name)
        if text is not None:
            texts[name] = text
            waiting += _imported(text)
    return dict(sorted(texts.items()))


@functools.cache
def _imported(text: str) -> tuple[str, ...]:
    """The files that a text imports by itself; one that is no Python imports none, and never compiles."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return ()
    statements = [node for node in body if isinstance(node, ast.ImportFrom) and node.level]
    return tuple(f"lib/{(node.module or '').removeprefix('lib.')}.py" for node in statements)
