"""What the ranks of a server with tensor parallelism have to have alike.

SGLang runs one scheduler on each of them, with the same requests, and every rank gets whole rows of logits. So each
runs the same program, and nothing of a step is sent, as long as no rank decides anything by itself.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ..._plugin import ServerError
from ..._ranks import difference


def agree(group: Any, of_rank: Mapping[str, object]) -> None:
    """Compare what ranks of a `GroupCoordinator` are about to do; all of them call this, before their first collective.

    ServerError on every rank where one differs: a rank that ran other steps would wait for the others for ever.
    """
    if group.world_size == 1:
        return
    of_ranks = group.all_gather_object(dict(of_rank))
    if (reason := difference(of_ranks)) is not None:
        raise ServerError(f"specc: {reason}")


def shared(group: Any, value: Any) -> Any:
    """What the first rank of a group has; all of them call this."""
    return value if group.world_size == 1 else group.broadcast_object(value, src=0)


def seeds(group: Any, below: int) -> Callable[[], int]:
    """What draws seeds from 0 to `below` - 1 for requests that have none, on all ranks of a group the same.

    Requests are prefilled in the same order everywhere, so it is enough that ranks begin alike: with a key of rank 0's,
    which is another one in every server.
    """
    key = group.broadcast_object(secrets.token_bytes(32), src=0)
    draw = random.Random(key)
    return lambda: draw.randrange(below)
