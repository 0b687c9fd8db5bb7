"""Measure seconds and peak memory of importing and quantizing ResNet-50, beside ONNX Runtime's static quantizer.

    python -m bench.import_quantize [--network resnet50] [--samples 16]

Each step runs in a process of its own, whose largest resident set is the peak; loading packages and building the
network is in the row 'baseline' and in every other row. Ratios are against ONNX Runtime's row of the same run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

STEPS = ("baseline", "import", "quantize", "quantize, min-max, no corrections", "ONNX Runtime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(_step(options)))
        return
    rows = {}
    for step in STEPS:
        command = [
            sys.executable,
            "-m",
            "bench.import_quantize",
            "--network",
            options.network,
            "--samples",
            str(options.samples),
        ]
        done = subprocess.run([*command, "--step", step], capture_output=True, text=True, check=True)
        rows[step] = json.loads(done.stdout.strip().splitlines()[-1])
    peer = rows["ONNX Runtime"]
    print(
        f"{options.network}, {options.samples} calibration "
        f"images\n{'step':<36}{'seconds':>9}{'/ peer':>8}{'peak MB':>9}{'/ peer':>8}"
    )
    for step, row in rows.items():
        print(f"{step:<36}{row['s']:>9.1f}{row['s'] / peer['s']:>8.2f}{row['mb']:>9.0f}{row['mb'] / peer['mb']:>8.2f}")


def _step(options: Any) -> dict[str, float]:
    warnings.simplefilter("ignore")
    from bench.quantizers import onnxruntime_outputs, seeded
    from tvmflow.config.stage_params import Int8Params
    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.frontends.source_model import one_input
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.quantization.post_training import quantize_int8

    network, calibration, evaluation = seeded(options.network)
    model = ExportedModel(network, one_input("input", (1, 3, 224, 224)))
    samples = calibration.x[: options.samples]
    started = time.perf_counter()
    if options.step == "import":
        canonicalize(model.to_relax())
    elif options.step.startswith("quantize"):
        plain = Int8Params(observer="minmax", equalize=False, bias_correction=False, max_drop=None)
        module = canonicalize(model.to_relax())
        started = time.perf_counter()
        quantize_int8(module, samples, None, plain if "min-max" in options.step else Int8Params(max_drop=None))
    elif options.step == "ONNX Runtime":
        onnxruntime_outputs(model, samples, evaluation.x[:0], entropy=False)
    seconds = time.perf_counter() - started
    return {"s": seconds, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    main()
