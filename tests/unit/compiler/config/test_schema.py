"""The published schema, the documented keys, and the fields are one list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from specc.compiler.algorithms import names
from specc.compiler.config.block import BLOCKS, Block, ModelBlock
from specc.compiler.config.presets.engine_tables import TablesBlock
from specc.compiler.config.schema import ARCHS, OUTPUTS, REQUIRED, ConfigFile, json_schema

ROOT = Path(__file__).parents[4]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \| .* \|$", re.MULTILINE)


def documented() -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Return key -> (type, default) of the two tables of docs/config.md."""
    top, block = (ROOT / "docs/config.md").read_text().split("## `target` and `draft`")
    return tuple({key: (kind, default) for key, kind, default in ROW.findall(part)} for part in (top, block))  # type: ignore[return-value]


def test_every_key_is_documented() -> None:
    top, block = documented()
    assert list(top) == list(ConfigFile.model_fields)
    assert list(block) == [*ModelBlock.model_fields, *(key for own in BLOCKS.values() for key in own.__annotations__)]


def test_keys_of_tables_are_documented() -> None:
    section = (ROOT / "docs/config.md").read_text().split("#### Tables of an engine")[1].split("### Engines")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| .* \|$", section, re.MULTILINE)
    assert [key for key, _ in rows] == list(TablesBlock.model_fields)
    for key, values in rows[:2]:
        words = get_args(TablesBlock.model_fields[key].annotation)
        assert values.replace("`", "") == ", ".join(map(str, words)), key


def test_documented_defaults() -> None:
    top, _ = documented()
    for key, field in ConfigFile.model_fields.items():
        if key in REQUIRED:
            assert top[key][1] == "required"
        elif isinstance(field.default, Block):
            assert top[key][1] == "none"
        elif field.default is not None:
            written = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert top[key][1] == written.replace("'", ""), key


def test_documented_words_and_bounds() -> None:
    top, block = documented()
    assert re.findall(r"`(\w+)`", top["archs"][0]) == list(ARCHS)
    assert re.findall(r"`(\w+)`", top["outputs"][0]) == list(OUTPUTS)
    schema = json_schema(names())
    models = [schema["$defs"][own.__name__]["properties"] for own in BLOCKS.values()]
    tables = [(top, schema["properties"]), (block, models[0] | models[1])]
    for table, properties in tables:
        for key, (kind, _) in table.items():
            bounds = re.fullmatch(r"(?:integer|power of two), (\d+) to (\d+)(, or an ascending list of them)?", kind)
            if bounds:
                rule = properties[key]["anyOf"][0] if bounds[3] else properties[key]
                assert (rule["minimum"], rule["maximum"]) == (int(bounds[1]), int(bounds[2]))


def test_schema_shape() -> None:
    schema = json_schema(("A", "B"))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"]
    assert schema["description"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name", "algorithm", "target"]
    assert schema["properties"]["algorithm"]["examples"] == ["A", "B"]
    for block in (schema, *(schema["$defs"][own.__name__] for own in BLOCKS.values())):
        for key, rule in block["properties"].items():
            assert rule["description"], key
            assert {"type": "null"} not in rule.get("anyOf", ()), key


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_satisfy_the_schema(path: Path) -> None:
    schema = json_schema(names())
    assert list(errors(YAML(typ="safe").load(path.read_text()), schema, schema)) == []


def test_this_files_checker_finds_errors() -> None:
    schema = json_schema(names())
    document = YAML(typ="safe").load(EXAMPLES[0].read_text())
    for change in ({"topk": 0}, {"topk": "1"}, {"name": "A"}, {"archs": ["x"]}, {"x": 1}, {"draft": {}}):
        assert list(errors({**document, **change}, schema, schema)), change


def errors(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any]) -> Sequence[str]:
    """Return what a value breaks of the part of JSON Schema that the published schema uses."""
    if "$ref" in rule:
        return errors(value, root["$defs"][rule["$ref"].removeprefix("#/$defs/")], root)
    broken: list[str] = []
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
    if "type" in rule and (type(value) is not kinds[rule["type"]]):
        return [f"{value!r} is not of type {rule['type']}"]
    if "enum" in rule and value not in rule["enum"]:
        broken.append(f"{value!r} is none of {rule['enum']}")
    if isinstance(value, int) and not rule.get("minimum", value) <= value <= rule.get("maximum", value):
        broken.append(f"{value!r} is out of range")
    if isinstance(value, str) and not re.search(rule.get("pattern", ""), value):
        broken.append(f"{value!r} does not match {rule['pattern']}")
    for item in value if isinstance(value, list) else ():
        broken += errors(item, rule.get("items", {}), root)
    if isinstance(value, list) and "contains" in rule and all(errors(item, rule["contains"], root) for item in value):
        broken.append(f"no entry of {value!r} is {rule['contains']}")
    if isinstance(value, dict):
        properties = rule.get("properties", {})
        broken += [f"{key} is missing" for key in rule.get("required", ()) if key not in value]
        broken += [f"{key} is unknown" for key in value if key not in properties and "properties" in rule]
        for key in value.keys() & properties.keys():
            broken += errors(value[key], properties[key], root)
    if "anyOf" in rule and all(errors(value, option, root) for option in rule["anyOf"]):
        broken.append(f"{value!r} satisfies no alternative")
    return broken
