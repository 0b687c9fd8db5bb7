"""Kernels without a reduction, or with several (softmax): every element-wise block over threads and in vectors."""

from __future__ import annotations

from typing import Any

from tvmflow.targets.machine import Machine
from tvmflow.tuning.blocks import Kernel
from tvmflow.tuning.templates.common import Knobs, Template, merge_epilogue, parallel_first, spread, work_of


def _candidates(schedule: Any, kernel: Kernel, _machine: Machine) -> list[Knobs]:
    work = max((work_of(schedule, name) for name in kernel.after), default=0) * len(kernel.after)
    return [{"parallel": parallel} for parallel in parallel_first(work)]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    if not kernel.reductions:
        last = merge_epilogue(schedule, kernel)
        if last is not None:
            spread(schedule, last, knobs["parallel"])
        return
    for name in kernel.after:
        if name not in kernel.reductions:
            spread(schedule, name, knobs["parallel"])


ELEMENTWISE = Template("elementwise", lambda _schedule, _kernel: True, _candidates, _apply)
