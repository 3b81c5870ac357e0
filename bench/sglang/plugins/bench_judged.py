"""A plugin of SGLang: DSPARK's own step tests drawn drafts though their accepted length is set.

With `SGLANG_SIMULATE_ACC_LEN` SGLang leaves the test out, whose outcome it replaces. Programs make it, as both do in a
server that people start. So without this the two sides would not do the same.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Give the test what requests ask of drawing, which SGLang leaves out where it simulates."""
    from sglang.srt.speculative.dspark_components import dspark_verify

    executor, accept = dspark_verify.TargetVerifyExecutor, dspark_verify.accept_draft_tokens
    finalize, asked = executor.accept_and_finalize, dict[str, Any]()

    def accept_and_finalize(self: Any, **given: Any) -> Any:
        asked["sampling_info"] = given["sampling_info"]
        return finalize(self, **given)

    def accept_draft_tokens(**given: Any) -> Any:
        return accept(**(given | asked))

    executor.accept_and_finalize = accept_and_finalize
    dspark_verify.accept_draft_tokens = accept_draft_tokens
