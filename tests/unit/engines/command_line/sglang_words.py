"""Arguments of an SGLang server, as `specc sglang check` is given them."""

from __future__ import annotations

from pathlib import Path

from click.testing import Result
from programs import EXAMPLES
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import Config, load_config

MODELS = EXAMPLES / "models"


GIVEN = {
    "--model-path": str(MODELS / "target"),
    "--speculative-algorithm": "STANDALONE",
    "--speculative-draft-model-path": str(MODELS / "standalone"),
    "--speculative-num-steps": "3",
    "--speculative-eagle-topk": "1",
    "--attention-backend": "triton",
    "--dtype": "float32",
}


TREE = {"--speculative-eagle-topk": "4", "--speculative-num-draft-tokens": "12"}


def words(changes: dict[str, str | None]) -> list[str]:
    """The arguments with changes; None leaves one out, an empty text makes a flag."""
    kept = {key: value for key, value in (GIVEN | changes).items() if value is not None}
    return [word for key, value in kept.items() for word in (key, *value.split())]


def run(*options: object) -> Result:
    return CliRunner().invoke(app, ["sglang", "check", *map(str, options)])


def config(tmp_path: Path, changes: dict[str, str | None], *more: str, options: tuple[str, ...] = ()) -> Config:
    """What a run with these arguments writes, after `specc check` has passed it."""
    path = tmp_path / "written.yaml"
    result = run("-o", path, *options, "--", *words(changes), *more)
    assert result.exit_code == 0, result.output
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert checked.exit_code == 0, checked.output
    return load_config(path, names(), needs).config
