"""What two sides of the same server have in common and by how much they differ: records, and tables of them.

Correct first. On models whose texts mean something: the same tokens and the same accepted lengths, but for near ties of
the target (ties.py). Where the accepted length is set: as many tokens a step on both sides, by EQUAL. Everywhere: the
same attention backends. What is not so is named in "failures", as is what failed.
"""

from __future__ import annotations

import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from variant import ACCEPT_LENGTH, Variant

sys.path.append(str(Path(__file__).resolve().parents[1]))  # in a bundle all files are in one folder

from texts import compare_texts, last_line, number, share

Result = dict[str, Any]
Read = Callable[[Result, Result], float]
EQUAL = 0.05
"""By how much tokens a step may differ where their expectation is set: both sides draw them."""
PACKAGES = ("sglang", "sglang-kernel", "flashinfer-python", "torch", "triton", "transformers")
MADE_UP = (
    "Weights of all models but ex_ and exmla_ are made up when a server starts (load_format: dummy), as prompts are. "
    f"Their accepted length is set: SGLANG_SIMULATE_ACC_LEN={ACCEPT_LENGTH}."
)
COLUMNS: dict[str, Read] = {
    "ms a step": lambda rate, _: rate["ms_per_step"],
    "tokens/s": lambda rate, _: rate["tokens_per_s"],
    "tokens a step": lambda rate, _: rate["tokens_per_step"],
    "GPU us": lambda _, trace: trace["gpu_busy_us"],
    "step / GPU": lambda rate, trace: 1e3 * rate["ms_per_step"] / trace["gpu_busy_us"],
    "launches": lambda _, trace: trace["launches_per_step"],
    "glue us": lambda _, trace: trace["glue_us"],
    "metadata us": lambda _, trace: trace["us_by_kind"]["metadata"],
    "forwards us": lambda _, trace: trace["us_by_kind"]["forward"] + trace["us_by_kind"]["torch"],
    "run-ahead us": lambda _, trace: trace["run_ahead_us"]["first"],
    "least": lambda _, trace: trace["run_ahead_us"]["least"],
}
RATIOS = ("ms a step", "tokens/s", "GPU us", "launches", "glue us")


def report(
    variants: Iterable[Variant], results: Mapping[str, dict[str, Result]], plain: Mapping[str, Result], models: Path
) -> Result:
    """All that is known of some variants, from what one.py left for each side and for the targets alone."""
    records = [record(variant, results[variant.name], plain[variant.plain]) for variant in variants]
    explain_ties(records, results, models)
    failed = [f"{entry['variant']}: {what}" for entry in records for what in failures(entry)]
    return {"machine": machine(), "made_up": MADE_UP, "records": records, "failures": failed}


def machine() -> Result:
    """The GPU, the driver's CUDA and what is installed."""
    import torch

    facts: Result = {"gpu": None, "python": platform.python_version(), "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    for name in PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    return facts


def record(variant: Variant, runs: dict[str, Result], plain: Result) -> Result:
    """What one variant has: errors, servers, and texts or times."""
    entry: Result = {"variant": variant.name, "models": variant.models.target, "errors": {}}
    for side, run in runs.items():
        parts = {side: run} | {f"{side} {key}": value for key, value in run.items() if key.startswith("trace ")}
        entry["errors"] |= {part: result["error"] for part, result in parts.items() if "error" in result}
    for key in ("up_s", "server", "program"):
        entry[key] = {side: run.get(key) for side, run in runs.items()}
    entry["attention"] = {side: attention(run.get("server") or {}) for side, run in runs.items()}
    if variant.text:
        return entry | compared(runs, plain)
    points = sorted({key for run in runs.values() for key in run if "x" in key and key[0].isdigit()}, key=order)
    return entry | {"points": {point: at_point(runs, point) for point in points}}


def attention(server: Mapping[str, Any]) -> str:
    """A server's backend, or those of its roles where they differ."""
    roles = ("prefill_attention_backend", "decode_attention_backend", "speculative_draft_attention_backend")
    named = [server.get(role) or server.get("attention_backend") for role in roles]
    return "/".join(dict.fromkeys(str(backend) for backend in named if backend)) or "-"


def order(point: str) -> tuple[int, ...]:
    """By context, then by batch."""
    return tuple(map(int, point.split("x")))


def compared(runs: Mapping[str, Result], plain: Result) -> Result:
    """Texts of both sides, and of no speculation; accepted lengths where texts are the same."""
    comparison: Result = {"texts_of_no_speculation": {side: compare_texts(run, plain) for side, run in runs.items()}}
    if "specc" not in runs:
        return comparison
    comparison["texts"] = texts = compare_texts(runs["specc"], runs["stock"])
    if texts is not None:
        pairs = zip(runs["specc"]["accept_lengths"], runs["stock"]["accept_lengths"], strict=True)
        same = [
            accepted == stock_accepted
            for (accepted, stock_accepted), place in zip(pairs, texts["first_difference"], strict=True)
            if place is None
        ]
        lengths = [length for length in runs["stock"]["accept_lengths"] if length is not None]
        mean = statistics.mean(lengths) if lengths else None
        comparison["accepted"] = {"same": sum(same), "of": len(same), "mean": mean}
    return comparison


def at_point(runs: Mapping[str, Result], point: str) -> Result:
    """The columns of both sides, and the program's over SGLang's own: milliseconds turn by turn, and their median."""
    sets = {side: figures(run, point) for side, run in runs.items()}
    if "specc" in sets:
        pairs = {name: (sets["specc"][name], sets["stock"][name]) for name in RATIOS}
        sets["ratio"] = {
            name: value / own if value is not None and own else None for name, (value, own) in pairs.items()
        }
        turns = [run.get(point, {}).get("ms_per_step_each", []) for run in (runs["specc"], runs["stock"])]
        if each := [value / own for value, own in zip(*turns, strict=False)]:
            sets["ratio"] |= {"ms a step": statistics.median(each), "range": [min(each), max(each)]}
    return sets


def figures(run: Result, point: str) -> Result:
    """The columns of one run, None where it was not measured; and the range of its milliseconds."""
    rate, trace = run.get(point, {}), run.get(f"trace {point}", {})
    values: Result = {}
    for name, read in COLUMNS.items():
        try:
            values[name] = float(read(rate, trace))
        except (KeyError, TypeError):
            values[name] = None
    return values | {"range": rate.get("ms_per_step_range")}


def explain_ties(records: Sequence[Result], results: Mapping[str, dict[str, Result]], models: Path) -> None:
    """Say of every answer that differs how near the target's best scores were."""
    from prompts import text_prompts

    differing = [entry for entry in records if entry.get("texts") and entry["texts"]["same"] < entry["texts"]["of"]]
    if not differing:
        return
    from ties import Target

    targets = {entry["models"]: Target(models / entry["models"]) for entry in differing}
    prompts = text_prompts(models / "ex_target")
    for entry in differing:
        ids, own = (results[entry["variant"]][side]["output_ids"] for side in ("specc", "stock"))
        entry["parting"] = {
            number: targets[entry["models"]].parting(prompts[number], ids[number], own[number], place)
            for number, place in enumerate(entry["texts"]["first_difference"])
            if place is not None
        }


def failures(entry: Result) -> Iterable[str]:
    """What of a record must not be so."""
    for part, error in entry["errors"].items():
        yield f"{part}: {last_line(error)}"
    if len(set(entry["attention"].values()) - {"-"}) > 1:
        yield f"attention backends differ: {entry['attention']}"
    far = [str(number) for number, tie in entry.get("parting", {}).items() if not tie["near"]]
    if far:
        yield f"texts of prompts {', '.join(far)} differ, and no near tie is there"
    if (accepted := entry.get("accepted")) and accepted["same"] < accepted["of"]:
        yield f"accepted lengths of {accepted['of'] - accepted['same']} prompts with the same text differ"
    for point, sets in entry.get("points", {}).items():
        pair = [sets[side]["tokens a step"] for side in ("stock", "specc") if side in sets]
        if len(pair) == 2 and None not in pair and abs(pair[1] / pair[0] - 1) > EQUAL:
            yield f"{point}: {pair[0]:.2f} and {pair[1]:.2f} tokens a step"
    served = (entry["program"].get("specc") or {}) if "specc" in entry["server"] else None
    if served is not None and "specc" not in entry["errors"] and not served.get("served"):
        yield f"the program served no step: {served}"
    left = {reason: steps for reason, steps in ((served or {}).get("left") or {}).items() if reason != "switched off"}
    if left:
        yield f"the program left steps to SGLang: {left}"


def tables(comparison: Result) -> str:
    """Markdown: the machine, texts, times, and what failed."""
    named = ", ".join(f"{name} {what}" for name, what in comparison["machine"].items() if what)
    lines = [named, "", comparison["made_up"]]
    texts = [entry for entry in comparison["records"] if "points" not in entry]
    timed = [entry for entry in comparison["records"] if "points" in entry]
    lines += ["", *text_table(texts)] if texts else []
    lines += ["", *time_table(timed)] if timed else []
    lines += ["", *(f"FAILED {what}" for what in comparison["failures"])]
    return "\n".join(lines) + "\n"


def text_table(records: Iterable[Result]) -> list[str]:
    """A line per variant."""
    heads = (
        "variant",
        "attention",
        "texts as stock",
        "accepted as stock",
        "mean",
        "near ties",
        "stock as no speculation",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for entry in records:
        accepted, parting = entry.get("accepted"), entry.get("parting", {})
        gaps = [f"{tie['gap']:.3f}" for tie in parting.values() if tie["near"]]
        cells = (
            entry["variant"],
            " vs ".join(dict.fromkeys(entry["attention"].values())),
            share(entry.get("texts")),
            f"{accepted['same']}/{accepted['of']}" if accepted else "-",
            number(accepted and accepted["mean"]),
            f"{len(gaps)} (gaps {', '.join(gaps)})" if gaps else "-",
            share(entry["texts_of_no_speculation"]["stock"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def time_table(records: Iterable[Result]) -> list[str]:
    """By variant and point a line per side, and one of ratios."""
    heads = ("variant", "context", "batch", "side", "attention", *COLUMNS)
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for entry in records:
        for point, sets in entry["points"].items():
            for side, values in sets.items():
                label = "**specc / stock**" if side == "ratio" else side
                cells = [number(values.get(name)) for name in COLUMNS]
                if spread := values.get("range"):
                    cells[0] += f" ({spread[0]:.2f} to {spread[1]:.2f})"
                row = (entry["variant"], *point.split("x"), label, entry["attention"].get(side, ""), *cells)
                lines.append("| " + " | ".join(row) + " |")
    return lines
