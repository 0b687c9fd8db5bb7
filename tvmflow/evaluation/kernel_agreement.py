"""Find the first kernel whose output on a device differs from the same kernel on this machine's CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.backends.backend import Backend
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import make_runner, schedule_lowered
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.devices.gpu.quarantine import DifferingKernel
from tvmflow.devices.session import Arrays, DeviceSession
from tvmflow.evaluation.scorecard import GpuAgreement
from tvmflow.frontends.source_model import OutputSpec, TensorSpec, batch_at, read_description
from tvmflow.ir.relax.serialization import load_module
from tvmflow.ir.tir.kernel_schedules import BestSchedules, Schedule
from tvmflow.ir.tvm_compat import IRModule, operator_of, tuple_type, type_of
from tvmflow.support.files import load_arrays
from tvmflow.support.json_values import read_json
from tvmflow.support.temporary import temporary_folder

_MOST_OUTPUTS = 48  # outputs of a library that an agent runs
_MOST_ERROR = 0.25  # per kernel, whatever the bound of the outputs: all zeros have an error of 1


@dataclass(frozen=True)
class KernelAgreement:
    """error: the largest over all samples, relative to the kernel's largest output on the CPU; inf for non-finite
    values.

    varies: its outputs differ between the samples; constant outputs are a weak test.
    """

    kernel: str
    error: float
    varies: bool


@dataclass(frozen=True)
class NetworkAgreement:
    """The agreement of all kernels of a network. bound: the largest error that agrees; samples: number of inputs."""

    kernels: tuple[KernelAgreement, ...]
    bound: float
    samples: int

    @property
    def first(self) -> KernelAgreement | None:
        """Return the first kernel that disagrees."""
        return next((one for one in self.kernels if one.error > self.bound), None)

    @property
    def summary(self) -> GpuAgreement:
        """Return the agreement for the scorecard."""
        largest, first = max((one.error for one in self.kernels), default=0.0), self.first
        differing = DifferingKernel(first.kernel, _number(first.error)) if first else None
        return GpuAgreement(len(self.kernels), self.samples, self.bound, _number(largest), differing)


def _number(error: float) -> float | None:
    return error if np.isfinite(error) else None


@dataclass(frozen=True)
class BuiltNetwork:
    """The stage outputs of a network. packed, fetched: folders of graph_pack and fetch; best: best.json of tune; bound:
    build.max_relative_error.
    """

    packed: Path
    best: Path
    fetched: Path
    bound: float


def network_agreement(
    built: BuiltNetwork, backend: Backend, session: DeviceSession, random: int = 2
) -> NetworkAgreement:
    """Compare on the first golden inputs and `random` permutations of their values. Raises StageError, DeviceError."""
    schedules, winograd = read_json(BestSchedules, built.best).on(backend.kernel_kind)
    lowered = lower(load_module(built.packed, is_packed=True), backend, winograd=winograd)
    draw, batch = np.random.default_rng(0), read_description(built.fetched).batch
    first = batch_at(load_arrays(built.fetched / "golden.npz", "x"), 0, batch)
    samples = [first] + [tuple(draw.permutation(x.reshape(-1)).reshape(x.shape) for x in first) for _ in range(random)]
    found = kernel_agreement(lowered, backend, schedules, samples, session)
    return NetworkAgreement(tuple(found), min(built.bound, _MOST_ERROR), len(samples))


def kernel_agreement(
    lowered: IRModule, backend: Backend, best: Mapping[str, Schedule], samples: Sequence[Arrays], session: DeviceSession
) -> list[KernelAgreement]:
    """Run a module on a device and on the CPU with all intermediate tensors as outputs; return the agreement in call
    order.

    best: workload key -> schedule; samples: inputs of one run each. Raises StageError, DeviceError.
    """
    found: list[KernelAgreement] = []
    for module, names in with_all_outputs(lowered, _MOST_OUTPUTS):
        runs = [*zip(_on_device(module, backend, best, samples, session), _here(module, samples), strict=True)]
        for at, name in enumerate(names):
            theirs, ours = ([run[side][at] for run in runs] for side in (0, 1))
            error = max(_error(a, b) for a, b in zip(theirs, ours, strict=True))
            found.append(KernelAgreement(name, error, len({one.tobytes() for one in ours}) > 1))
    return found


def _on_device(
    module: IRModule, backend: Backend, best: Mapping[str, Schedule], samples: Sequence[Arrays], session: DeviceSession
) -> Iterator[Arrays]:
    kinds = [(tuple(int(x) for x in type_of(one).shape), str(type_of(one).dtype)) for one in module["main"].params]
    held = type_of(module["main"].body)
    outputs = tuple(
        OutputSpec(f"output {at}", tuple(int(x) for x in one.shape), str(one.dtype))
        for at, one in enumerate(held.fields)
    )
    inputs = tuple(TensorSpec(f"input {at}", *kind) for at, kind in enumerate(kinds))
    names = tuple(output.name for output in outputs)
    with temporary_folder("kernels") as folder:
        path = Path(folder) / "kernels.so"
        network = Network("kernels@device:any", inputs, names, backend.target.threads)
        write_network(path, schedule_lowered(module, backend, best), network, backend.target.compiler)
        model = session.network(session.upload(path), path.parent, outputs)
        for sample in samples:
            model.set_inputs(*sample)
            model.invoke()
            yield model.outputs()


def _here(module: IRModule, samples: Sequence[Arrays]) -> Iterator[Arrays]:
    run = make_runner(schedule_lowered(module, host_backend(), {}).executable)
    for sample in samples:
        yield run(sample)


def _error(found: Any, expected: Any) -> float:
    """Return the largest difference relative to the largest expected number."""
    a, b = (np.asarray(one, np.float64) for one in (found, expected))
    if a.shape != b.shape or not np.isfinite(a[np.isfinite(b)]).all():
        return float("inf")
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0.0))
    return float(np.abs(a - b)[finite].max(initial=0.0)) / max(largest, 1e-30)


def with_all_outputs(lowered: IRModule, most: int) -> Iterator[tuple[Any, list[str]]]:
    """Yield modules whose main functions return the outputs of all kernels, each tensor once, with the kernels' names.

    most: number of outputs per module.
    """
    plain: Any = relax.transform.ToNonDataflow()(lowered)
    found: list[tuple[str, Any, Any]] = []  # kernel, tensor, its type
    for block in plain["main"].body.blocks:
        for binding in block.bindings:
            if operator_of(binding.value) != "relax.call_tir":
                continue
            name, held = str(binding.value.args[0].name_hint), type_of(binding.var)
            parts = getattr(held, "fields", None)
            if parts is None:
                found.append((name, binding.var, held))
            else:
                found += [(name, relax.TupleGetItem(binding.var, at), part) for at, part in enumerate(parts)]
    for first in range(0, len(found), most):
        names, tensors, kinds = zip(*found[first : first + most], strict=True)
        yield _with_outputs(plain, tensors, kinds), list(names)


def _with_outputs(mod: IRModule, tensors: Sequence[Any], kinds: Sequence[Any]) -> Any:
    """Return a module whose main returns these tensors instead of its outputs, without dead code."""
    main = mod["main"]
    body = relax.SeqExpr(main.body.blocks, relax.Tuple(list(tensors)))
    function = relax.Function(main.params, body, tuple_type(list(kinds)), main.is_pure, main.attrs)
    functions = {variable: held for variable, held in mod.functions.items() if variable.name_hint != "main"}
    module = tvm.IRModule({**functions, mod.get_global_var("main"): function}, attrs=mod.attrs)
    for step in (relax.transform.Normalize(), relax.transform.DeadCodeElimination(["main"])):
        module = step(module)
    return module
