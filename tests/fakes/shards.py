"""A rank of the fake engine: it hands over its columns of the logits, and NaN in columns of no token."""

from __future__ import annotations

from typing import Any

import torch

from specc.config import Config


class Sharded:
    """Callbacks of one rank, over those of an engine that scores all columns."""

    capturable = False

    def __init__(self, engine: Any, config: Config, rank: int) -> None:
        self.engine, self.config, self.rank = engine, config, rank

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if name.startswith("_") or not callable(found):
            return found
        model = self.config.models["target" if name.endswith("target") else "draft"]

        def forward(**operands: Any) -> Any:
            answer = found(**operands)
            if getattr(answer, "logits", None) is not None:
                columns = model.padded_vocab_size or model.vocab_size
                pad = answer.logits.new_full((*answer.logits.shape[:-1], columns - model.vocab_size), torch.nan)
                width = columns // self.config.tensor_parallel
                whole = torch.cat((answer.logits, pad), dim=-1)
                answer.logits = whole[..., self.rank * width : (self.rank + 1) * width].contiguous()
            return answer

        # The runtime asks a callback what it takes.
        forward.__wrapped__ = found  # pyright: ignore[reportFunctionMemberAccess]
        return forward
