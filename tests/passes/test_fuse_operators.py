"""Test that each kernel call is known to compute the steps of the packed network that it does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import nn

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.plan_reader import plan_of
from tvmflow.codegen.network.plan_summary import summarize_plan
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.tvm_compat import constant_value
from tvmflow.passes.fuse.fuse_operators import read_calls
from tvmflow.passes.pipeline import canonicalize


class _Branches(nn.Module):
    """Branches of equal convolutions of one input: only their weights tell which kernel call is which."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        self.branches = nn.ModuleList([nn.Conv2d(32, 32, 1) for _ in range(3)])
        self.down, self.head = nn.Conv2d(32, 32, 3, padding=1), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        a, b, c = (branch(x) for branch in self.branches)
        x = torch.relu(a + torch.sigmoid(b) * self.down(c))
        return self.head(nn.functional.max_pool2d(torch.cat([x, c], 1), 2)[:, :32].mean((2, 3)))


def _lowered() -> tuple[Any, Any]:
    torch.manual_seed(5)
    model = ExportedModel(_Branches().eval(), (TensorSpec("x", (1, 16, 8, 8), "float32"),))
    packed, _ = host_backend().pack(canonicalize(model.to_relax()), None)
    return packed, lower(packed, host_backend())


def _values(array: Any) -> bytes:
    """Return what stays of weights when they are packed: the numbers, in any order."""
    flat = np.sort(np.asarray(array, np.float32).reshape(-1))
    return flat[flat != 0].tobytes()


def test_a_call_names_the_steps_whose_weights_it_multiplies_by() -> None:
    packed, lowered = _lowered()
    calls = read_calls(lowered)
    weights = {
        step.name.replace(".", "_"): _values(step.args[1])
        for step in read_graph(packed).steps
        if step.op == "relax.nn.conv2d"
    }
    assert len(weights) == len(set(weights.values())) == 6
    found = {}
    given = [b.value for block in lowered["main"].body.blocks for b in block.bindings if hasattr(b.value, "op")]
    given = [call for call in given if getattr(call.op, "name_hint", "") in {kernel for kernel, _ in calls}]
    kept = [(kernel, steps) for kernel, steps in calls if kernel != "concatenate"]  # its inputs lie in its output
    assert [call.op.name_hint for call in given] == [kernel for kernel, _ in kept] and len(kept) == len(calls) - 1
    for (_, steps), call in zip(kept, given, strict=True):
        constants = {_values(c.numpy()) for argument in call.args if (c := constant_value(argument)) is not None}
        for step in set(steps) & weights.keys():
            assert weights[step] in constants, step
            found[step] = call
    assert found.keys() == weights.keys()
    counts = Counter(step for _, steps in calls for step in steps)
    assert set(counts.values()) == {1}, "no step is computed twice"


def test_the_plan_keeps_the_steps_and_the_memory_of_each_call() -> None:
    _, lowered = _lowered()
    plan = plan_of(lowered, host_backend().device_program)
    summary = summarize_plan(plan, read_calls(lowered))
    assert [call.kernel for call in summary.calls] == [step.kernel for step in plan.steps]
    assert all(call.steps for call in summary.calls if "conv2d" in call.kernel)
    assert max(call.live_bytes for call in summary.calls) <= summary.arena_bytes
    # The input of three branches and their outputs are needed at once: four images of 32 channels in float32.
    assert max(call.live_bytes for call in summary.calls) >= 4 * 32 * 8 * 8 * 4
    assert summary.constant_bytes >= sum(array.nbytes for array in plan.constants)


def test_a_call_that_the_plan_lacks_does_not_shift_the_others() -> None:
    _, lowered = _lowered()
    plan, calls = plan_of(lowered, host_backend().device_program), read_calls(lowered)
    more = [calls[0], ("removed", ("gone",)), *calls[1:]]
    assert summarize_plan(plan, more) == summarize_plan(plan, calls)
    fewer = summarize_plan(plan, calls[1:])
    assert fewer.calls[0].steps == () and fewer.calls[1:] == summarize_plan(plan, calls).calls[1:]
