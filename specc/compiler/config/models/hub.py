"""Models by the names that the Hub has for them: found where a download left them, never fetched."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from specc.compiler.support.files.paths import PathError, path_of
from specc.compiler.support.files.reading import read_text, why_unreadable

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_IN_CACHE = re.compile(r"/models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/[^/]+$")
_LONGEST_REVISION = 1 << 10
"""Bytes of the file that says which revision of a model was downloaded last."""
_LOCAL = "give a local directory, in a file by its path from there"


def model_path(written: str | Path, folder: Path = Path()) -> Path:
    """Return the directory that a text names: a path, from a folder, or else a model in the Hub's cache.

    Whether anything is there can then be asked. Raises PathError as `path_of`, and where the cache is damaged.
    """
    path = path_of(written, folder)
    if path.exists() or not is_name(written):
        return path
    return _cached(str(written)) or path


def named(directory: Path) -> str:
    """Return how a configuration anywhere on this machine names a directory: the Hub's name, or the path."""
    name = name_in_cache(directory)
    with suppress(PathError):
        if name and _cached(name) == directory:
            return name
    return str(directory.resolve())


def name_in_cache(directory: Path) -> str | None:
    """Return the name of the model that the Hub's cache has at this place; None elsewhere."""
    match = _IN_CACHE.search(directory.as_posix())
    return match and f"{match['owner']}/{match['name']}"


def is_name(written: str | Path) -> bool:
    """Whether the Hub may have a model of that name: ``owner/name``."""
    return _NAME.fullmatch(str(written)) is not None


def hint_for(written: str | Path) -> str:
    """Return what to do about a model that is not there."""
    if not is_name(written):
        return f"{_LOCAL}, or the name of a model of the Hub, owner/name, that was downloaded"
    return f"{_LOCAL}; of a model of the Hub 'hf download {written} config.json' fetches what is read here"


def _cached(name: str) -> Path | None:
    """Return the folder of a model's branch ``main`` in the Hub's cache; None where its config.json is not there.

    Raises PathError where what the cache says of the branch cannot be read.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name

    try:
        folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"))
        if (branch := folder / "refs" / "main").exists():  # of which the library reads all that comes
            read_text(branch, _LONGEST_REVISION)
        file = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    except (OSError, ValueError) as error:
        message = "the Hub's cache has a model of that name, whose refs/main cannot be read"
        raise PathError(f"{message}: {why_unreadable(error)}") from error
    return Path(file).parent if isinstance(file, str) else None
