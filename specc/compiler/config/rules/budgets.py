"""Rules about a budget of rows, by which the target reads fewer rows than are drafted."""

from __future__ import annotations

from specc.compiler.config.rules.shapes import trees, written_shapes
from specc.compiler.config.rules.written_file import Written, refuse
from specc.compiler.support.diagnostics import Diagnostic, Findings

_HINT = "leave budget out: the target reads every draft then"


def check_budget(written: Written) -> Findings[None]:
    """Report a budget that is none, and what a program with one does not do yet."""
    file, budget = written.file, written.file.budget
    if budget is None or not written.sound("budget"):
        return
    shapes = written_shapes(file) if written.sound("num_steps", "topk", "num_draft_tokens", "shapes") else ()
    if len(shapes) == 1 and budget > shapes[0].num_steps:
        message = f"budget is {budget}, and a chain of {shapes[0].num_steps} drafts has {shapes[0].num_steps + 1} rows"
        yield Diagnostic("legal/budget", message, written.places.value("budget"), _HINT)
    unable = {
        "several shapes": len(shapes) > 1,
        "trees": bool(shapes) and bool(trees(written)),
        f"verify: {file.verify}": file.weighs_drafts and written.sound("verify"),
        "draft_sampling: coupled": file.draft_sampling == "coupled",
        "verify_rows: lazy": file.verify_rows == "lazy",
        "log-probabilities of tokens that are drawn": file.draws and "logprobs" in file.outputs,
        "step: rotated": file.step == "rotated",
        "logits: sharded": file.logits == "sharded",
        "best_logprobs": file.best_logprobs > 0,
        **{f"the output {name}": name in file.outputs for name in ("accept_index", "routed_experts", "indexer_topk")},
    }
    for what, asked in unable.items():
        yield from refuse(written, asked, f"a budget of rows with {what}", ("budget",), _HINT)
