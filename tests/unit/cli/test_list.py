"""`specc list`: algorithms, those of plugins too, and programs that are installed."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.machine_code import with_invented_code
from programs import config_text
from typer.testing import CliRunner, Result

from specc.cli.main import app
from specc.compiler.algorithms import names
from specc.version import __version__


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("specc_other", None)


def listed(*words: str) -> Result:
    """Run ``specc list``."""
    result = CliRunner().invoke(app, ["list", *words])
    assert result.exit_code == 0, result.output
    return result


def listing_as_json() -> dict[str, Any]:
    """What it says as JSON."""
    return json.loads(listed("--format", "json").stdout)


def install(site: Path, name: str, **keys: Any) -> Path:
    """Build a program with invented machine code for a name, and unpack its wheel; the package's folder."""
    config = site.parent / f"{name}.yaml"
    config.write_text(config_text(**{"name": name, "buckets": [1], "archs": ["sm_90"], **keys}))
    with with_invented_code():
        done = CliRunner().invoke(app, ["build", str(config), "-o", str(site.parent / "dist"), "--quiet"])
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile(done.stdout.strip()) as archive:
        archive.extractall(site)
    return site / f"specc_program_{name}"


def plugin(site: Path, text: str) -> None:
    """Install an algorithm OTHER that a text defines."""
    about = site / "specc_other-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: specc-other\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[specc.algorithms]\nother = specc_other:OTHER\n")
    (site / "specc_other.py").write_text(text)


def test_algorithms() -> None:
    rows = listing_as_json()["algorithms"]
    assert [row["name"] for row in rows] == [*names()]
    forms = {row["name"]: row["forms"] for row in rows}
    assert (forms["EAGLE"], forms["DFLASH2"], forms["NGRAM"]) == (["chain", "tree"], ["chain"], ["chain", "tree"])
    assert {row["from"] for row in rows} == {"specc"}
    text = listed().stdout
    assert all(f" {row['name']} " in text and row["summary"] in text for row in rows)


def test_no_program() -> None:
    if listing_as_json()["programs"] == []:
        assert "none is installed: pip install the wheel that `specc build` writes" in listed().stdout


def test_programs(site: Path) -> None:
    before = listing_as_json()["programs"]
    install(site, "a_chain", num_steps=[1, 2])
    install(site, "looked_up", algorithm="NGRAM", draft=None)
    new = [row for row in listing_as_json()["programs"] if row not in before]
    assert [(row["name"], row["algorithm"], row["shapes"]) for row in new] == [
        ("a_chain", "EAGLE", ["1", "2"]),
        ("looked_up", "NGRAM", ["3"]),
    ]
    for row in new:
        assert (row["package"], row["archs"], row["engine"]) == (f"specc_program_{row['name']}", ["sm_90"], None)
        assert row["version"].startswith(f"{__version__}+p")
        assert f" {row['name']} " in listed().stdout


def test_a_damaged_program_is_named(site: Path) -> None:
    package = install(site, "a_chain", num_steps=1)
    (package / "plan.json").write_text("{")
    listing = listing_as_json()
    assert "a_chain" not in [row["name"] for row in listing["programs"]]
    (warning,) = listing["warnings"]
    assert (warning["code"], warning["severity"]) == ("run/wheel-unusable", "warning")
    assert "'specc_program_a_chain' is damaged: plan.json" in warning["message"]
    assert "warning[run/wheel-unusable]" in listed().stderr


def test_a_plugin(site: Path) -> None:
    plugin(
        site,
        "from specc.compiler.algorithms import Algorithm\n"
        "OTHER = Algorithm('OTHER', 'it drafts', lambda scope: None)\n",
    )
    row = listing_as_json()["algorithms"][-1]
    assert row == {"name": "OTHER", "summary": "it drafts", "forms": ["chain", "tree"], "from": "specc-other 1.0"}


def test_a_plugin_that_cannot_be_used_is_named(site: Path) -> None:
    plugin(site, "OTHER = 3\n")
    listing = listing_as_json()
    assert [row["name"] for row in listing["algorithms"]] == [name for name in names() if name != "OTHER"]
    (warning,) = listing["warnings"]
    assert (warning["code"], warning["severity"]) == ("plugin/unusable", "warning")
    assert "the plugin OTHER, of specc-other 1.0" in warning["message"]
