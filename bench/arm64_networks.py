"""Compare instructions of whole networks on an emulated arm64 processor: ours untuned, beside ncnn, MNN, LiteRT and
ONNX Runtime.

    PYTHONPATH=FOLDER:FOLDER python -m bench.arm64_networks [NAME ...] [--precision float32 float16 int8]
        [--drawn 4 --seed 7] [--peers ncnn mnn litert onnxruntime] [--caches] [--counts FILE]

A name is one of bench/zoo.py's, or torchvision/NAME, timm/NAME, each with @SIZE behind it for another image. Weights
are drawn as by He et al. 2015, batch norms have the statistics of two batches of noise. --drawn takes networks of timm
by a seed, too. PYTHONPATH has timm (which nothing here installs), and what makes the peers' files: MNN, ncnn and pnnx
(pip install --no-deps --target FOLDER MNN==3.6.1 ncnn==1.0.20261020 pnnx), and litert-torch 0.10 with what it needs.
Networks that a peer cannot take are a "-", its reason below the table.

float16 is ours with products and sums of 16 bits, MNN with its precision "low" and ncnn with fp16 arithmetic; LiteRT
and ONNX Runtime have none on CPUs. int8 is MNN's quantizer, ncnn's layers with scales by bench.ncnn_int8, both with
float16 for what is not int8, ONNX Runtime's quantizer (QDQ) and LiteRT's. The error is the largest of our outputs, to
PyTorch in float64, relative to the largest output.

--caches simulates L1 and L2 of the core (64 KiB of 4 ways, 256 KiB of 8, without prefetches; several times as slow) and
adds the MB that ours and the best peer fetch from beyond each.

Counts are kept in FILE by network, precision and version of code or peer, and only what is missing is counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.instructions import LINE_BYTES, own, samples_of, target_of, theirs, with_cpuinfo
from bench.kept_counts import OURS, PROCESSOR, SUFFIXES, Counts
from bench.side_by_side import geometric_mean
from bench.zoo import network_named
from tvmflow.devices.emulation.system import EmulatedSystem, emulated_system
from tvmflow.frontends.source_model import one_input
from tvmflow.toolchain.environments import cache_folder

NETWORKS = (
    "torchvision/resnet18",
    "torchvision/resnet50",
    "torchvision/mobilenet_v2",
    "torchvision/mobilenet_v3_large",
    "torchvision/squeezenet1_1",
    "timm/efficientnet_lite0",
    "torchvision/shufflenet_v2_x1_0",
    "timm/ghostnet_100",
    "timm/repvgg_a0",
    "torchvision/regnet_y_400mf",
    "timm/mobilenetv4_conv_small",
    "timm/mobileone_s0",
    "torchvision/densenet121",
    "yolo",
    "timm/deit_tiny_patch16_224",
    "timm/mobilevit_xs",
)
PRECISIONS = ("float32", "float16", "int8")
_SEED = 3
_CALIBRATION = 4  # samples
_LARGEST = 3_000_000_000  # multiply-adds of a network that is drawn
_LEFT_OUT = ("float16", "onnxruntime"), ("float16", "litert")  # they compute in float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="all of the table unless given")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--peers", nargs="+", choices=SUFFIXES, default=list(SUFFIXES))
    parser.add_argument("--drawn", type=int, default=0, help="so many networks of timm more")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--caches", action="store_true")
    parser.add_argument("--counts", type=Path, default=cache_folder() / "arm64" / "networks.json")
    options = parser.parse_args()
    names = [*(options.names or (() if options.drawn else NETWORKS)), *drawn(options.drawn, options.seed)]
    counts = Counts(options.counts, options.caches)
    with tempfile.TemporaryDirectory() as folder:
        system = with_cpuinfo(emulated_system(), Path(folder))
        for precision in options.precision:
            for name in names:
                _count(name, precision, options.peers, counts, system)
                print(_line(name, precision, options.peers, counts), flush=True)
    for precision in options.precision:
        print_table(names, precision, options.peers, counts)


def drawn(count: int, seed: int) -> list[str]:
    """Return names of image networks of timm, drawn by a seed."""
    if not count:
        return []
    from tvmflow.sources.networks.torch_zoo import torchvision_models

    torchvision_models()
    import timm

    rest = sorted(timm.list_models())
    np.random.default_rng(seed).shuffle(rest)
    found: list[str] = []
    for name in rest:
        size = timm.get_pretrained_cfg(name, allow_unregistered=True)
        side = size.input_size[-1] if size else 224
        if side <= 256 and _weights_of(timm, name) < 30_000_000:
            found.append(f"timm/{name}")
        if len(found) == count:
            break
    return found


def _weights_of(timm: Any, name: str) -> int:
    import torch

    with torch.device("meta"):
        try:
            return sum(one.numel() for one in timm.create_model(name).parameters())
        except (RuntimeError, NotImplementedError, ValueError):  # a network that computes while it is made
            return _LARGEST


def calibrated(name: str) -> Any:
    """Return a network with He's weights, its batch norms with the statistics of two batches of noise."""
    import torch
    from torch import nn

    network, shape = network_named(name).make().float().eval(), network_named(name).inputs[0].shape
    torch.manual_seed(_SEED)
    norms = [one for one in network.modules() if isinstance(one, nn.BatchNorm2d)]
    for one in network.modules():
        if isinstance(one, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(one.weight, nonlinearity="relu")
            if one.bias is not None:
                nn.init.zeros_(one.bias)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # of all batches alike
        norm.train()
    with torch.no_grad():
        for _ in range(2):
            network(torch.rand(4, *shape[1:]))
    return network.eval()


def _count(name: str, precision: str, peers: list[str], counts: Counts, system: EmulatedSystem) -> None:
    """Count what the file of counts lacks."""
    missing = [
        by for by in (OURS, *peers) if (precision, by) not in _LEFT_OUT and counts.get(name, precision, by) is None
    ]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as place:
        try:
            made = Made(name, precision, Path(place), calibrated(name))
        except Exception as error:
            for by in missing:
                counts.set(name, precision, by, {"failed": _first_line(error)})
            return
        for by in missing:
            try:
                found = made.ours(system, counts.caches) if by == OURS else made.theirs(by, system, counts.caches)
                found["caches"] = counts.caches
            except Exception as error:  # of any tool: the table says it
                found = {"failed": _first_line(error)}
            counts.set(name, precision, by, found)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[-1][:160]}"


class Made:
    """A network and the files made of it, in a folder."""

    def __init__(self, name: str, precision: str, folder: Path, network: Any) -> None:
        self.inputs = one_input("x", network_named(name).inputs[0].shape)
        self.precision, self.folder, self.network = precision, folder, network

    def ours(self, system: EmulatedSystem, caches: bool) -> dict[str, Any]:
        import torch

        from tvmflow.config.stage_params import DEFAULT_MIXED, Int8Params, MixedOperators
        from tvmflow.frontends.pytorch.exported_program import ExportedModel
        from tvmflow.passes.pipeline import canonicalize
        from tvmflow.quantization.precisions import PrecisionRequest, to_precision
        from tvmflow.sources.data.datasets import Samples
        from tvmflow.support.progress import silent
        from tvmflow.targets.cpu_features import activations_of
        from tvmflow.targets.resolve import Processor

        target = target_of(PROCESSOR)
        module = canonicalize(ExportedModel(self.network, self.inputs).to_relax())
        request: Int8Params | MixedOperators = DEFAULT_MIXED
        if self.precision == "int8":
            activations = activations_of(Processor(target.mcpu, target.mtriple, target.mattr))
            request = Int8Params().model_copy(update={"activations": activations})
        calibration = Samples((np.concatenate(self.samples()),))
        module = to_precision(module, self.precision, PrecisionRequest(request, calibration, silent))[0]
        found, outputs = own(system, module, PROCESSOR, PROCESSOR, caches)
        x = torch.from_numpy(samples_of(self.inputs)[0]).double()
        with torch.inference_mode():
            exact = [one.numpy() for one in torch.utils._pytree.tree_leaves(self.network.double()(x))]
        self.network.float()
        pairs = zip(outputs, exact, strict=True)
        error = max(float(np.abs(a.astype(np.float64) - b).max() / np.abs(b).max()) for a, b in pairs)
        return {"counts": [int(word) for word in found.split()], "error": error}

    def samples(self) -> list[Any]:
        draw = np.random.default_rng(10)
        return [draw.random(self.inputs[0].shape, dtype=np.float32) for _ in range(_CALIBRATION)]

    def theirs(self, by: str, system: EmulatedSystem, caches: bool) -> dict[str, Any]:
        file: Path = getattr(self, f"_{by}")()
        shape = "x".join(str(size) for size in self.inputs[0].shape)
        found = theirs(system, file, PROCESSOR, shape, half=self.precision != "float32", caches=caches)
        return {"counts": [int(word) for word in found.split()]}

    def _plain_onnx(self) -> Path:
        """Return the file that all peers but LiteRT are made from: PyTorch's tracing exporter, which they were made
        for.
        """
        import warnings

        import torch

        file = self.folder / "network.onnx"
        if not file.is_file():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given = torch.from_numpy(self.samples()[0])
                torch.onnx.export(self.network, given, str(file), dynamo=False, opset_version=17, input_names=["x"])
        return file

    def _onnxruntime(self) -> Path:
        file = self._plain_onnx()
        if self.precision != "int8":
            return file
        from bench.peers import quantized_onnx

        return quantized_onnx(file, [(x,) for x in self.samples()])

    def _ncnn(self) -> Path:
        from bench.ncnn_int8 import write_int8

        file = self._plain_onnx()
        shape = "x".join(str(size) for size in self.inputs[0].shape).replace("x", ",")
        self._run([str(_program("pnnx")), file.name, "fp16=0", f"inputshape=[{shape}]"])
        made = self.folder / "network.ncnn.param"
        return write_int8(made, [x[0] for x in self.samples()]) if self.precision == "int8" else made

    def _mnn(self) -> Path:
        file = self._plain_onnx()
        words = ["mnnconvert", "-f", "ONNX", "--modelFile", file.name, "--MNNModel", "network.mnn", "--bizCode", "x"]
        # Not by its program, which reports to its makers.
        self._run([sys.executable, "-c", f"import _tools; _tools.mnnconvert({words!r})"])
        made = self.folder / "network.mnn"
        if self.precision != "int8":
            return made
        self._write_images()
        self._run([sys.executable, "-c", "import _tools; _tools.mnnquant('network.mnn', 'int8.mnn', 'int8.json')"])
        return self.folder / "int8.mnn"

    def _write_images(self) -> None:
        from PIL import Image

        images = self.folder / "images"
        images.mkdir()
        for at, x in enumerate(self.samples()):
            Image.fromarray((255 * x[0].transpose(1, 2, 0)).astype(np.uint8)).save(images / f"{at}.png")
        height, width = self.inputs[0].shape[-2:]
        rules = {
            "format": "RGB",
            "mean": [0.0] * 3,
            "normal": [1 / 255] * 3,
            "width": width,
            "height": height,
            "path": f"{images}/",
            "used_image_num": _CALIBRATION,
            "feature_quantize_method": "KL",
            "weight_quantize_method": "MAX_ABS",
        }
        (self.folder / "int8.json").write_text(json.dumps(rules), encoding="utf-8")

    def _litert(self) -> Path:
        if not importlib.util.find_spec("litert_torch"):
            raise RuntimeError("litert-torch is not on PYTHONPATH")
        from bench.litert import write_tflite_of_torch

        file = self.folder / "network.tflite"
        samples = [[x] for x in self.samples()]
        write_tflite_of_torch(self.network, samples[0], file, samples if self.precision == "int8" else ())
        return file

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=1200, check=False)
        if done.returncode:
            raise RuntimeError(f"{words[0]} ends with {done.returncode}: {(done.stderr or done.stdout)[-160:]}")


def _program(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"{package} is not on PYTHONPATH")
    return Path(next(iter(spec.submodule_search_locations))) / package


def _best(name: str, precision: str, peers: list[str], counts: Counts) -> list[int]:
    """Return the counts of the peer with the fewest instructions, none where no peer ran."""
    found = [counts.get(name, precision, by) for by in peers]
    return min((one["counts"] for one in found if one and "counts" in one), default=[])


def _ratio(name: str, precision: str, peers: list[str], counts: Counts) -> float | None:
    ours = counts.get(name, precision, OURS)
    best = _best(name, precision, peers, counts)
    return float(ours["counts"][0] / best[0]) if ours and "counts" in ours and best else None


def _millions(found: dict[str, Any] | None) -> str:
    return f"{found['counts'][0] / 1e6:.1f}" if found and "counts" in found else "-"


def _line(name: str, precision: str, peers: list[str], counts: Counts) -> str:
    """Return a row of the table: M instructions, M multiply-adds, MB loaded and stored, the ratio to the best."""
    ours, ratio = counts.get(name, precision, OURS), _ratio(name, precision, peers, counts)
    shown = [name, _millions(ours)]
    if ours and "counts" in ours:
        _, _, products, loaded, stored = ours["counts"][:5]
        shown += [f"{products / 1e6:.0f}", f"{loaded / 1e6:.0f} + {stored / 1e6:.0f}", f"{ours['error']:.0e}"]
    else:
        shown += ["-"] * 3
    shown += [_millions(counts.get(name, precision, by)) for by in peers]
    shown.append("-" if ratio is None else f"{ratio:.2f}")
    if counts.caches:
        shown += [_beyond(ours), _beyond({"counts": _best(name, precision, peers, counts)})]
    return "| " + " | ".join(shown) + " |"


def _beyond(found: dict[str, Any] | None) -> str:
    """Return the MB that come from beyond L1 and from beyond L2."""
    missed = found["counts"][5:] if found and "counts" in found else []
    return " + ".join(f"{LINE_BYTES * lines / 1e6:.2f}" for lines in missed) or "-"


def print_table(names: list[str], precision: str, peers: list[str], counts: Counts) -> None:
    heads = [f"network, {precision}", OURS, "multiply-adds", "MB loaded + stored", "error", *peers, "to the best"]
    if counts.caches:
        heads += ["MB beyond L1 + L2", "of the best"]
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name in names:
        print(_line(name, precision, peers, counts))
    ratios = [ratio for name in names if (ratio := _ratio(name, precision, peers, counts))]
    if ratios:
        print(f"\ngeometric mean of {len(ratios)} to the best peer of each: {geometric_mean(ratios):.3f}")
    for name in names:
        for by in (OURS, *peers):
            found = counts.get(name, precision, by)
            if found and "failed" in found:
                print(f"{name} {by}: {found['failed']}")


if __name__ == "__main__":
    main()
