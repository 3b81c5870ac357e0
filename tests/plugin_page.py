"""The plugin of docs/plugins.md: the page's blocks as files, and the distribution that they are."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "plugins.md"
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def install_page(folder: Path) -> None:
    """Write the blocks of the page, each file put together of those that name it, and install the plugin in place."""
    files: dict[str, list[str]] = defaultdict(list)
    for name, text in BLOCK.findall(PAGE.read_text()):
        files[name].append(text)
    for name, blocks in files.items():
        (folder / name).write_text("\n\n".join(blocks))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["specc.algorithms"]
    (about / "entry_points.txt").write_text(
        "[specc.algorithms]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    )
