"""Build a schedule record from its trace alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from tvmflow.schedules.registry import apply_template
from tvmflow.schedules.template import Knobs, Template


@dataclass(frozen=True)
class Traced:
    trace: Any
    status: str = "ok"


def applied_from(function: Any, template: Template, candidates: list[Knobs], first: int) -> Any:
    """Return the schedule by the first candidate that applies, from an index on, then from the start: not each
    suits each shape.
    """
    for knobs in candidates[first:] + candidates[:first]:
        with contextlib.suppress(RuntimeError):
            return apply_template(function, template, knobs)
    raise AssertionError("no candidate applies")
