"""What a rotated step does not do in this version, each with the line that asks for it."""

from __future__ import annotations

from specc.compiler.config.presets import PRESETS
from specc.compiler.config.presets.engine_tables import TablesBlock
from specc.compiler.config.resolved import TARGET_OUTPUTS
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import trees
from specc.compiler.config.rules.written_file import Written, refuse
from specc.compiler.support.diagnostics import Findings


def check_step(written: Written, needs: Needs) -> Findings[None]:
    """Report what cannot be had of a program whose target the engine runs."""
    file = written.file
    yield from _tables(written)
    if file.step != "rotated" or not written.sound("step"):
        return
    several = {"num_steps": len(file.num_steps) > 1, "shapes": file.shapes is not None}
    for key, asked in several.items():
        what = f"verify: {file.verify} with several {key} and step: rotated"
        weighs = file.weighs_drafts and written.sound("verify", key)
        yield from refuse(written, asked and weighs, what, ("verify",), "write one num_steps")
    if file.engine is not None and PRESETS[file.engine].rotates:  # what it does not have was said of the engine
        return
    hint = "write step: whole"
    for tree in trees(written) if needs.trees and file.shapes is None else ():
        yield from refuse(written, True, f"a tree (topk: {tree.topk}) with step: rotated", (*tree.path, "topk"), hint)
    for key, name, what in (("sampling", "grammar", "grammars"), *_outputs()):
        listed: list[str] = list(getattr(file, key))
        if name in listed and written.sound(key):
            yield from refuse(written, True, f"{what} with step: rotated", (key, listed.index(name)), hint)
    yield from refuse(written, file.engine is not None, f"step: rotated in {file.engine}", ("step",), hint)
    drafts = file.tables.carry.get("drafts")
    stored = drafts is None or drafts.written_by == "program"  # by the last node, where fewer may run
    for key, asked in several.items():
        what = f"several {key} with step: rotated, where the program stores the drafts"
        in_table = "write tables.carry.drafts of the engine's"
        yield from refuse(written, stored and asked and written.sound(key), what, (key,), in_table)
    sharded = file.logits == "sharded" and written.sound("logits")
    yield from refuse(written, sharded, "logits: sharded with step: rotated", ("logits",), hint)


def _tables(written: Written) -> Findings[None]:
    """Report tables of an engine that does not run the target, and what is said of a table that is not there."""
    tables, whole = written.file.tables, written.file.step != "rotated" and written.sound("step")
    broken = {key for key in TablesBlock.model_fields if written.broken("tables", key)}
    slots, padding, carry = (("tables", key) for key in ("slots", "padding_slot", "carry"))
    blocks = whole and tables.slots == "block_table" and "slots" not in broken
    yield from refuse(written, blocks, "slots: block_table with step: whole", slots, "write step: rotated")
    skipped = tables.padding_slot != 0 and tables.slots != "block_table" and not broken & {"slots", "padding_slot"}
    yield from refuse(
        written, skipped, "padding_slot: -1 with slots: req_to_token", padding, "write slots: block_table"
    )
    placed = whole and bool(tables.carry) and "carry" not in broken
    what = "tables of the engine's for carried fields with step: whole"
    yield from refuse(written, placed, what, carry, "write step: rotated")


def _outputs() -> list[tuple[str, str, str]]:
    """Outputs that the engine has itself, of its own forward of the target."""
    return [("outputs", name, f"the output {name}") for name in ("hidden_states", *TARGET_OUTPUTS)]
