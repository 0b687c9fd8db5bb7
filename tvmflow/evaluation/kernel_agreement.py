"""Which kernel of a network goes wrong first on a device: its outputs beside those of the same kernels on this machine's CPU."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.backends.backend import Backend
from tvmflow.backends.cpu import host_backend
from tvmflow.building.library import Scheduled, compile_lowered, machine_of
from tvmflow.building.lower import lower
from tvmflow.building.self_contained import Network, write_network
from tvmflow.devices.session import Arrays, DeviceSession
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.ir_files import load_module
from tvmflow.ir.tvm_names import tuple_type, type_of
from tvmflow.passes import run_pass
from tvmflow.passes.schedule_kernels import ScheduleKernels

_MOST_OUTPUTS = 48  # of a library that an agent runs
_MOST_ERROR = 0.25  # of a kernel, whatever the bound of the outputs: zeros in place of values are 1 off


@dataclass(frozen=True)
class KernelAgreement:
    """error: the largest of all samples, relative to the kernel's largest output on the CPU; inf where the device has no number.

    varies: its outputs differ between the samples; where they do not, they say little.
    """

    kernel: str
    error: float
    varies: bool


@dataclass(frozen=True)
class NetworkAgreement:
    """How all kernels of a network agree. bound: up to which error they do; samples: so many inputs."""

    kernels: tuple[KernelAgreement, ...]
    bound: float
    samples: int

    @property
    def first(self) -> KernelAgreement | None:
        """Return the first kernel that differs."""
        return next((one for one in self.kernels if one.error > self.bound), None)

    def to_json(self) -> dict[str, Any]:
        """Return the agreement as scorecards have it; an error that is no number is None."""
        errors = [one.error for one in self.kernels]
        first = self.first
        return {
            "kernels": len(errors), "samples": self.samples, "bound": self.bound, "largest_error": _number(max(errors, default=0.0)),
            "first": {"kernel": first.kernel, "error": _number(first.error)} if first else None,
        }  # fmt: skip


def _number(error: float) -> float | None:
    return error if np.isfinite(error) else None


@dataclass(frozen=True)
class Built:
    """What stages left of a network. packed: the folder of graph_pack; best: best.json of tune; bound: build.max_relative_error."""

    packed: Path
    best: Path
    bound: float


def network_agreement(
    built: Built, golden: Arrays, batch: int, backend: Backend, session: DeviceSession, random: int = 2
) -> NetworkAgreement:
    """Compare on the first golden inputs, and on as many random ones, which have their values in another order. Raises StageError, DeviceError."""
    best = json.loads(built.best.read_text(encoding="utf-8"))
    is_for_it = best["device_kind"] == backend.kernel_kind
    records = {one["workload"]: one for one in best["records"] if is_for_it}
    lowered = lower(load_module(built.packed), backend, winograd=best["winograd"] if is_for_it else {})
    draw = np.random.default_rng(0)
    first = tuple(x[:batch] for x in golden)
    samples = [first] + [tuple(draw.permutation(x.reshape(-1)).reshape(x.shape) for x in first) for _ in range(random)]
    found = kernel_agreement(lowered, backend, records, samples, session)
    return NetworkAgreement(tuple(found), min(built.bound, _MOST_ERROR), len(samples))


def kernel_agreement(
    lowered: Any, backend: Backend, best: dict[str, Any], samples: Sequence[Arrays], session: DeviceSession
) -> list[KernelAgreement]:
    """Run a module of kernels on a device and here, with all that its kernels compute; return how they agree, in the order of the calls.

    best: workload key -> tuning record; samples: inputs of one run each. Raises StageError, DeviceError.
    """
    names = with_all_outputs(lowered)[1]
    found: list[KernelAgreement] = []
    for first in range(0, len(names), _MOST_OUTPUTS):
        kept = slice(first, first + _MOST_OUTPUTS)
        module = with_all_outputs(lowered, kept)[0]
        runs = [*zip(_on_device(module, backend, best, samples, session), _here(module, samples), strict=True)]
        for at, name in enumerate(names[kept]):
            theirs, ours = ([run[side][at] for run in runs] for side in (0, 1))
            error = max(_error(a, b) for a, b in zip(theirs, ours, strict=True))
            found.append(KernelAgreement(name, error, len({one.tobytes() for one in ours}) > 1))
    return found


def _scheduled(module: Any, backend: Backend, best: dict[str, Any]) -> Scheduled:
    step = ScheduleKernels(best, backend.template_for)
    scheduled = run_pass(step, module)
    return Scheduled(compile_lowered(scheduled, backend), list(step.choices), scheduled, backend)


def _on_device(
    module: Any, backend: Backend, best: dict[str, Any], samples: Sequence[Arrays], session: DeviceSession
) -> Iterator[Arrays]:
    kinds = [(tuple(int(x) for x in type_of(one).shape), str(type_of(one).dtype)) for one in module["main"].params]
    held = type_of(module["main"].body)
    outputs = [{"shape": [int(x) for x in one.shape], "dtype": str(one.dtype)} for one in held.fields]
    inputs = tuple(TensorSpec(f"input {at}", *kind) for at, kind in enumerate(kinds))
    names = tuple(f"output {at}" for at in range(len(outputs)))
    with tempfile.TemporaryDirectory(prefix="tvmflow-kernels-") as folder:
        path = Path(folder) / "kernels.so"
        network = Network("kernels@device:any", inputs, names, backend.target.threads)
        write_network(path, _scheduled(module, backend, best), network, backend.target.compiler)
        model = session.network(session.upload(path), path.parent, outputs)
        for sample in samples:
            model.set_inputs(*sample)
            model.invoke()
            yield model.outputs()


def _here(module: Any, samples: Sequence[Arrays]) -> Iterator[Arrays]:
    run = machine_of(_scheduled(module, host_backend(), {}).executable)
    for sample in samples:
        yield run(sample)


def _error(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest expected number."""
    a, b = (np.asarray(one, np.float64) for one in (found, expected))
    if a.shape != b.shape or not np.isfinite(a[np.isfinite(b)]).all():
        return float("inf")
    whole = np.isfinite(b)
    largest = float(np.abs(b[whole]).max(initial=0.0))
    return float(np.abs(a - b)[whole].max(initial=0.0)) / max(largest, 1e-30)


def with_all_outputs(lowered: Any, kept: slice = slice(None)) -> tuple[Any, list[str]]:
    """Return a module of kernels whose main returns what each of them computes, and the kernels' names in this order; kept: of all."""
    import tvm
    from tvm import relax

    plain: Any = relax.transform.ToNonDataflow()(lowered)
    main = plain["main"]
    names: list[str] = []
    values: list[Any] = []
    for block in main.body.blocks:
        for binding in block.bindings:
            if not _calls_a_kernel(binding.value):
                continue
            names.append(str(binding.value.args[0].name_hint))
            values.append(binding.var)
    flat: list[tuple[str, Any]] = []
    for name, variable in zip(names, values, strict=True):
        parts = getattr(type_of(variable), "fields", None)
        members = [variable] if parts is None else [relax.TupleGetItem(variable, at) for at in range(len(parts))]
        flat += [(name, member) for member in members]
    held = [held for variable in values for held in getattr(type_of(variable), "fields", [type_of(variable)])]
    flat, returned = flat[kept], tuple_type(held[kept])
    body = relax.SeqExpr(main.body.blocks, relax.Tuple([member for _, member in flat]))
    function = relax.Function(main.params, body, returned, main.is_pure, main.attrs)
    functions = {variable: held for variable, held in plain.functions.items() if variable.name_hint != "main"}
    made = tvm.IRModule({**functions, plain.get_global_var("main"): function}, attrs=plain.attrs)
    for step in (relax.transform.Normalize(), relax.transform.DeadCodeElimination(["main"])):
        made = step(made)
    return made, [name for name, _ in flat]


def _calls_a_kernel(value: Any) -> bool:
    return str(getattr(getattr(value, "op", None), "name", "")) == "relax.call_tir"
