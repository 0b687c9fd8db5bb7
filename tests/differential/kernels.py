"""Provide small modules, their outputs under every schedule, and error measures for kernel tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from tests.traces import Traced
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import compile_lowered
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.tir.workloads import Workload
from tvmflow.passes.canonicalize.fold_batch_norm import FoldBatchNorm
from tvmflow.passes.canonicalize.fold_constants import FoldConstants
from tvmflow.passes.kernel.apply_schedules import ApplySchedules
from tvmflow.schedules.registry import Knobs, Template, apply_template
from tvmflow.tuning.records.traces import trace_json

HOST = host_backend()
BOUND = 1e-5  # float32 sums of at most some hundred terms in another order, relative to the largest output


def imported(module: torch.nn.Module, shape: tuple[int, ...]) -> tuple[Any, ExportedModel]:
    model = ExportedModel(module.eval(), one_input("input", shape))
    return FoldBatchNorm()(FoldConstants()(model.to_relax())), model


def error_of(outputs: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> float:
    return float(np.abs(outputs - reference).max() / np.abs(reference).max())


def run(executable: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy())


def of_one_operator(operator: Callable[[Any], Any], shape: tuple[int, ...], dtype: str = "float32") -> Any:
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(operator(x))
        builder.emit_func_output(out)
    return builder.get()


def outputs_of_every_schedule(
    lowered: Any, workload: Workload, template: Template, candidates: list[Knobs], x: np.ndarray[Any, Any]
) -> Iterator[np.ndarray[Any, Any]]:
    """Run a module of one kernel under each of its candidates."""
    for knobs in candidates:
        best = {workload.key: Traced(trace_json(apply_template(workload.function, template, knobs)))}
        yield run(compile_lowered(ApplySchedules(best, HOST.template_for)(lowered), HOST), x)
