"""YAML text -> plain values, where every key and every value remembers its place.

ruamel.yaml parses (YAML 1.2, round-trip composer) into nodes with marks. The values are built here instead
of by a general constructor, so nothing but null, booleans, numbers, text, lists and mappings can come out,
every duplicate key is found, and aliases cannot blow up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specc.compiler.config.text.scalars import SCALARS, TAG, is_text, short_tag, spell
from specc.compiler.config.text.syntax import YamlNode, compose, too_much
from specc.compiler.support.diagnostics import Diagnostics, Note
from specc.compiler.support.location import Location

Path = tuple[str | int, ...]
"""Keys and list indices from the root to a value: ``("target", "hidden_size")``, ``("buckets", 2)``."""

MAX_DEPTH = 16
MAX_VALUES = 1024
"""The most that a text of somebody's may have; what a tool writes may have more."""


@dataclass
class Tree:
    """Plain values, and where each key and each value stands; ``broken`` holds the paths already reported."""

    values: dict[str, Any] = field(default_factory=dict[str, Any])
    value_at: dict[Path, Location] = field(default_factory=dict[Path, Location])
    key_at: dict[Path, Location] = field(default_factory=dict[Path, Location])
    broken: set[Path] = field(default_factory=set[Path])


def read_tree(text: str, file: str, findings: Diagnostics, most_values: int = MAX_VALUES) -> Tree | None:
    """Parse ``text`` and report what is wrong with it; return the tree, or None when there is none."""
    root = compose(text, file, findings, most_values)
    if root is None:
        return None
    builder = _Builder(file, findings, most_values)
    if not root.tag.endswith(":map") or not isinstance(root.value, list):
        what = describe(root)
        findings.error(
            "config/not-a-mapping",
            f"a configuration is keys with values, and this is {what}",
            builder.span(root),
            hint="start with a line like 'name: my_config'",
        )
        return None
    try:
        builder.tree.values = builder.mapping(root, ())
    except _TooMuch as error:
        findings.error("config/not-yaml", str(error), error.at)
        return None
    return builder.tree


class _TooMuch(Exception):
    """The text is larger or deeper than any configuration; ``at`` is where that showed."""

    def __init__(self, limit: str, at: Location) -> None:
        super().__init__(limit)
        self.at = at


class _Builder:
    """Turns nodes into values; records places, reports what YAML allows and a configuration does not."""

    def __init__(self, file: str, findings: Diagnostics, most_values: int) -> None:
        self.tree = Tree()
        self._file = file
        self._found = findings
        self._budget = self._most_values = most_values

    def span(self, node: YamlNode) -> Location:
        """Return the place of a node; a node over several lines is marked at its first word."""
        start, end = node.start_mark, node.end_mark
        length = end.column - start.column if start.line == end.line else 0
        return Location(self._file, start.line + 1, start.column + 1, max(0, length))

    def value(self, node: YamlNode, path: Path) -> object:
        """Return the plain value of a node, and note its place; a value left empty is at its key."""
        at = self.span(node)
        if at.length == 0 and node.value == "":
            at = self.tree.key_at.get(path, at)
        self.tree.value_at[path] = at
        self._spend(len(path), at)
        if isinstance(node.value, str):
            return self._scalar(node, path)
        if node.tag == f"{TAG}map":
            return self.mapping(node, path)
        if node.tag == f"{TAG}seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        message = f"the tag {short_tag(node.tag)} means nothing here"
        return self._broken(path, "config/wrong-type", message)

    def mapping(self, node: YamlNode, path: Path) -> dict[str, Any]:
        """Return the keys and values of a mapping node; keys of merged mappings come in where absent."""
        values: dict[str, Any] = {}
        merged: list[YamlNode] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{TAG}merge":
                merged.append(value_node)
                continue
            self._entry(values, key_node, value_node, path)
        for value_node in merged:
            self._merge(values, value_node, path)
        return values

    def _entry(self, values: dict[str, Any], key_node: YamlNode, value_node: YamlNode, path: Path) -> None:
        """Add one key with its value, unless the key is no word or is there already."""
        at = self.span(key_node)
        if not isinstance(key_node.value, str) or not is_text(key_node.value):
            self._found.error("config/wrong-type", "a key must be a word", at)
            self._spend(len(path), at)
            return
        key = key_node.value
        if key in values:
            first = Note("first written here", self.tree.key_at[(*path, key)])
            self._found.error("config/duplicate-key", f"key '{key}' is written twice", at, notes=[first])
            self._spend(len(path), at)
            return
        self.tree.key_at[(*path, key)] = at
        values[key] = self.value(value_node, (*path, key))

    def _merge(self, values: dict[str, Any], node: YamlNode, path: Path) -> None:
        """Add the keys of ``<<: *anchor`` (or of a list of anchors) that are not written already."""
        sources: list[YamlNode] = node.value if node.tag == f"{TAG}seq" else [node]
        for source in sources:
            self._spend(len(path), self.span(source))
            if source.tag != f"{TAG}map":
                message = "'<<' takes a mapping, as in '<<: *anchor'"
                self._found.error("config/wrong-type", message, self.span(source))
                return
            for key_node, value_node in source.value:
                if key_node.tag == f"{TAG}merge":
                    self._merge(values, value_node, (*path, "<<"))
                elif not isinstance(key_node.value, str) or key_node.value not in values:
                    self._entry(values, key_node, value_node, path)

    def _spend(self, depth: int, at: Location) -> None:
        """Count one value; raises _TooMuch when there are too many, or when they are nested too deeply."""
        self._budget -= 1
        if self._budget < 0:
            raise _TooMuch(too_much(self._most_values), at)
        if depth > MAX_DEPTH:
            raise _TooMuch(f"more than {MAX_DEPTH} levels, counting what aliases repeat", at)

    def _scalar(self, node: YamlNode, path: Path) -> object:
        """Return null, a boolean, a number or text; report null and tags that mean nothing here."""
        kind = node.tag.removeprefix(TAG)
        if kind == "null":
            message = f"{spell(path)} has no value"
            return self._broken(path, "config/wrong-type", message, "write a value, or leave the key out")
        if not is_text(node.value):
            return self._broken(path, "config/wrong-type", f"{spell(path)} holds half a character")
        if kind in ("str", "timestamp"):
            return node.value
        try:
            return SCALARS[kind](node.value)
        except (KeyError, ValueError):
            message = f"{short_tag(node.tag)} cannot be read from '{node.value[:40]}'"
            return self._broken(path, "config/wrong-type", message)

    def _broken(self, path: Path, code: str, message: str, hint: str | None = None) -> None:
        """Report a value that is of no use, and remember that it was."""
        self.tree.broken.add(path)
        self._found.error(code, message, self.tree.value_at[path], hint=hint)


def describe(node: YamlNode) -> str:
    """Return what a node is in words."""
    if isinstance(node.value, str):
        return f"the single value '{node.value[:40]}'" if node.value else "an empty value"
    return "a list" if node.tag.endswith(":seq") else f"tagged {short_tag(node.tag)}"
