"""Count what small networks execute on an emulated Cortex-A76: `python -m tests.golden.arm64_instructions` renews the
file.

Untuned, one thread, cross-compiled and run under qemu, which counts without noise: a change of schedules, passes or
intrinsics that costs arm64 one instruction shows. Nothing of the machine that runs the test is in a count.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.devices.arm64 import compiled_runner, linked, target
from tvmflow.backends.registry import backend_of
from tvmflow.codegen.compile import build_scheduled
from tvmflow.config.stage_params import DEFAULT_MIXED, Int8Params, TuneParams
from tvmflow.devices.emulation.system import EmulatedSystem, emulated_system
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.progress import silent
from tvmflow.toolchain.versions import version
from tvmflow.tuning.winograd_choice import choose_by_cost

PATH = Path(__file__).with_name("arm64_instructions.json")
RENEW = "python -m tests.golden.arm64_instructions"
COUNTS = ("instructions", "multiply instructions", "multiply-adds", "bytes loaded", "bytes stored")
_PROCESSOR = "cortex-a76"


class _Gated(nn.Module):  # type: ignore[misc]
    """An inverted residual with squeeze-and-excite, as MobileNetV3 has."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.expand, self.filter = nn.Conv2d(channels, wide, 1), nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.squeeze, self.excite = nn.Conv2d(wide, 8, 1), nn.Conv2d(8, wide, 1)
        self.project = nn.Conv2d(wide, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.filter(nn.functional.hardswish(self.expand(x))))
        gate = self.excite(nn.functional.relu(self.squeeze(y.mean((2, 3), keepdim=True))))
        made: torch.Tensor = x + self.project(y * nn.functional.hardsigmoid(gate))
        return made


def _stem(channels: int) -> list[nn.Module]:
    return [nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU()]


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def _plain() -> nn.Module:
    layers = [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*_stem(16), *layers, *_head(24))


def _gated() -> nn.Module:
    return nn.Sequential(*_stem(16), _Gated(16, 48), *_head(16))


def _transformer() -> nn.Module:
    block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.Sequential(block, nn.LayerNorm(32), nn.Linear(32, 10))


@dataclass(frozen=True)
class Small:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    precision: str


NETWORKS = {
    "plain float32": Small(_plain, (1, 3, 32, 32), "float32"),
    "gated float16": Small(_gated, (1, 3, 32, 32), "float16"),
    "gated int8": Small(_gated, (1, 3, 32, 32), "int8"),
    "transformer float32": Small(_transformer, (1, 16, 32), "float32"),
}


def load() -> dict[str, Any]:
    """Return the file: the version of TVM, and the counts by network."""
    known: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return known


def counts_of(small: Small, system: EmulatedSystem, runner: Path, folder: Path) -> dict[str, int]:
    """Return what one run of a network executes."""
    torch.manual_seed(5)
    inputs = one_input("x", small.shape)
    module = canonicalize(ExportedModel(small.make().eval(), inputs).to_relax())
    x = np.random.default_rng(5).standard_normal(small.shape, dtype=np.float32)
    request = Int8Params(activations="int8") if small.precision == "int8" else DEFAULT_MIXED
    module = to_precision(module, small.precision, PrecisionRequest(request, Samples((x,)), silent))[0]
    backend = backend_of(target(_PROCESSOR))
    packed = backend.pack(module, None)[0]
    chosen = choose_by_cost(packed, backend, TuneParams().winograd_bounds)
    scheduled = build_scheduled(packed, backend, {}, winograd=chosen)
    library = linked(folder, scheduled, 1, backend)
    given, found = library.with_suffix(".in"), library.with_suffix(".out")
    given.write_bytes(x.tobytes())
    words = [*system.command(_PROCESSOR, counts=True), str(runner), str(library), "1", str(given), str(found)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert np.isfinite(np.frombuffer(found.read_bytes(), np.float32)).all()
    return dict(zip(COUNTS, map(int, done.stdout.split()), strict=False))  # without caches


def renew() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, system = Path(name), emulated_system()
        runner = compiled_runner(folder / "run")
        found = {network: counts_of(small, system, runner, folder) for network, small in NETWORKS.items()}
    known = load()["counts"] if PATH.exists() else {}
    for network, counts in found.items():
        before = known.get(network, {}).get("instructions", 0)
        print(f"{network}: {before} -> {counts['instructions']}")
    PATH.write_text(json.dumps({"tvm": version("tvm"), "counts": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
