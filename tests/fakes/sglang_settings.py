"""What SGLang's HTTP server makes of settings that are posted to `/set_internal_state`, before a scheduler has them.

`tests/sglang` compares it with SGLang's own type.
"""

from __future__ import annotations

import json

from pydantic import TypeAdapter, ValidationError

SERVER_ARGS: TypeAdapter[dict[str, int | float]] = TypeAdapter(dict[str, int | float])
"""The type that SGLang says of them: names are refused, and texts that are numbers become these."""


def validated(posted: object) -> dict[str, int | float] | None:
    """Return what a scheduler is given of posted settings; None where SGLang answers 400."""
    try:
        return SERVER_ARGS.validate_python(json.loads(json.dumps(posted)))
    except ValidationError:
        return None
