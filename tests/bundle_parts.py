"""Build one small network, once per session, with the stage outputs that a bundle is made from."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.manifests import manifest_of
from tests.scorecards import CELL as CELL
from tests.scorecards import scorecard
from tvmflow.backends.apple import AppleBackend
from tvmflow.backends.cpu import CpuBackend, host_backend
from tvmflow.backends.manifest import MANIFEST_NAME, NetworkFile
from tvmflow.backends.wasm import WasmBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.codegen.network.runtime_sources import digest_of_runtime
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, run_in_batches
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.pipeline.record import Record
from tvmflow.setup.target_presets import presets
from tvmflow.shipping.bundle.part import Part
from tvmflow.support.files import describe_file, digest_of, save_arrays
from tvmflow.support.json_values import to_json, write_json
from tvmflow.targets.processor_flags import judged_flags
from tvmflow.targets.resolve import ResolvedTarget, host_target
from tvmflow.toolchain.compilers import Command, Ndk

SLUG = "small.local-cpu.float32"
LABELS = ("cat", "dog", "eel", "fox", "gnu")
SPEC = TensorSpec("image", (1, 3, 12, 12))
_STAGES = ("fetch", "import_model", "quantize", "graph_pack", "tune", "build", "evaluate")


def small_scheduled(mcpu: str = "host", mtriple: str = "") -> Any:
    """Return the network with its kernels compiled for a processor."""
    return _compiled(mcpu, mtriple)[0]


@functools.cache
def _compiled(mcpu: str = "host", mtriple: str = "") -> tuple[Any, Any]:
    """Return a convolution and a dense layer, compiled, and the backend."""
    backend = (
        host_backend() if mcpu == "host" else CpuBackend(replace(host_target(), mcpu=mcpu, mtriple=mtriple, mattr=()))
    )
    return build_scheduled(PackChannels(8)(_module()), backend, {}), backend


def _module() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, len(LABELS))
    )
    return canonicalize(ExportedModel(module.eval(), (SPEC,)).to_relax())


def small_part(folder: Path, labels: tuple[str, ...] = LABELS, version: str = "3") -> Part:
    """Link the network, and write the files of its stages; with other labels it is another library."""
    scheduled, backend = _compiled()
    for stage in _STAGES:
        (folder / stage).mkdir(parents=True)
    network = Network(CELL, (SPEC,), ("scores",), 2, labels)
    built = write_network(folder / "build" / "network.so", scheduled, network, Command(("gcc",)))
    (folder / "build" / "library.so").write_bytes(f"the form for TVM of {labels}".encode())
    x = np.random.default_rng(0).standard_normal((4, 3, 12, 12), dtype=np.float32)
    save_arrays(folder / "fetch" / "golden.npz", x=(x,))
    outputs = run_in_batches(OpenedNetwork(folder / "build" / "network.so", 2), (x,), 1)
    save_arrays(folder / "quantize" / "reference.npz", golden=outputs)
    return replace(written(folder, built, replace(backend.target, cc="gcc", threads=2), labels), version=version)


def android_part(folder: Path, mtriple: str) -> Part:
    """Link the network for Android with the NDK that ANDROID_NDK_HOME names, beside the golden arrays of this
    machine's.
    """
    part = small_part(folder)
    built = write_network(
        folder / "build" / "network.so",
        _compiled()[0],
        Network(CELL, (SPEC,), ("scores",), 2, LABELS),
        Ndk().command(mtriple),
    )
    target = replace(part.manifest.target, mtriple=mtriple, cc="ndk")
    return written(folder, built, target, LABELS)


def wasm_part(folder: Path, backend: WasmBackend) -> Part:
    """Link the network for WebAssembly beside the golden arrays of this machine's."""
    small_part(folder)
    scheduled = build_scheduled(PackChannels(8)(_module()), backend, {})
    network = Network(CELL, (SPEC,), ("scores",), 1, LABELS)
    built = write_network(folder / "build" / "network.so", scheduled, network, backend.target.compiler)
    return replace(written(folder, built, backend.target, LABELS), cell="small@wasm32:float32")


def processor_part(folder: Path, target: str, mcpu: str) -> Part:
    """Link the network for a processor of x86-64, with its check of the processor."""
    part, (scheduled, backend) = small_part(folder), _compiled(mcpu, "x86_64-linux-gnu")
    cell = f"small@{target}:float32"
    network = Network(cell, (SPEC,), ("scores",), 2, LABELS, flags=judged_flags(backend.target))
    built = write_network(folder / "build" / "network.so", scheduled, network, Command(("gcc",)))
    slug = cell.replace("@", ".").replace(":", ".")
    return replace(written(folder, built, backend.target, LABELS), cell=cell, slug=slug, version=part.version)


def apple_part(folder: Path, target: str, model: str = "small") -> Part:
    """Archive the network for a preset of Apple's systems beside the golden arrays of this machine's."""
    part, (scheduled, backend) = small_part(folder), _apple(target)
    cell = f"{model}@{target}:float32"
    network = Network(cell, (SPEC,), ("scores",), backend.target.threads, LABELS)
    built = write_network(folder / "build" / "network.so", scheduled, network, backend.target.compiler)
    (folder / "build" / "library.so").unlink()
    (folder / "build" / "library.so").hardlink_to(folder / "build" / "network.so")
    slug = cell.replace("@", ".").replace(":", ".")
    return replace(written(folder, built, backend.target, LABELS), cell=cell, slug=slug, version=part.version)


@functools.cache
def _apple(target: str) -> tuple[Any, AppleBackend]:
    backend = AppleBackend(AppleBackend.resolve(presets()[target].target))
    return build_scheduled(backend.pack(_module(), None)[0], backend, {}), backend


def written(folder: Path, network: NetworkFile, target: ResolvedTarget, labels: tuple[str, ...]) -> Part:
    """Write what else the stages say, and the records."""
    write_json(folder / "build" / MANIFEST_NAME, manifest_of(network=network, target=target))
    entry = {
        "framework": "torch",
        "network": "small",
        "weights": {"seeded": 0},
        "dataset": None,
        "preprocess": {
            "scale": 0.1,
            "mean": [0.0],
            "std": [1.0],
            "white": 255.0,
            "channels": "RGB",
            "fit": "crop",
            "resize": None,
            "interpolation": "bilinear",
        },
    }
    for name, value in {
        "fetch/labels.json": list(labels),
        "evaluate/scorecard.json": to_json(scorecard()),
        "fetch/source.json": to_json(SourceDescription("torch", "small", "model.safetensors", (SPEC,))),
        "graph_pack/weights.safetensors": "weights",
        "import_model/weights.safetensors": "weights",
        "tune/best.json": {},
    }.items():
        (folder / name).write_text(json.dumps(value))
    params = {"fetch": {"model": entry}, "build": {"max_relative_error": 1e-3, "runtime": digest_of_runtime()}}
    return Part(CELL, SLUG, {stage: _record(folder / stage, params.get(stage, {})) for stage in _STAGES}, folder, "3")


def _record(folder: Path, params: dict[str, Any]) -> Record:
    stage = folder.name
    recipe = {"schema": 1, "stage": stage, "params": params, "toolchain": {"tvm": "0.27"}, "code": {}, "inputs": {}}
    outputs = {path.name: describe_file(path) for path in sorted(folder.iterdir()) if path.is_file()}
    return Record(stage, CELL, digest_of(recipe), recipe, outputs, created="2026-11-22T00:00:00+00:00")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def copy_of(part: Part, folder: Path) -> Part:
    """Return a part whose files a test may change."""
    shutil.copytree(part.folder, folder)
    return Part(part.cell, part.slug, part.records, folder, part.version)
