"""Schedule templates: how a kernel is tiled, vectorized and spread over threads, with few knobs each.

Tried in order; the first that covers a kernel schedules it. Each states its knobs, the likeliest first: that one serves
where nothing was tuned, so that no kernel runs scalar or on one thread by accident. All are made of schedule primitives
that keep the meaning of the kernel.
"""

from __future__ import annotations

from typing import Any

from tvmflow.kernels.blocks import look_at, new_schedule
from tvmflow.templates.attention import ATTENTION
from tvmflow.templates.elementwise import ELEMENTWISE
from tvmflow.templates.expansion import EXPANDED
from tvmflow.templates.flat_tiles import FLAT_TILES
from tvmflow.templates.packed_norm import PACKED_NORM
from tvmflow.templates.primitives import Knobs, Template
from tvmflow.templates.products import PRODUCTS
from tvmflow.templates.reduction import REDUCTION
from tvmflow.templates.rows import ROWS
from tvmflow.templates.window import WINDOW
from tvmflow.templates.winograd import WINOGRAD

TEMPLATES = (EXPANDED, ATTENTION, PRODUCTS, PACKED_NORM, WINOGRAD, FLAT_TILES, WINDOW, ROWS, REDUCTION, ELEMENTWISE)

__all__ = ["TEMPLATES", "Knobs", "Template", "scheduled", "template_for", "template_named"]


def template_for(function: Any, features: Any, templates: tuple[Template, ...]) -> tuple[Template, list[Knobs]] | None:
    """Return the first of the templates that covers a kernel, with its candidates; None where none does (dynamic shapes).

    features: of the processor, as the templates know them: CpuFeatures or GpuFeatures.
    """
    try:
        schedule = new_schedule(function)
        kernel = look_at(schedule)
        for template in templates:
            if template.covers(schedule, kernel):
                return template, template.candidates(schedule, kernel, features)
    except (ValueError, RuntimeError, TypeError):
        return None
    return None


def template_named(name: str, templates: tuple[Template, ...]) -> Template | None:
    """Return the template of that name, None where this version has none."""
    return next((template for template in templates if template.name == name), None)


def scheduled(function: Any, template: Template, knobs: Knobs) -> Any:
    """Return the schedule of a kernel under a template. Raises s_tir.ScheduleError where the knobs are illegal."""
    schedule = new_schedule(function)
    template.apply(schedule, look_at(schedule), knobs)
    return schedule
