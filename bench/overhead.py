"""Measure the cost of tvmflow itself when no stage has to run: `python -m bench.overhead [WORKSPACE]`.

Medians of seconds, beside limits: a second run of a cell, --help, and an unchanged `dvc repro`. The workspace must hold
a finished cell `digits`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMITS = {
    "second run of an unchanged cell": (1.0, ["-m", "tvmflow", "run", "digits"]),
    "tvmflow run --dry-run": (1.0, ["-m", "tvmflow", "run", "digits", "--dry-run"]),
    "tvmflow why": (3.0, ["-m", "tvmflow", "why", "digits"]),
    "tvmflow --help": (0.5, ["-m", "tvmflow", "--help"]),
    "unchanged dvc repro": (3.0, ["-m", "dvc", "repro"]),
}
REPEATS = 5


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    print(f"{'what':36} {'median s':>9} {'limit s':>8} {'share':>6}")
    for what, (limit, command) in LIMITS.items():
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            subprocess.run([sys.executable, *command], cwd=root, capture_output=True, check=True)
            times.append(time.perf_counter() - started)
        median = statistics.median(times)
        print(f"{what:36} {median:9.2f} {limit:8.1f} {median / limit:6.0%}")


if __name__ == "__main__":
    main()
