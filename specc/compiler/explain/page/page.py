"""The page: a template that is given what there is to tell, and pictures."""

from __future__ import annotations

import functools
import importlib.resources

import jinja2

from specc.compiler.driver.summary import counted, totals_columns
from specc.compiler.explain.brief import choice_of, cost_of, removed, removed_in_short, sized, spelled, weighty
from specc.compiler.explain.document import KV
from specc.compiler.explain.page.diff import compare, count
from specc.compiler.explain.page.figures import KINDS, arena, drafted, shows_dropped
from specc.compiler.explain.page.model import Page
from specc.compiler.explain.page.timeline import kind_of, timeline
from specc.compiler.explain.program import captured, does, is_forward, rows
from specc.compiler.passes.form_kernels import REFERENCE_LAUNCHES

TEMPLATE = "page.html.jinja"


@functools.cache
def _environment() -> jinja2.Environment:
    """Everything is escaped but the pictures. An unknown name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
    environment.filters |= {"spelled": spelled, "counted": counted, "cost": cost_of, "sized": sized}
    return environment


def _text(name: str) -> str | None:
    file = importlib.resources.files("specc.compiler.explain.page").joinpath(name)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def render(page: Page, other: Page | None = None) -> str:
    """The page of a program, compared with another one if there is one. A pure function: no time, no path, no order.

    It needs nothing but itself: styles and pictures are in it, and no script.
    """
    areas = compare(page, other) if other is not None else ()
    batch, totals = max(page.plan.totals.items())
    return (
        _environment()
        .get_template(TEMPLATE)
        .render(
            page=page,
            story=page.story,
            plan=page.plan,
            keys={setting.key: setting.value for setting in page.story.settings},
            carry=rows(page.plan),
            captured=list(captured(page.plan)),
            kv={name: getattr(page.plan.kv, name) for name in KV},
            other=other.story if other is not None else None,
            areas=areas,
            differences=count(areas),
            batch=batch,
            most=totals,
            columns=totals_columns(page.plan.totals),
            forwards=[step for step in page.of("step") if is_forward(step.node)],
            removed=removed(page.story),
            removed_in_short=removed_in_short(page.story),
            weighty=weighty(page.story),
            sharing=choice_of(page.story, "plan-memory"),
            timelines={
                "step": timeline(page, "step", "timeline", "A decode step"),
                "prefill": timeline(page, "prefill", "prefill", "Prefill"),
            },
            drafted=drafted(page.drafting),
            dots=shows_dropped(page.drafting),
            arena=arena(page),
            kinds=KINDS,
            kind_of=kind_of,
            does=does,
            torch_launches=REFERENCE_LAUNCHES,
        )
    )
