"""How wide the hidden states are that SGLang carries of a request between steps, of models in folders, as JSON.

Run in SGLang's environment: `.sglang/bin/python tests/sglang/real_widths.py FOLDER ...`. Of each folder's module there
are the elements and the bytes of what its draft is given, what it leaves, and a rank without requests makes.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative import eagle_info
from sglang.srt.speculative.eagle_utils import (
    get_draft_input_from_target_hidden_dim,
    get_draft_recurrent_hidden_state_spec,
)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


def widths(folder: str) -> dict[str, int]:
    """Those of one folder."""
    config = ModelConfig(folder, dtype="float32", is_draft_model=True, speculative_algorithm="EAGLE")
    runner = SimpleNamespace(model_config=config, spec_algorithm=SpeculativeAlgorithm.EAGLE)
    width, dtype = get_draft_recurrent_hidden_state_spec(runner)
    eagle_info.get_spec = lambda: SimpleNamespace(speculative_use_rejection_sampling=False)
    idle = eagle_info.EagleDraftInput.create_idle_input(
        device="cpu", hidden_size=width, dtype=dtype, topk=1, capture_hidden_mode=CaptureHiddenMode.LAST
    )
    given = get_draft_input_from_target_hidden_dim(runner)
    return {"given": given, "left": width, "idle": idle.hidden_states.shape[1], "bytes": width * dtype.itemsize}


if __name__ == "__main__":
    print(json.dumps([widths(folder) for folder in sys.argv[1:]]))
