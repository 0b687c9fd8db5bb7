"""Estimate the work of networks on Mali and Adreno GPUs that are not available.

    python -m bench.gpu_estimates [--networks NAME ...] [--precision float16_acc32] [--kernels]

Counts, with default schedules and seeded weights, no device: launches of an inference, megabytes that threads load and
store beside the least possible (inputs, weights and outputs of each kernel once), float32 values in a thread's arrays,
threads of a group beside those that TFLite's GPU delegate starts from; and what Adreno's CLML could compute. Estimates:
no time is predicted, and caches may serve much of what is asked for. --kernels: each kernel too.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from bench.launch_estimates import DELEGATE_GROUPS, LaunchEstimate, NetworkEstimate, estimate
from tvmflow.backends.registry import backend_named
from tvmflow.codegen.lower import lower
from tvmflow.config.stage_params import Int8Params, MixedOperators
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.gpu_codegen.clml import describe_clml
from tvmflow.gpu_codegen.launches import lower_for_device
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.tir.workloads import count_calls
from tvmflow.passes import run_pass
from tvmflow.passes.kernel.apply_schedules import ApplySchedules
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.networks.torch_zoo import build
from tvmflow.targets.gpu_features import GPUS
from tvmflow.targets.resolve import host_target

NETWORKS = ("resnet18", "mobilenet_v2", "squeezenet1_1")
SHAPE = (1, 3, 224, 224)
_MIXED = MixedOperators(
    low=(
        "conv2d",
        "matmul",
    ),
    high=(
        "softmax",
        "sum",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--precision", default="float16_acc32", choices=("float32", "float16", "float16_acc32"))
    parser.add_argument("--kernels", action="store_true")
    _print_estimates(parser.parse_args())


def _print_estimates(options: argparse.Namespace) -> None:
    print(f"{options.precision}, default schedules; estimates, made without a device")
    print(
        f"{'network':16}{'GPU':8}{'launches':>9}{'MB asked':>10}{'least':>8}{'ratio':>7}"
        f"{'registers':>11}{'group':>16}{'delegate':>10}{'lanes':>7}"
    )
    for name in options.networks:
        module = network_module(name, options.precision)
        for kind in DELEGATE_GROUPS:
            found = estimated(module, kind)
            print(f"{name:16}{kind:8}" + _row(found, kind))
            if options.kernels:
                _print_kernels(found)
        print(f"{'':16}CLML could compute {describe_clml(read_graph(module))}")


def network_module(name: str, precision: str) -> Any:
    model = ExportedModel(build(f"torchvision/{name}", 0).eval(), one_input("input", SHAPE))
    module = canonicalize(model.to_relax())
    if precision == "float32":
        return module
    if precision == "int8":
        samples = Samples((np.random.default_rng(0).standard_normal((4, *SHAPE[1:]), dtype=np.float32),))
        options = Int8Params(activations="int8", max_drop=0.0)
        return to_precision(module, precision, PrecisionRequest(options, samples, lambda *_: None))[0]
    return to_precision(module, precision, PrecisionRequest(_MIXED, Samples(()), lambda *_: None))[0]


def estimated(module: Any, kind: str) -> NetworkEstimate:
    """Return what a network with default schedules asks of a kind of GPU."""
    backend = backend_named("opencl")(replace(host_target(), kind="opencl", options={"software": False, "kind": kind}))
    lowered = lower(backend.pack(module, None)[0], backend)
    scheduled = run_pass(ApplySchedules({}, backend.template_for), lowered)
    return estimate(lower_for_device(scheduled, backend.tvm_target()), count_calls(lowered))


def _row(found: NetworkEstimate, kind: str) -> str:
    launches = [launch for kernel in found.kernels for launch in kernel.launches]
    registers, threads = [one.registers for one in launches], [math.prod(one.group_size) for one in launches]
    lanes = sum(one.lanes_used(GPUS[kind].warp) * one.asked_bytes for one in launches)
    return (
        f"{found.launches:9}{found.asked_bytes / 1e6:10.0f}{found.least_bytes / 1e6:8.0f}"
        f"{found.asked_bytes / found.least_bytes:7.1f}{_spread(registers):>11}{_spread(threads):>16}"
        f"{_shape(DELEGATE_GROUPS[kind]):>10}{lanes / sum(one.asked_bytes for one in launches):7.0%}"
    )


def _spread(values: list[int]) -> str:
    return f"{median(values):.0f} ({min(values)}-{max(values)})"


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _print_kernels(found: NetworkEstimate) -> None:
    for kernel in found.kernels:
        print(
            f"  {kernel.calls} x {kernel.name}: {kernel.asked_bytes / 1e6:.2f} MB asked, "
            f"{kernel.least_bytes / 1e6:.2f} least"
        )
        for launch in kernel.launches:
            print(f"    {_of_launch(launch)}")


def _of_launch(launch: LaunchEstimate) -> str:
    return (
        f"{_shape(launch.groups)} groups of {_shape(launch.group_size)}, {launch.registers} registers, "
        f"{launch.asked_bytes / 1e6:.2f} MB asked"
    )


if __name__ == "__main__":
    main()
