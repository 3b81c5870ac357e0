"""The plugin of docs/plugins.md: the page's blocks as files, and the distribution that they are."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from installed import write_metadata

PAGE = Path(__file__).resolve().parents[1] / "docs" / "plugins.md"
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def install_page(folder: Path) -> None:
    """Write the blocks of the page, each file put together of those that name it, and install the plugin in place."""
    files: dict[str, list[str]] = defaultdict(list)
    for name, text in BLOCK.findall(PAGE.read_text()):
        files[name].append(text)
    for name, blocks in files.items():
        (folder / name).write_text("\n\n".join(blocks))
    write_metadata(folder / "pyproject.toml", folder)
