"""Build the manifest of a library that was never compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvmflow.backends.manifest import LibraryFile, Manifest, NetworkFile
from tvmflow.config.params import Cell
from tvmflow.frontends.source_model import OutputSpec, TensorSpec
from tvmflow.targets.resolve import ResolvedTarget

SMALL = Cell(model="small", target="local-cpu", precision="float32")
NETWORK = NetworkFile("network.so", "0" * 64, 1, 5, "tvmflow_network_small", "libsmall.so", 0, 0, 0, None, None, 0)


def manifest_of(cell: Cell = SMALL, **given: Any) -> Manifest:
    """Return the manifest of a network without kernels. given: members that differ."""
    manifest = Manifest(
        cell=cell,
        library=LibraryFile("library.so", "0" * 64, 1, "main"),
        network=NETWORK,
        inputs=(TensorSpec("image", (1, 3, 12, 12)),),
        outputs=(OutputSpec("scores", (1, 5)),),
        target=ResolvedTarget("llvm", "x86-64", "x86_64-linux-gnu", (), 2, "gcc"),
        coverage=1.0,
        coverage_estimated=0.0,
        toolchain={"tvm": "0.27", "cc:gcc": "gcc 12"},
        kernels=(),
        part=None,
    )
    return replace(manifest, **given)
