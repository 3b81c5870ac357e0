"""`specc explain` of a program whose ranks gather."""

from __future__ import annotations

import json
from pathlib import Path

from programs import config_text
from typer.testing import CliRunner

from specc.cli.main import app

SHARDED = {"logits": "sharded", "tensor_parallel": 4}


def explained(tmp_path: Path, *options: str) -> str:
    path = tmp_path / "ranks.yaml"
    path.write_text(config_text("STANDALONE", num_steps=2, **SHARDED))
    result = CliRunner().invoke(app, ["explain", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_is_gathered_is_a_node(tmp_path: Path) -> None:
    text = explained(tmp_path, "--full")
    assert "records of 4 ranks" in text
    assert "1 words of 64 bits per row are gathered" in " ".join(text.split())


def test_bytes_on_the_wire(tmp_path: Path) -> None:
    """A draft, three nodes and an extend, of four requests at most; to three other ranks."""
    story = json.loads(explained(tmp_path, "--format", "json"))
    nodes = [node for phase in story["phases"] for node in phase["nodes"] if phase["entry"] == "step"]
    assert [node["bytes"] for node in nodes if node["kind"] == "collective"] == [8 * 4, 8 * 4 * 3, 8 * 4]
    assert {node["graph"] for node in nodes} == {"step"}
    assert [(totals["collectives"], totals["wire_bytes"]) for totals in story["totals"].values()] == [
        (3, 3 * 8 * 5 * batch) for batch in (1, 2, 4)
    ]
