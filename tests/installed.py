"""What pip leaves of a project for those who look for its entry points, for one that is on the path and not installed.

    python tests/installed.py FOLDER

writes that of this repository into a folder, which then has to be on the path as well.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_metadata(pyproject: Path, folder: Path) -> None:
    """Write name, version and entry points of a project into a folder of Python's path."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project.get("version", "0")
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    write_metadata(ROOT / "pyproject.toml", Path(sys.argv[1]))
