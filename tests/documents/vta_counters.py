"""Count what VTA does for the networks of the VTA document: from MXNet, with the original stack's schedules and ours.

    python -m tests.documents.vta_counters > tests/documents/vta_counters.json

The counters depend on the shapes of layers, and those of SCALES on the scales of a quantized network too, since a shift
by 0 is no instruction of `optimized`. Written down at the document's size, and at that of
`make test`; the tests compare what the stages make with them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import REPOSITORY
from tvmflow.config.stage_params import VtaInt8Params
from tvmflow.frontends.registry import FRONTENDS, load_source
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.ir.relax.graph import Graph, read_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_vta
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.progress import silent
from tvmflow.support.temporary import temporary_folder
from tvmflow.vta.compiler.compiler import MODES, compile_region
from tvmflow.vta.compiler.partition import split
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.machine.counters import Counters, count, estimate

NETWORKS = ("resnet18_v1", "resnet34_v1", "resnet18_v2", "resnet34_v2", "resnet50_v2", "resnet101_v2")
SCALES = ("alu_counter", "insn_count", "insn_nbytes", "uop_load_nbytes", "dram_nbytes", "cycles")
START, STOP = "nn.max_pool2d", "nn.global_avg_pool2d"
SMALL, WHOLE = 32, 224
KEPT = REPOSITORY / "tests" / "documents" / "vta_counters.json"


def kept(network: str, size: int, mode: str) -> dict[str, int]:
    """Return the counters, and `cycles`, that are written down."""
    found: dict[str, int] = json.loads(KEPT.read_text(encoding="utf-8"))[network][str(size)][mode]
    return found


def count_network(network: str, size: int, folder: Path) -> dict[str, dict[str, int]]:
    """Return the counters and cycles of a network by mode; its files are made in a folder."""
    limits = DownloadLimits(1, 1, 1.0)
    request = WeightsRequest(
        "mxnet", f"mxnet/{network}", {"seeded": 1}, folder, limits, folder, FRONTENDS["mxnet"].files, SMALL
    )
    file = fetch_weights(request, folder, None, silent)
    shape = (1, 3, size, size)
    source = load_source(folder, SourceDescription("mxnet", None, file.name, one_input("data", shape)))
    module, chance = canonicalize(source.to_relax()), np.random.default_rng(0)
    sample = chance.standard_normal(shape, dtype=np.float32)
    return count_graph(read_graph(quantize_vta(module, sample, None, VtaInt8Params())[0]))


def count_graph(graph: Graph) -> dict[str, dict[str, int]]:
    """Return the counters and cycles of a quantized network by mode."""
    config, found = VtaConfig(), dict[str, dict[str, int]]()
    for mode in MODES:
        total, cycles = Counters(), 0
        for region in split(graph, config, START, STOP).regions:
            for launch in compile_region(config, region, mode).launches:
                total += count(config, launch.instructions)
                cycles += estimate(config, launch).total
        found[mode] = {**total.to_json(), "cycles": cycles}
    return found


def main() -> None:
    found: dict[str, dict[str, Any]] = {}
    for network in NETWORKS:
        for size in (SMALL, WHOLE):
            print(f"{network}, {size} x {size}", file=sys.stderr)
            with temporary_folder("vta") as folder:
                found.setdefault(network, {})[str(size)] = count_network(network, size, folder)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
