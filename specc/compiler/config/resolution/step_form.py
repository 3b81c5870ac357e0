"""What a rotated step does not do in this version, each with the line that asks for it."""

from __future__ import annotations

from specc.compiler.config.presets import PRESETS
from specc.compiler.config.presets.engine_tables import TablesBlock
from specc.compiler.config.resolved import TARGET_OUTPUTS
from specc.compiler.config.rules.checked import Checked, refuse
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import trees


def check_step(checked: Checked, needs: Needs) -> None:
    """Report what cannot be had of a program whose target the engine runs."""
    file = checked.file
    _tables(checked)
    if file.step != "rotated" or not checked.sound("step"):
        return
    if file.engine is not None and PRESETS[file.engine].rotates:  # what it does not have was said of the engine
        return
    hint = "write step: whole"
    for tree in trees(checked) if needs.trees and file.shapes is None else ():
        refuse(checked, True, f"a tree (topk: {tree.topk}) with step: rotated", (*tree.path, "topk"), hint)
    for key, name, what in (("sampling", "grammar", "grammars"), *_outputs()):
        listed: list[str] = list(getattr(file, key))
        wanted = name in listed and checked.sound(key)
        refuse(checked, wanted, f"{what} with step: rotated", (key, listed.index(name) if wanted else 0), hint)
    refuse(checked, file.engine is not None, f"step: rotated in {file.engine}", ("step",), hint)
    drafts = file.tables.carry.get("drafts")
    stored = drafts is None or drafts.written_by == "program"  # by the last node, where fewer may run
    several = {"num_steps": len(file.num_steps) > 1, "shapes": file.shapes is not None}
    for key, wanted in several.items():
        what = f"several {key} with step: rotated, where the program stores the drafts"
        refuse(
            checked, stored and wanted and checked.sound(key), what, (key,), "write tables.carry.drafts of the engine's"
        )
    asked: dict[str, tuple[bool, str]] = {
        "verify": (file.weighs_drafts, f"verify: {file.verify}"),
        "logits": (file.logits == "sharded", "logits: sharded"),
    }
    for key, (wanted, what) in asked.items():
        refuse(checked, wanted and checked.sound(key), f"{what} with step: rotated", (key,), hint)


def _tables(checked: Checked) -> None:
    """Report tables of an engine that does not run the target, and what is said of a table that is not there."""
    tables, whole = checked.file.tables, checked.file.step != "rotated" and checked.sound("step")
    broken = {key for key in TablesBlock.model_fields if checked.places.broken("tables", key)}
    slots, padding, carry = (("tables", key) for key in ("slots", "padding_slot", "carry"))
    blocks = whole and tables.slots == "block_table" and "slots" not in broken
    refuse(checked, blocks, "slots: block_table with step: whole", slots, "write step: rotated")
    skipped = tables.padding_slot != 0 and tables.slots != "block_table" and not broken & {"slots", "padding_slot"}
    refuse(checked, skipped, "padding_slot: -1 with slots: req_to_token", padding, "write slots: block_table")
    placed = whole and bool(tables.carry) and "carry" not in broken
    what = "tables of the engine's for carried fields with step: whole"
    refuse(checked, placed, what, carry, "write step: rotated")


def _outputs() -> list[tuple[str, str, str]]:
    """Outputs that the engine has itself, of its own forward of the target."""
    return [("outputs", name, f"the output {name}") for name in ("hidden_states", *TARGET_OUTPUTS)]
