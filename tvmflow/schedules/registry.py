"""List the schedule templates in order, and apply them to kernels.

A template tiles, vectorizes and parallelizes a kernel by few knobs. The first template that covers a kernel schedules
it. Each lists its candidates, the most promising first: that one is the default of kernels that were not tuned, so that
no kernel runs scalar or on one thread by accident. All templates consist of schedule primitives, which preserve the
semantics of the kernel.
"""

from __future__ import annotations

import contextlib
from typing import Any

from tvm import s_tir

from tvmflow.ir.tir.blocks import NO_BLOCKS, NotCoveredError, classify_blocks, new_schedule
from tvmflow.schedules.cpu.amx_narrow_image import FLAT_TILES
from tvmflow.schedules.cpu.attention import ATTENTION
from tvmflow.schedules.cpu.batch_matmul import BATCH_MATMUL
from tvmflow.schedules.cpu.convolution import WINDOW
from tvmflow.schedules.cpu.elementwise import ELEMENTWISE
from tvmflow.schedules.cpu.inverted_residual import EXPANDED
from tvmflow.schedules.cpu.norm import PACKED_NORM
from tvmflow.schedules.cpu.reduction import REDUCTION
from tvmflow.schedules.cpu.row_reduction import ROWS
from tvmflow.schedules.cpu.transposition import TRANSPOSITION
from tvmflow.schedules.cpu.winograd import WINOGRAD
from tvmflow.schedules.template import Knobs, Template

TEMPLATES = (
    EXPANDED,
    ATTENTION,
    BATCH_MATMUL,
    PACKED_NORM,
    WINOGRAD,
    FLAT_TILES,
    WINDOW,
    ROWS,
    REDUCTION,
    TRANSPOSITION,
    ELEMENTWISE,
)

__all__ = ["TEMPLATES", "Knobs", "Template", "apply_template", "template_for", "get_template", "scheduled_function"]


def template_for(function: Any, features: Any, templates: tuple[Template, ...]) -> tuple[Template, list[Knobs]] | None:
    """Return the first template that covers a kernel, with its candidates; None if none does.

    features: of the processor: CpuFeatures or GpuFeatures.
    """
    schedule = new_schedule(function)
    kernel = classify_blocks(schedule)
    if kernel == NO_BLOCKS:
        return None
    for template in templates:
        with contextlib.suppress(NotCoveredError):
            if template.covers(schedule, kernel):
                return template, template.candidates(schedule, kernel, features)
    return None


def get_template(name: str, templates: tuple[Template, ...]) -> Template | None:
    """Return the template of this name, None if this version has none."""
    return next((template for template in templates if template.name == name), None)


def apply_template(function: Any, template: Template, knobs: Knobs) -> Any:
    """Return the schedule of a kernel by a template. Raises s_tir.ScheduleError if the knobs are illegal."""
    schedule = new_schedule(function)
    template.apply(schedule, classify_blocks(schedule), knobs)
    return schedule


def scheduled_function(function: Any, template: Template, knobs: Knobs) -> Any | None:
    """Return a kernel as a template schedules it, None if the knobs are illegal."""
    try:
        return apply_template(function, template, knobs).mod["main"]
    except (s_tir.ScheduleError, RuntimeError, ValueError):
        return None
