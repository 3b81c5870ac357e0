"""What a rotated step does not do in this version, each with the line that asks for it."""

from __future__ import annotations

from specc.config.legality import Checked, refuse
from specc.config.needs import Needs
from specc.config.presets import PRESETS
from specc.config.resolved import TARGET_OUTPUTS


def check_step(checked: Checked, needs: Needs) -> None:
    """Report what cannot be had of a program whose target the engine runs."""
    file = checked.file
    blocks = file.slots == "block_table" and file.step != "rotated" and checked.sound("step", "slots")
    refuse(checked, blocks, "slots: block_table with step: whole", ("slots",), "write step: rotated")
    skipped = file.padding_slot != 0 and file.slots != "block_table" and checked.sound("slots", "padding_slot")
    refuse(checked, skipped, "padding_slot: -1 with slots: req_to_token", ("padding_slot",), "write slots: block_table")
    placed = bool(file.carry) and file.step != "rotated" and checked.sound("step", "carry")
    refuse(
        checked, placed, "tables of the engine's for carried fields with step: whole", ("carry",), "write step: rotated"
    )
    if file.step != "rotated" or not checked.sound("step"):
        return
    if file.engine is not None and PRESETS[file.engine].rotates:  # what it does not have was said of the engine
        return
    hint = "write step: whole"
    for key, name, what in (("sampling", "grammar", "grammars"), *_outputs()):
        listed: list[str] = list(getattr(file, key))
        wanted = name in listed and checked.sound(key)
        refuse(checked, wanted, f"{what} with step: rotated", (key, listed.index(name) if wanted else 0), hint)
    refuse(checked, file.engine is not None, f"step: rotated in {file.engine}", ("step",), hint)
    asked: dict[str, tuple[bool, str]] = {
        "topk": (file.topk > 1 and needs.trees, f"a tree (topk: {file.topk})"),
        "num_steps": (len(file.num_steps) > 1, "a choice of several num_steps"),
        "verify": (file.verify in ("rejection", "block"), f"verify: {file.verify}"),
        "disaggregation": (file.disaggregation, "disaggregation: true"),
        "logits": (file.logits == "sharded", "logits: sharded"),
    }
    for key, (wanted, what) in asked.items():
        refuse(checked, wanted and checked.sound(key), f"{what} with step: rotated", (key,), hint)


def _outputs() -> list[tuple[str, str, str]]:
    """Outputs that the engine has itself, of its own forward of the target."""
    return [("outputs", name, f"the output {name}") for name in ("hidden_states", *TARGET_OUTPUTS)]
