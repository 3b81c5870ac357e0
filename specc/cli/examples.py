"""Lines that people type, with which `--help` of every command ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": (
        "specc init models/target models/draft",
        "specc init models/target models/draft --topk 4 -o tree.yaml",
        "specc init meta-llama/Llama-3.1-8B-Instruct models/draft --num-steps 5",
        "specc init models/target models/draft -o - | specc check -",
    ),
    "check": ("specc check chain.yaml", "specc check dist/program.whl"),
    "explain": (
        "specc explain chain.yaml",
        "specc explain chain.yaml --pass select-verify",
        "specc explain specc_program_chain --full",
    ),
    "report": ("specc report chain.yaml -o chain.html", "specc report tree.yaml --against chain.yaml"),
    "build": (
        "specc build chain.yaml",
        "specc build chain.yaml --arch sm_80,sm_90 -o wheels",
        "specc build chain.yaml --emit plan --emit kernels -o out",
    ),
    "list": ("specc list", "specc list --models"),
    "inspect": ("specc inspect dist/program.whl", "specc inspect specc_program_chain --format json"),
    "schema": ("specc schema > specc.schema.json",),
    "doctor": ("specc doctor", "specc doctor --format json"),
}
"""Lines by command; names of files stand for the user's own. Commands from elsewhere bring theirs."""


def epilog(lines: Iterable[str]) -> str:
    """The end of a command's help, whose lines stay as they are: that is what the backspace says."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
