"""The attention backends of SGLang's that specc knows: each file here has the records of one or several, `RECORDS`.

Imports the standard library only, and so do the files: the compiler reads them, too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from ...served_attention import AttentionBackend

KNOWN_BACKENDS: Mapping[str, AttentionBackend] = {
    record.name: record
    for record in sorted(
        (
            record
            for file in sorted(found.name for found in pkgutil.iter_modules(__path__))
            for record in importlib.import_module(f".{file}", __name__).RECORDS
        ),
        key=lambda record: record.place,
    )
}
"""All of them, by SGLang's names."""
BACKENDS: Mapping[str, AttentionBackend] = {name: of for name, of in KNOWN_BACKENDS.items() if of.caches}
"""Those that are served."""


def backend_of(name: str) -> AttentionBackend:
    """Return what is known of a backend by its name: of one that is in no file here nothing."""
    return KNOWN_BACKENDS.get(name) or AttentionBackend(name, caches=())
