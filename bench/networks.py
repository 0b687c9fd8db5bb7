"""Latency of built libraries beside their peers: `python -m bench.networks CELL...`.

Runs the cells all the way where needed, measures them again, and prints ratios of one run. Same input, same threads, same
protocol for all; what was too unsteady is said so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def _ratio(card: dict[str, Any], peer: str) -> str:
    ours, theirs = card["latency"]["compute"], card["peers"].get(peer)
    if theirs is None or not (ours["steady"] and theirs["steady"]):
        return "unsteady"
    return f"{theirs['median_ms']:.3g} ms ({ours['median_ms'] / theirs['median_ms']:.2f})"


def main() -> None:
    cells = sys.argv[1:] or ["digits", "resnet18@local-cpu:float32", "mobilenetv2_050@local-cpu:float32"]
    done = subprocess.run(
        [sys.executable, "-m", "tvmflow", "run", *cells, "--again", "--json"], stdout=subprocess.PIPE, check=True
    )
    print(f"{'cell':40} {'tvmflow':>10} {'ONNX Runtime (ratio)':>24} {'source (ratio)':>22} {'max rel. error':>15}")
    for card in json.loads(done.stdout)["scorecards"]:
        ours = card["latency"]["compute"]
        shown = f"{ours['median_ms']:.3g} ms" if ours["steady"] else "unsteady"
        error = card["agreement"]["max_relative_error"]
        print(
            f"{card['cell']:40} {shown:>10} {_ratio(card, 'onnxruntime'):>24} {_ratio(card, 'source'):>22} {error:15.1e}"
        )


if __name__ == "__main__":
    main()
