"""Compute the least time of networks on this machine by arithmetic and weights, and the share that untuned networks
reach.

    python -m bench.bounds [NAME ...] [--precision float32] [--threads 2] [--kernels 5]

Ceilings are measured here, as stage `evaluate` does (tvmflow/evaluation/roofline.py, x86 with AVX2 or more).
`arithmetic` and `memory` are the two bounds in ms; `share` is the larger one over the measured time. `kernels` is the
sum of the smallest times of the kernels: beside other work it is far below the measured time, most of all with one
thread. Below each network the kernels that lose most beside their own bound, by their smallest times.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.networks import converted
from bench.zoo import NETWORKS, network_named
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import schedule_lowered
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.evaluation.roofline import Ceilings, Work, bounds_of, kernel_bounds, measure_ceilings
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import Arrays
from tvmflow.ir.tvm_compat import return_type
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import StageError
from tvmflow.support.runtime_binding import network_binding
from tvmflow.targets.resolve import ResolvedTarget, host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.tuning.winograd_choice import choose_by_cost

_BOUNDS = {"float32": 2.0e-5, "bfloat16": 1.0e-2}
_ANY_LOAD = 1.0  # others may take all: what counts is the most of several tries
_RUNS = 30
_PROFILED = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--precision", choices=("float32", "bfloat16", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", type=int, default=5)
    options = parser.parse_args()
    target = replace(host_target(), threads=options.threads)
    speeds = measure_ceilings(target, ("float32", "bfloat16", "int8"), 0, _ANY_LOAD).operations
    print(
        f"G operations/s: {', '.join(f'{dtype} {speed / 1e9:.0f}' for dtype, speed in speeds.items())}; "
        f"{options.threads} threads"
    )
    print(f"{'network':31}{'ms':>9}{'kernels':>9}{'arithmetic':>11}{'memory':>8}{'share':>7}")
    for name in options.names:
        _show(name, speeds, target, options)


def _show(name: str, speeds: Mapping[str, float], target: ResolvedTarget, options: argparse.Namespace) -> None:
    entry = network_named(name)
    network = ExportedModel(entry.make(), entry.inputs)
    module = converted(canonicalize(network.to_relax()), entry, options.precision)
    backend = CpuBackend(target)
    packed = backend.pack(module, None)[0]
    lowered = lower(packed, backend, winograd=choose_by_cost(packed, backend, _BOUNDS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        scheduled = schedule_lowered(lowered, backend, {})
        kind = return_type(lowered["main"])
        outputs = tuple(f"output{at}" for at in range(len(kind.fields) if hasattr(kind, "fields") else 1))
        described = Network("bench@cpu:float32", entry.inputs, outputs, options.threads)
        write_network(path, scheduled, described, Command(("gcc",)))
        instance, inputs = network_binding().Network(path), entry.samples()
        times = []
        for _ in range(_RUNS):
            begin = time.perf_counter()
            instance(*inputs)
            times.append(time.perf_counter() - begin)
    work = Work.of(scheduled.kernels)
    read = measure_ceilings(target, (), work.constant_bytes, _ANY_LOAD).read
    try:
        found = bounds_of(work, ceilings := Ceilings(speeds, read), 1e3 * median(times))
    except StageError as error:
        print(f"{name:31} {error.found}", flush=True)
        return
    with instance:
        spent = _smallest_times(instance, inputs)
    print(
        f"{name:31}{1e3 * median(times):9.2f}{sum(spent.values()):9.2f}{found.arithmetic_ms:11.2f}"
        f"{found.memory_ms:8.2f}{found.share or 0:7.0%}",
        flush=True,
    )
    for row in kernel_bounds(scheduled.kernels, ceilings, spent)[: options.kernels]:
        print(
            f"  {row.name[:60]:60} {row.ms:8.3f} ms, at least {row.least_ms:8.3f} ({row.share:4.0%})",
            flush=True,
        )


def _smallest_times(instance: Any, inputs: Arrays) -> dict[str, float]:
    """Return the smallest ms of each kernel, of all of its calls in a run: others interrupt few of many runs' calls."""
    smallest: dict[str, float] = {}
    for _ in range(_PROFILED):
        instance.profile(True)
        instance(*inputs)
        took: dict[str, float] = {}
        for kernel, _calls, nanoseconds in instance.profile(False):
            took[kernel] = took.get(kernel, 0.0) + nanoseconds / 1e6
        smallest = {kernel: min(ms, smallest.get(kernel, ms)) for kernel, ms in took.items()}
    return smallest


if __name__ == "__main__":
    main()
