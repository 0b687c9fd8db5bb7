"""evaluate: run the evaluation set on the device, measure latency there and beside peers.

In:  the built library, the evaluation set, the source framework's answers
Out: scorecard.json (everything), metrics.json (the numbers, for DVC), confusion.csv, latency.csv
"""

from __future__ import annotations

import csv
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from tasks.device import device_limits, session_of
from tasks.golden import read_description
from tasks.run_alone import main
from tvmflow.devices.session import DeviceSession, RemoteModel
from tvmflow.errors import AgreementError
from tvmflow.evaluation.agreement import compare
from tvmflow.evaluation.latency import Latency, LatencyRules, measure, timed
from tvmflow.evaluation.peers import measure_peers
from tvmflow.frontends.source_model import batch_at, run_in_batches
from tvmflow.frontends.table import TOOLS, load_source
from tvmflow.params import Cell
from tvmflow.sources.datasets import Samples
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import from_json, resolve
from tvmflow.toolchain import probe
from tvmflow.workspace import Workspace

Array = np.ndarray[Any, Any]


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    entry, block = workspace.params.targets[cell.target], workspace.params.evaluate
    return {
        "target": resolve(entry).to_json(),
        "device_key": entry.device.key,
        "transport": entry.device.transport,
        "host_cpu": probe()["host_cpu"],
        "framework": workspace.params.models[cell.model].framework,
        **block.model_dump(mode="json"),
    }


def _toolchain(settings: dict[str, Any]) -> tuple[str, ...]:
    return ("tvm", "ffi", "onnxruntime", *TOOLS[settings["framework"]])


def evaluate(context: StageContext) -> dict[str, Any]:
    """Measure everything; returns the scorecard."""
    target, samples = from_json(context.settings["target"]), Samples.load(context.inputs["fetch"] / "evaluation.npz")
    library = context.inputs["build"] / "library.so"
    rules = _rules(context.settings)
    manifest = json.loads((context.inputs["build"] / "manifest.json").read_text(encoding="utf-8"))
    batch = manifest["input"]["shape"][0]
    first = batch_at(samples.x, 0, batch)
    with session_of(context.limits, target) as session:
        cold = _cold_starts(session, library, first, context.settings["cold_starts"])
        model = session.model(library)
        context.progress("measuring latency", 0, 0)
        latency = _device_latency(model, first, rules)
        answers = run_in_batches(
            model, samples.x, batch, lambda done, total: context.progress("evaluating on the device", done, total)
        )
        vta = _vta(manifest, session) if target.vta is not None else None
    context.progress("measuring peers", 0, 0)
    peers = _peers(context, first, target.threads, rules)
    card = {
        "cell": str(context.cell),
        "device": {"key": context.settings["device_key"], "kind": target.device_kind, "threads": target.threads},
        "batch": batch,
        "library_bytes": library.stat().st_size,
        "coverage": manifest["coverage"],
        "cold_start_ms": cold,
        "latency": {name: found.to_json() for name, found in latency.items()},
        "peers": {name: found.to_json() for name, found in peers.items()},
        **_quality(context, answers, samples),
        "vta": vta,
        "quantization": json.loads((context.inputs["quantize"] / "quantization.json").read_text(encoding="utf-8")),
    }
    _write(context.out, card, answers, samples)
    return {"steady": card["latency"]["compute"]["steady"]}


def _vta(manifest: dict[str, Any], session: DeviceSession) -> dict[str, Any]:
    """Return what the program costs, once the device has counted the same. Raises AgreementError when it has not."""
    counted, planned = session.vta_counters(), manifest["vta"]["counters"]
    different = [name for name, value in planned.items() if counted.get(name) != value]
    if different:
        raise AgreementError(
            f"evaluate: the accelerator counted { ({name: counted.get(name) for name in different}) }",
            f"what the program must cost: { ({name: planned[name] for name in different}) }",
            "the device runs another program, or its simulator is wrong",
        )
    return {**manifest["vta"], "runs": counted["runs"]}


def _rules(settings: dict[str, Any]) -> LatencyRules:
    names = ("warmup_runs", "min_runs", "min_seconds", "max_seconds", "max_spread")
    return LatencyRules(**{name: settings[name] for name in names})


def _device_latency(model: RemoteModel, x: Array, rules: LatencyRules) -> dict[str, Latency]:
    """Return compute on the device's clock; copy_in and copy_out on ours, through the transport."""
    model.set_input(x)
    compute = measure(model.time_runs, rules)
    copies = LatencyRules(3, min(rules.min_runs, 30), 0.1, 2.0, rules.max_spread)
    return {
        "compute": compute,
        "copy_in": measure(timed(lambda: model.set_input(x)), copies),
        "copy_out": measure(timed(model.output), copies),
    }


def _cold_starts(session: DeviceSession, library: Path, x: Array, count: int) -> list[float]:
    """Return milliseconds from 'the file is on the device' to the first answer, each with a file of its own name."""
    found = []
    for _ in range(count):
        name = session.upload(library)
        started = time.perf_counter()
        session.model_on_device(name).run(x)
        found.append((time.perf_counter() - started) * 1e3)
    return found


def _peers(context: StageContext, x: Array, threads: int, rules: LatencyRules) -> dict[str, Latency]:
    if context.settings["transport"] != "local" or context.settings["target"]["vta"] is not None:
        return {}  # peers run on this machine: beside the numbers of a board, or of a simulator, they would mislead
    fetched = context.inputs["fetch"]
    source = load_source(fetched, read_description(fetched))
    onnx_file = context.inputs["import_model"] / "peer.onnx"
    return measure_peers(tuple(context.settings["peers"]), source, onnx_file, x, threads, rules)


def _quality(context: StageContext, answers: Array, samples: Samples) -> dict[str, Any]:
    forms = {**_reference(context, "import_model"), **_reference(context, "quantize"), "built": answers}
    steps = list(forms.items())
    found: dict[str, Any] = {
        "agreement": compare(answers, forms["source"]).to_json(),
        "agreement_by_step": {
            f"{before}-{after}": compare(b, a).to_json() for (before, a), (after, b) in itertools.pairwise(steps)
        },
        "accuracy": None,
    }
    if samples.y is not None:
        found["accuracy"] = {name: float((form.argmax(axis=1) == samples.y).mean()) for name, form in steps}
        found["accuracy"]["samples"] = len(samples.y)
    return found


def _reference(context: StageContext, stage: str) -> dict[str, Array]:
    names = {"import_model": {"source": "evaluation", "imported": "imported"}, "quantize": {"quantized": "evaluation"}}
    with np.load(context.inputs[stage] / "reference.npz", allow_pickle=False) as data:
        return {form: np.asarray(data[name]) for form, name in names[stage].items()}


def _write(out: Path, card: dict[str, Any], answers: Array, samples: Samples) -> None:
    (out / "scorecard.json").write_text(json.dumps(card, sort_keys=True, indent=1), encoding="utf-8")
    metrics: dict[str, Any] = {
        "latency_ms": card["latency"]["compute"]["median_ms"],
        "library_bytes": card["library_bytes"],
        "top1_agreement": card["agreement"]["top1_agreement"],
        "max_relative_error": card["agreement"]["max_relative_error"],
    }
    if card["vta"]:
        if card["vta"]["simulated"]:
            del metrics["latency_ms"]  # the simulator's own time says nothing
        metrics |= {f"vta_{name}": value for name, value in card["vta"]["counters"].items()}
        metrics |= {"vta_cycles": card["vta"]["cycles"], "vta_estimated_ms": card["vta"]["estimated_ms"]}
    if card["accuracy"]:
        metrics["accuracy"] = card["accuracy"]["built"]
    (out / "metrics.json").write_text(json.dumps(metrics, sort_keys=True, indent=1), encoding="utf-8")
    with (out / "confusion.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["actual", "predicted"])
        if samples.y is not None:
            rows.writerows(zip(samples.y.tolist(), answers.argmax(axis=1).tolist(), strict=True))
    with (out / "latency.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["what", "median_ms"])
        rows.writerow(["tvmflow", card["latency"]["compute"]["median_ms"]])
        rows.writerows([name, peer["median_ms"]] for name, peer in sorted(card["peers"].items()))


STAGE = Stage(
    name="evaluate", module="tasks.evaluate", settings=_settings, limits=device_limits, toolchain=_toolchain, run=evaluate,
    inputs={
        "build": ("library.so", "manifest.json"), "fetch": None, "import_model": ("reference.npz",),
        "quantize": ("reference.npz", "quantization.json"),
    },
)  # fmt: skip

if __name__ == "__main__":
    main("evaluate")
