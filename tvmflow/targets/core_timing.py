"""Describe the throughput of CPU cores, to rank schedules without a device.

The numbers are rounded from the vendors' optimization guides and our measurements; an unknown core counts as a typical
one of its architecture and vector width. They rank schedules of one kernel and predict no times.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmflow.targets.processors import architecture_of
from tvmflow.targets.resolve import ResolvedTarget


@dataclass(frozen=True)
class Core:
    """The throughput of a core.

    issue: instructions per cycle; width: bytes of its vector units and ports; multiply_adds, loads, stores: of that
    width per cycle; latency: cycles until a sum is available to the next addition. l1, l2: bytes; l2_bytes, far_bytes:
    bytes per cycle from L2, and from beyond. ghz: typical clock.
    """

    issue: float
    width: int
    multiply_adds: float
    loads: float
    stores: float
    latency: float
    l1: int
    l2: int
    l2_bytes: float
    far_bytes: float
    ghz: float


_KB = 1024
_WIDE = Core(4, 64, 2, 2, 1, 4, 32 * _KB, 1024 * _KB, 40, 10, 3.0)
_AVX2 = Core(4, 32, 2, 2, 1, 4, 32 * _KB, 512 * _KB, 30, 10, 3.5)
_SSE = Core(4, 16, 2, 2, 1, 4, 32 * _KB, 256 * _KB, 20, 8, 3.0)
_BIG = Core(4, 16, 2, 2, 1, 4, 64 * _KB, 512 * _KB, 16, 6, 2.4)
_MIDDLE = Core(3, 16, 1, 1, 1, 7, 32 * _KB, 512 * _KB, 12, 4, 1.8)
_LITTLE = Core(2, 8, 1, 1, 1, 4, 32 * _KB, 256 * _KB, 8, 3, 1.5)
_CORES = {
    "znver5": Core(8, 64, 2, 2, 1, 4, 48 * _KB, 1024 * _KB, 40, 14, 3.7),
    "znver4": Core(6, 32, 2, 2, 1, 4, 32 * _KB, 1024 * _KB, 30, 12, 3.7),
    "cortex-a53": _LITTLE,
    "cortex-a55": _LITTLE,
    "cortex-a510": _LITTLE,
    "cortex-a57": _MIDDLE,
    "cortex-a72": _MIDDLE,
    "cortex-a73": _MIDDLE,
}
_BY_FEATURE = (
    ("x86_64", "avx512f", _WIDE),
    ("x86_64", "avx2", _AVX2),
    ("x86_64", "", _SSE),
    ("aarch64", "", _BIG),
    ("armv7a", "", _LITTLE),
)


def core_of(target: ResolvedTarget) -> Core:
    """Return the core of a target."""
    from tvmflow.targets.cpu_features import features_of

    if target.mcpu in _CORES:
        return _CORES[target.mcpu]
    features = features_of(target.mcpu, target.mtriple, target.mattr)
    architecture = architecture_of(target.mtriple)
    return next(
        core for name, wanted, core in _BY_FEATURE if name == architecture and (not wanted or wanted in features)
    )
