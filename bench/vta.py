"""Measure VTA: counters of both modes beside the published ones, simulator speed and memory, compile time.

python -m bench.vta                published counters, and ours for the same region with made-up scales of one size
python -m bench.vta --quantized    what the quantizer's choice of scales costs: micro-ops, ALU, SQNR of the outputs
"""

from __future__ import annotations

import argparse
import resource
import time
from statistics import median
from typing import Any

import numpy as np

from bench.quantizers import seeded
from tvmflow.config.stage_params import VtaInt8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_vta
from tvmflow.quantization.report import sqnr_db
from tvmflow.vta.compiler.compiler import MODES, apply_mode, compile_region
from tvmflow.vta.compiler.partition import split
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import Conv, Region, Sum, Tail, pack, run_region, unpack
from tvmflow.vta.machine.counters import Counters, count, estimate
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.runtime.device import SimulatorDriver

PUBLISHED = {
    "inp_load_nbytes": 5_549_568,
    "wgt_load_nbytes": 12_763_136,
    "acc_load_nbytes": 6_051_840,
    "uop_load_nbytes": 22_864,
    "out_store_nbytes": 2_433_536,
    "gemm_counter": 6_623_232,
    "alu_counter": 699_328,
}
RUNS = 7


def resnet18(chance: np.random.Generator) -> Region:
    """Return everything between max pool and global pool of ResNet-18, with random weights."""
    operators: list[Any] = []
    value, channels = "x", 64

    def conv(name: str, data: str, inputs: int, outputs: int, kernel: int, stride: int, low: int) -> None:
        weight = chance.integers(-128, 128, (outputs, inputs, kernel, kernel), dtype=np.int8)
        bias = chance.integers(-(2**14), 2**14, outputs).astype(np.int32)
        tail = Tail(bias, 0, 1 << 10, 11, low, 127)
        operators.append(Conv(name, data, weight, tail, (stride, stride), (kernel // 2,) * 4))

    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride, name = (2 if stage and not block else 1), f"stage{stage}_{block}"
            conv(f"{name}_conv1", value, channels, width, 3, stride, 0)
            conv(f"{name}_conv2", f"{name}_conv1", width, width, 3, 1, -127)
            shortcut = value
            if stride == 2:
                shortcut = f"{name}_down"
                conv(shortcut, value, channels, width, 1, 2, -127)
            operators.append(Sum(f"{name}_add", (f"{name}_conv2", shortcut), (0, 0), Tail(low=0)))
            value, channels = f"{name}_add", width
    return Region({"x": (1, 64, 56, 56)}, tuple(operators), (value,))


def quantized() -> None:
    """Quantize a seeded ResNet-18 with both kinds of scales and count what VTA has to do for it."""
    network, calibration, evaluation = seeded("resnet18")
    module = canonicalize(ExportedModel(network, one_input("x", (1, 3, 224, 224))).to_relax())
    reference = np.concatenate([run_graph(read_graph(module), x[None]) for x in evaluation.x[:8]])
    print(f"{'ResNet-18, scales':20}{'mode':>12}{'uop bytes':>14}{'ALU':>14}{'cycles':>14}{'SQNR':>10}")
    for scale in ("calibrated", "global"):
        graph = read_graph(quantize_vta(module, calibration.x[:8], None, VtaInt8Params(scale=scale))[0])
        outputs = np.concatenate([run_graph(graph, x[None]) for x in evaluation.x[:8]])
        db = sqnr_db(reference - reference.mean(axis=0), outputs - reference.mean(axis=0))
        config = VtaConfig()
        (region,) = split(graph, config).regions
        for mode in MODES:
            program = compile_region(config, region, mode)
            counters = sum((count(config, launch.instructions) for launch in program.launches), Counters())
            cycles = sum(estimate(config, launch).total for launch in program.launches)
            print(
                f"{scale:20}{mode:>12}{counters.uop_load_nbytes:>14,}{counters.alu_counter:>14,}{cycles:>14,}{db:>10.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantized", action="store_true")
    if parser.parse_args().quantized:
        quantized()
        return
    config, chance = VtaConfig(), np.random.default_rng(0)
    region = resnet18(chance)
    x = chance.integers(-127, 128, (1, 64, 56, 56)).astype(np.int8)
    rows: dict[str, dict[str, float]] = {}
    for mode in MODES:
        started = time.perf_counter()
        program = compile_region(config, region, mode)
        compile_s = time.perf_counter() - started
        assert lint(program) == []
        counters = sum((count(config, launch.instructions) for launch in program.launches), Counters())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run = SimulatorDriver().load(program)
        times = []
        for _ in range(RUNS):
            started = time.perf_counter()
            (output,) = run.run([pack(config, x)])
            times.append(time.perf_counter() - started)
        expected = run_region(apply_mode(region, mode), {"x": x})[region.outputs[0]]
        assert np.array_equal(unpack(output, expected.shape), expected)
        rows[mode] = {
            **counters.to_json(),
            "five bytes": counters.five_bytes,
            "cycles": sum(estimate(config, launch).total for launch in program.launches),
            "compile_s": compile_s,
            "simulate_s": median(times),
            "grown_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        }
    PUBLISHED["five bytes"] = sum(value for name, value in PUBLISHED.items() if name.endswith("nbytes"))
    print(f"{'ResNet-18, ' + config.name:40}{'published':>14}" + "".join(f"{mode:>14}" for mode in MODES))
    for name in rows[MODES[0]]:
        values = [rows[mode][name] for mode in MODES]
        text = "".join(f"{v:>14,.0f}" if v == int(v) else f"{v:>14.2f}" for v in values)
        print(f"{name:40}{PUBLISHED.get(name, '-'):>14}{text}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"outputs exact in both modes; peak memory of the process {peak:.0f} MB, TVM and both programs included")


if __name__ == "__main__":
    main()
