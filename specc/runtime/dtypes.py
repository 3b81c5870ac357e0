"""The dtypes of plans. Imports nothing."""

from __future__ import annotations

DTYPES: dict[str, str] = {
    "i1": "bool",
    "u8": "uint8",
    "i8": "int8",
    "f8": "float8_e4m3fn",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
}
"""torch's names by those of plans."""
