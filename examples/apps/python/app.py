"""Show the likeliest classes of an image: app.py network.so frame.ppm. Needs numpy and tvmflow_network.py, no TVM."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

try:
    from tvmflow_network import Network
except ImportError:  # in a clone it is not beside this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "runtime" / "python"))
    from tvmflow_network import Network


def read_ppm(path: str) -> np.ndarray:
    """Return a PPM or PGM file of 8 bits as an array (height, width, 3) or (height, width)."""
    data = Path(path).read_bytes()
    head = re.match(rb"P([56])\s+(\d+)\s+(\d+)\s+255\s", data)
    if head is None:
        raise SystemExit(f"{path} is no PPM or PGM file of 8 bits")
    kind, width, height = map(int, head.groups())
    size = (height, width, 3) if kind == 6 else (height, width)
    return np.frombuffer(data, np.uint8, int(np.prod(size)), head.end()).reshape(size)


def main() -> None:
    library, image = sys.argv[1:]
    with Network(library) as network:
        for probability, number, label in network.classify(read_ppm(image)):
            sys.stdout.write(f"{probability:6.1%}  {number} {label}\n")


if __name__ == "__main__":
    main()
