"""Archives that may be damaged, or written by anybody."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib

UNREADABLE = (
    OSError,
    ValueError,  # names that no file can have
    RuntimeError,  # an encrypted entry; NotImplementedError, a compression that is not known
    EOFError,
    KeyError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""What `zipfile` raises where an archive, or an entry of it, cannot be read."""
