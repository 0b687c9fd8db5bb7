"""Generate report data: cells of several models, devices and precisions, with many months of history.

What a page must get right is in them: ties, wins and losses, an unsteady latency, a simulated device, missing parts,
and names that try to be more than names.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

from tvmflow.evaluation.machine_state import APART
from tvmflow.evaluation.regression import BETWEEN
from tvmflow.evaluation.roofline import Work
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.frontends.source_model import WeightedLayer
from tvmflow.report.execution import Start
from tvmflow.report.layers import Call, CellLayers, LayerTime
from tvmflow.report.processors import SideBySide, side_by_side
from tvmflow.tracking.mlflow.links import PAGES_OF_MODELS, run_url

HOSTILE = "</script><img src=x onerror=alert(1)>&amp;'\"`${1}\u2028"
FORMS = ("source", "imported", "quantized", "built")
STEPS = tuple(f"{a}-{b}" for a, b in itertools.pairwise(FORMS))
DAY_MS = 86_400_000


BADGE = "others used 40%"


def latency(median_ms: float, wide: float = 0.01, badges: tuple[str, ...] = ()) -> dict[str, Any]:
    numbers = {f"{name}_ms": median_ms for name in ("median", "mean", "p90", "min", "max", "std")}
    numbers |= {"low_ms": median_ms * (1 - wide), "high_ms": median_ms * (1 + wide)}
    far = {
        "round_trip_ns": 340.0,
        "value": 2 * median_ms,
        "low": 1.9 * median_ms,
        "high": 2.1 * median_ms,
        "share": 0.25,
    }
    state = {"round_trip_ns": 60.0, "elsewhere": [far], "turns": 60, "undisturbed": 45}
    turns = [{"median_ms": median_ms * (1 + 0.003 * (at % 7)), "counts": True, "why": None} for at in range(40)]
    turns += [
        {"median_ms": 1.2 * median_ms, "counts": False, "why": "waited"},
        {**turns[0], "median_ms": 9 * median_ms},
    ]
    return {**numbers, **state, "runs": 300, "badges": list(badges), "is_time": True, "by_turn": turns}


def advantage(factor: float, wide: float) -> dict[str, Any]:
    low, high = factor * (1 - wide), factor * (1 + wide)
    state = {"badges": [], "round_trip_ns": 60.0, "elsewhere": [], "reason": None}
    return {"times_faster": factor, "low": low, "high": high, "rounds": 60, **state}


def card(
    name: str, median_ms: float, badges: tuple[str, ...] = (), part: dict[str, Any] | None = None
) -> dict[str, Any]:
    agreement = {"top1_agreement": 0.9975, "max_relative_error": 3e-5, "sqnr_db": 72.0, "samples": 400}
    agreement |= {"max_absolute_error": 3e-5, "spread": 1.0}
    peers = (
        {}
        if part
        else {"onnxruntime": latency(1.3 * median_ms), "source": latency(0.7 * median_ms), "tied": latency(median_ms)}
    )
    bounds = {
        "operations": {"float32": 1e9 * median_ms},
        "constant_bytes": 4_000_000,
        "ceilings": {"operations": {"float32": 5e11}, "read": 1e11},
        "arithmetic_ms": 0.6 * median_ms,
        "memory_ms": 0.04,
        "least_ms": 0.6 * median_ms,
        "share": 0.6,
        "reason": None,
        "kernels": [
            {
                "name": f"fused_conv2d_nchwc{at}_add_relu",
                "ms": median_ms / (at + 2),
                "least_ms": median_ms / (at + 2) / 4,
                "share": 0.25,
            }
            for at in range(3)
        ],
    }
    return ({} if part else {"bounds": bounds}) | {
        "cell": name,
        "device": {"key": "local-cpu", "kind": "cpu-znver4-t2", "threads": 2},
        "batch": 1,
        "coverage": 1.0,
        "latency": {"compute": latency(median_ms, badges=badges), "copy_in": latency(0.05), "copy_out": latency(0.04)},
        "peers": peers,
        "cold_start_ms": [9.0, 8.0, 10.0],
        "kernels_ms": {} if part else {"fused_conv2d_nchwc0_add_relu": 0.5 * median_ms, "max_pool2d": 0.7 * median_ms},
        "advantages": {}
        if part
        else {"onnxruntime": advantage(1.3, 0.05), "source": advantage(0.7, 0.05), "tied": advantage(1.01, 0.05)},
        "agreement": agreement,
        "agreement_by_step": dict.fromkeys(STEPS, agreement),
        "library_bytes": 11_000_000,
        "accuracy": {**dict.fromkeys(FORMS, 0.9925), "samples": 400},
        "part": part,
        "quantization": _quantization(),
    }


def _quantization() -> dict[str, Any]:
    layers = [
        {
            "name": f"conv{at}",
            "kind": "conv",
            "form": "int8",
            "sqnr_db": 40.0 - at,
            "total_sqnr_db": 35.0 - at,
            "scale": 0.01,
            "zero_point": 3,
            "clipped": 1e-4,
        }
        for at in range(4)
    ]
    return {
        "layers": layers,
        "output_sqnr_db": 39.0,
        "samples": 200,
        "worst": "conv3",
        "moved_to_float": [HOSTILE],
        "goal_met": True,
    }


def history(name: str, first_ms: float) -> list[dict[str, Any]]:
    """One measurement without an interval, a tie, a faster TVM, something slower, and a faster TVM again."""
    rows = []
    steps = ((1.0, "0.26.0"), (1.0, "0.26.0"), (1.005, "0.26.0"), (0.8, "0.27.0"), (0.88, "0.27.0"), (0.6, "0.28.0"))
    for at, (factor, tvm) in enumerate(steps):
        median, kept = first_ms * factor, at != 0
        roles = ["champion"] if at == 3 else ["challenger"] if at == 5 else []
        run_id = hashlib.md5(f"{name} {at}".encode(), usedforsecurity=False).hexdigest()
        rows.append(
            {
                "cell": name,
                "run_id": run_id,
                "experiment_id": "3",
                "url": run_url("3", run_id),
                "time_ms": 1_780_000_000_000 + 40 * at * DAY_MS,
                "when": f"2026-0{at + 1}-11 10:00",
                "tvm": tvm,
                "device": "cpu-znver4-t2",
                "unit": "host-1",
                "build": "",
                "accuracy": "99.25%",
                "latency": f"{median:.3g} ms",
                "badges": "",
                "round_trip_ns": 60.0,
                "latency_ms": median,
                "low_ms": 0.99 * median if kept else None,
                "high_ms": 1.01 * median if kept else None,
                "library_bytes": 11e6,
                "max_relative_error": 3e-5,
                "commit": "0123456789abcdef",
                "sha256": f"{at}" * 64,
                "library": f"{at}" * 12,
                "version_number": str(at + 1),
                "roles": roles,
                "version": f"{at + 1} {' '.join(roles)}".strip(),
                "changed": [f"tvm: {steps[at - 1][1]} -> {tvm}", HOSTILE]
                if at and steps[at - 1][1] != tvm
                else ["nothing: measured again"]
                if at
                else [],
            }
        )
    return rows


def workloads(scale: float) -> list[dict[str, Any]]:
    rows = []
    for at in range(20):
        best, flops = scale / (at + 1), 2e8 / (at + 1)
        rows.append(
            {
                "name": f"conv2d_nchwc_add_relu_multiply 1x{at + 1}x56x56x16",
                "key": f"key{at}",
                "calls": 1 + at % 3,
                "template": "window" if at % 4 else "dot",
                "trials": 24,
                "default_ms": 2.0 * best,
                "best_ms": best,
                "total_ms": best * (1 + at % 3),
                "gflops": flops / best / 1e6 / (1 + at % 4),
                "of_best": 0.5,
                "spent_s": 3.0,
                "flops": flops,
                "dtype": "float32",
                "nbytes": 400_000 + 90_000 * at,
                "before_ms": 1.1 * best if at % 2 else None,
                "origin": ("reused", "re-measured", "re-tuned", "lost", "new")[at % 5],
            }
        )
    return sorted(rows, key=lambda row: -row["total_ms"])


def plan(name: str, median_ms: float) -> CellLayers:
    """Return four layers, of which two share a kernel and one is computed by an unknown one, and a pool."""
    labels = ("features.0.conv", "features.1.conv", HOSTILE if "digits" in name else "head.conv")
    calls = [
        Call(f"fused_conv2d_nchwc{min(at, 1)}_add_relu", label, (label,), median_ms / (at + 2), 4000 * (at + 1))
        for at, label in enumerate(labels)
    ]
    pool = Call("max_pool2d", f"pool after {labels[2]}", (), 0.01 * median_ms, 2000)
    layers = [LayerTime(WeightedLayer(call.label, "conv2d", 432), (call.kernel,), call.ms) for call in calls]
    unknown = LayerTime(WeightedLayer("classifier", "linear", 640), (), None)
    return CellLayers((*calls, pool), (*layers, unknown), 16_384)


def part() -> dict[str, Any]:
    counters = {
        f"{name}_nbytes": 4096 for name in ("inp_load", "wgt_load", "acc_load", "uop_load", "out_store", "dram")
    }
    counters |= {"gemm_counter": 12_345_678, "alu_counter": 900, "insn_count": 300}
    cycles = {"total": 10_000, "load": 4000, "compute": 9000, "store": 500, "utilization": 0.8}
    layers = [
        {
            "name": f"conv{at}",
            **counters,
            "operations": 1e6,
            "operations_per_byte": 4.0 * (at + 1),
            "gops": 5.0 * (at + 1),
            "cycles": cycles,
        }
        for at in range(5)
    ]
    return {
        "name": "1x16_i8w8",
        "mode": "optimized",
        "simulated": True,
        "estimated_ms": 0.5,
        "metrics": {},
        "counters": counters,
        "cycles": 50_000,
        "layers": layers,
        "peak_gops": 51.2,
        "peak_gbytes": 1.6,
        "five_nbytes": 20_480,
        "gemm_utilization": 0.7,
        "regions": [],
        "cpu_reasons": {"dense": HOSTILE},
    }


def cell(model: str, target: str, precision: str, median_ms: float, **more: Any) -> dict[str, Any]:
    name = f"{model}@{target}:{precision}"
    stages = ("fetch", "import_model", "quantize", "graph_pack", "tune", "build", "deploy", "evaluate")
    return {
        "model": model,
        "target": target,
        "precision": precision,
        "card": card(name, median_ms),
        "execution": {"times": dict.fromkeys(("mean", "median", "max", "min", "std"), median_ms), "start": None},
        "history": history(name, median_ms),
        "stage_s": {stage: 3.0 + at for at, stage in enumerate(stages)},
        "curve": [(at + 1, 9.0 / (at + 1)) for at in range(40)],
        "kernels": [
            {"name": f"fused_conv2d_nchwc{at}_add_relu", "workload": f"key{at}", "schedule": how}
            for at, how in enumerate(("record", "record", "default", "none"))
        ],
        "layers": plan(name, median_ms).to_json(_quantization()),
        "coverage": 0.97,
        "workloads": workloads(median_ms / 20),
        "ledger": {
            "measured": 480,
            "failures": {"compile_error": 3},
            "trials_per_minute": 61.0,
            "device_hours": 0.1,
            "saved_s": 12.0,
            "winograd_layers": [{"convolution": HOSTILE, "tile": 6, "error": 6.6e-5}],
        },
        "toolchain": {"tvm": "0.28.0", "llvm": "20"},
        "registered": name.replace("@", ".").replace(":", "."),
        "releases": [
            {"what": "promote", "version": "3", "before": None, "when": "2026-03-12", "why": HOSTILE, "done": True}
        ],
        "stages": [
            {
                "stage": stage,
                "folder": f"artifacts/{stage}/{model}",
                "address": f"./artifacts/{stage}/",
                "key": "ab" * 32,
                "seconds": 3.0,
            }
            for stage in stages
        ],
        "digests": [("build/library.so", "cd" * 32), (f"fetch/{HOSTILE}", "ef" * 32)],
        "measured": len(more.get("history", history(name, median_ms))),
        **more,
    }


def fleet() -> dict[str, Any]:
    """Return two phones, one of which got worse in two cells, and a machine."""
    phones = [{"device": "rk3399", "unit": f"phone-{x}", "cells": 2, "compared": 2, "last": "2026-11-20"} for x in "ab"]
    host = {"device": "cpu-znver4-t2", "unit": HOSTILE, "cells": 7, "compared": 7, "last": "2026-11-22", "worse": 0}
    change = {"device": "rk3399", "unit": "phone-b", "cause": "unit", "changed": ("TVM 0.26.0 -> 0.27.0", "library")}
    worse = ("latency 1.150, 1.120 to 1.180: slower", "memory 1,000 -> 2,000 bytes")
    return {
        "units": [host, phones[0] | {"worse": 0}, phones[1] | {"worse": 2}],
        "worse": [change | {"cell": f"mobilenet_v2@rk3399:{name}", "worse": worse} for name in ("float32", "int8")],
        "compared": 11,
        "suspects": (f"unit phone-b of rk3399 got worse in 2 of its 2 cells, other units did not: {HOSTILE}",),
    }


def processors() -> list[SideBySide]:
    """Return digits on a CPU and on an accelerator; a network that has no accelerator is none of them."""
    counted = part() | {"operations": 5e6, "counted": True}
    made = [
        card("digits@local-cpu:float32", 20.0),
        card("digits@vta-sim:vta_int8", 1.0, part=counted),
        card("mobilenet_v2@local-cpu:float32", 3.7),
    ]
    work = {"digits@local-cpu:float32": Work({"float32": 7e6, "int32": 1e6}, 44_000)}
    return side_by_side(map(Scorecard.from_json, made), work.get)


def report_data() -> dict[str, Any]:
    """Return what `collect` would, of nine cells and two that were never measured."""
    rows = [
        cell(model, "local-cpu", precision, ms * factor)
        for (model, ms), (precision, factor) in itertools.product(
            (("resnet50_of_a_team_with_long_names", 30.0), ("mobilenet_v2", 3.7)),
            (("float32", 1.0), ("bfloat16", 0.6), ("int8", 0.35)),
        )
    ]
    rows[0]["card"]["bounds"] = {"reason": f"busy machine (others 50%, at most 10%) {HOSTILE}"}
    board = cell("mobilenet_v2", "rk3399", "float32", 40.0)
    del board["card"]["bounds"]  # only this machine's CPU has any
    board["execution"] |= {"start": Start(900.0, 90.0, 40.0, 4.0).to_json()}
    rows.append(board)
    busy = cell(HOSTILE, "local-cpu", "float32", 1.0)
    busy["card"] = card(f"{HOSTILE}@local-cpu:float32", 1.0, (BADGE, HOSTILE))
    simulated = cell("digits", "vta-sim", "vta_int8", 1.0, history=[], workloads=[], curve=[], releases=[])
    simulated["card"] = card("digits@vta-sim:vta_int8", 1.0, part=part())
    simulated["execution"]["times"] = None
    return {
        "apart": APART,
        "between": BETWEEN,
        "cells": [*rows, busy, simulated],
        "unmeasured": [{"model": "mobilenet_v2", "target": "rk3399", "precision": "int8"}],
        "fleet": fleet(),
        "processors": [one.to_json() for one in processors()],
        "forms": FORMS,
        "steps": STEPS,
        "precisions": ("float32", "float16", "float16_acc32", "bfloat16", "int8", "vta_int8"),
        "mlflow_ui": "http://127.0.0.1:5000",
        "mlflow_pages": PAGES_OF_MODELS,
        "mlflow_command": "mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db",
        "written": "2026-11-22 10:00 UTC",
        "version": "0.1.0",
    }
