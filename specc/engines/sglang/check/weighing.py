"""Drafts that a server of SGLang's draws, and weighs by what they were drawn from, by its arguments."""

from __future__ import annotations

from dataclasses import replace

from specc.compiler.config.wanted import Wanted
from specc.engines.sglang.check.command_line import Arguments, argument
from specc.engines.sglang.check.server import Started
from specc.engines.sglang.served import STARTS_NONE, WEIGHING

TOGETHER = next(iter(WEIGHING))
"""The setting by which drafts of a step are weighed all together."""


def verified(arguments: Arguments, server: Started, wanted: Wanted) -> Wanted:
    """Return what is wanted, with the key `verify` as the server's arguments ask for where nothing else says it.

    What SGLang does not start with such arguments is reported.
    """
    written = [name for name in WEIGHING if argument(name) in arguments.values]
    for name in written:
        _check_started(arguments, server, name)
    if wanted.verify is None and written and WEIGHING[written[0]] in server.kind.weighs:
        wanted = replace(wanted, verify=WEIGHING[written[0]], verified_by=argument(written[0]))
    if wanted.weighs and wanted.token_map is not None and not server.kind.blocks:
        what = f"--token-map with drafts that are drawn ({wanted.verified_by} {wanted.verify})"
        arguments.refuse(what, "leave --token-map out: SGLang's first drafts are of all tokens")
    return wanted


def _check_started(arguments: Arguments, server: Started, name: str) -> None:
    """Report one of `WEIGHING` that SGLang does not start with this draft, or on this device."""
    verify, option = WEIGHING[name], argument(name)
    if verify not in server.kind.weighs:
        if server.kind.has_steps or name == TOGETHER:  # others leave the argument aside
            arguments.refuse(f"{option} with {server.algorithm}", f"{STARTS_NONE}; leave {option} out")
        return
    if server.topk.value != 1:
        arguments.refuse(f"{option} with a tree", f"{STARTS_NONE}; write --speculative-eagle-topk 1")
    if name == TOGETHER and server.facts.device == "cpu":
        arguments.refuse(f"{option} on a CPU", f"{STARTS_NONE}; leave {option} out")
    draft = server.models.get("draft")
    facts = {} if draft is None else draft[1].facts
    whole, part = (facts[key].value if key in facts else None for key in ("vocab_size", "draft_vocab_size"))
    mapped = bool(arguments.text("--speculative-token-map"))
    if server.kind.head and (mapped or part not in (None, whole)):
        what = f"{option} with a draft that scores a part of the tokens"
        arguments.refuse(what, f"{STARTS_NONE}; leave {option} out")
