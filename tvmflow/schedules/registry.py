"""Schedule templates: how a kernel is tiled, vectorized and spread over threads, with few knobs each.

Tried in order; the first that covers a kernel schedules it. Each states its knobs, the likeliest first: that one serves
where nothing was tuned, so that no kernel runs scalar or on one thread by accident. All are made of schedule primitives
that keep the meaning of the kernel.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvmflow.ir.tir.blocks import NotCoveredError, look_at, new_schedule
from tvmflow.schedules.cpu.amx_narrow_image import FLAT_TILES
from tvmflow.schedules.cpu.attention import ATTENTION
from tvmflow.schedules.cpu.batch_matmul import PRODUCTS
from tvmflow.schedules.cpu.convolution import WINDOW
from tvmflow.schedules.cpu.elementwise import ELEMENTWISE
from tvmflow.schedules.cpu.inverted_residual import EXPANDED
from tvmflow.schedules.cpu.norm import PACKED_NORM
from tvmflow.schedules.cpu.reduction import REDUCTION
from tvmflow.schedules.cpu.row_reduction import ROWS
from tvmflow.schedules.cpu.winograd import WINOGRAD
from tvmflow.schedules.template import Knobs, Template

TEMPLATES = (EXPANDED, ATTENTION, PRODUCTS, PACKED_NORM, WINOGRAD, FLAT_TILES, WINDOW, ROWS, REDUCTION, ELEMENTWISE)

__all__ = ["TEMPLATES", "Knobs", "Template", "scheduled", "template_for", "template_named"]


def template_for(function: Any, features: Any, templates: tuple[Template, ...]) -> tuple[Template, list[Knobs]] | None:
    """Return the first of the templates that covers a kernel, with its candidates; None where none does (dynamic
    shapes).

    features: of the processor, as the templates know them: CpuFeatures or GpuFeatures.
    """
    schedule = new_schedule(function)
    kernel = look_at(schedule)
    for template in templates:
        with contextlib.suppress(NotCoveredError):
            if template.covers(schedule, kernel):
                return template, template.candidates(schedule, kernel, features)
    return None


def template_named(name: str, templates: tuple[Template, ...]) -> Template | None:
    """Return the template of that name, None where this version has none."""
    return next((template for template in templates if template.name == name), None)


def scheduled(function: Any, template: Template, knobs: Knobs) -> Any:
    """Return the schedule of a kernel under a template. Raises s_tir.ScheduleError where the knobs are illegal."""
    schedule = new_schedule(function)
    template.apply(schedule, look_at(schedule), knobs)
    return schedule
