"""Build the canary: a fixed kernel that is timed regularly on every device to detect clock changes."""

from __future__ import annotations

from tvm import te

from tvmflow.ir.tir.workloads import Workload, workload_key

_CHANNELS, _SIZE, _LANES = 4, 28, 16


def canary_workload() -> Workload:
    """Return a 3x3 convolution of 64 channels at 28x28, float32: about 58 million operations, all in L1 and L2."""
    data = te.placeholder((1, _CHANNELS, _SIZE + 2, _SIZE + 2, _LANES), "float32", name="data")
    weight = te.placeholder((_CHANNELS, _CHANNELS, 3, 3, _LANES, _LANES), "float32", name="weight")
    i, y, x, u = (te.reduce_axis((0, size)) for size in (_CHANNELS, 3, 3, _LANES))
    out = te.compute(
        (1, _CHANNELS, _SIZE, _SIZE, _LANES),
        lambda n, o, h, w, v: te.sum(data[n, i, h + y, w + x, u] * weight[o, i, y, x, u, v], axis=[i, y, x, u]),
        name="canary",
    )
    function = te.create_prim_func([data, weight, out])
    return Workload(workload_key(function), "canary", 1, function)
