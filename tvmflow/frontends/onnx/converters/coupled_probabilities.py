"""Probabilities of classes from those of each pair of classes, as LIBSVM and ONNX Runtime iterate them.

T.-F. Wu, C.-J. Lin, R. C. Weng, "Probability estimates for multi-class classification by pairwise coupling" (2004),
algorithm 2. The iteration ends early, so its steps are part of the result.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.onnx.nodes import Node, Value, dims
from tvmflow.ir.tir.tvm_script import parsed

_LEAST = np.float32(1e-7)  # of the probability of a class in a pair
_KERNEL = """
@T.prim_func(s_tir=True)
def coupled(r: T.Buffer(({rows}, {count}, {count}), "float32"), p: T.Buffer(({rows}, {count}), "float32")) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": 8}})
    q = T.sblock_alloc_buffer(({rows}, {count}, {count}), "float32")
    qp = T.sblock_alloc_buffer(({rows}, {count}), "float32")
    pqp = T.sblock_alloc_buffer(({rows},), "float32")
    error = T.sblock_alloc_buffer(({rows},), "float32")
    step = T.sblock_alloc_buffer(({rows},), "float32")
    with T.sblock("coupled"):
        T.reads(r[0:{rows}, 0:{count}, 0:{count}])
        T.writes(p[0:{rows}, 0:{count}])
        for row in T.parallel(T.int64({rows})):
            for i in range(T.int64({count})):
                p[row, i] = T.float32(1) / T.float32({count})
                q[row, i, i] = T.float32(0)
                for j in range(T.int64({count})):
                    if i != j:
                        q[row, i, i] = q[row, i, i] + r[row, j, i] * r[row, j, i]
                        q[row, i, j] = T.float32(0) - r[row, j, i] * r[row, i, j]
            error[row] = T.float32(1)
            for _ in range(100):
                if error[row] >= T.float32({least_error}):
                    pqp[row] = T.float32(0)
                    for i in range(T.int64({count})):
                        qp[row, i] = T.float32(0)
                        for j in range(T.int64({count})):
                            qp[row, i] = qp[row, i] + q[row, i, j] * p[row, j]
                        pqp[row] = pqp[row] + p[row, i] * qp[row, i]
                    error[row] = T.float32(0)
                    for i in range(T.int64({count})):
                        error[row] = T.max(error[row], T.fabs(qp[row, i] - pqp[row]))
                    if error[row] >= T.float32({least_error}):
                        for i in range(T.int64({count})):
                            step[row] = (pqp[row] - qp[row, i]) / q[row, i, i]
                            p[row, i] = p[row, i] + step[row]
                            pqp[row] = (
                                (pqp[row] + step[row] * (step[row] * q[row, i, i] + T.float32(2) * qp[row, i]))
                                / (T.float32(1) + step[row])
                                / (T.float32(1) + step[row])
                            )
                            for j in range(T.int64({count})):
                                qp[row, j] = (qp[row, j] + step[row] * q[row, i, j]) / (T.float32(1) + step[row])
                                p[row, j] = p[row, j] / (T.float32(1) + step[row])
"""


def coupled_probabilities(node: Node, scores: Value, count: int, slopes: Any, offsets: Any) -> Value:
    """Return the probability of each class (N, count).

    scores: of each pair of classes (N, pairs). slopes, offsets: of the sigmoid of each pair.
    """
    r, rows = node.emitter, dims(scores)[0]
    exponents = r.add(r.multiply(scores, slopes.reshape(1, -1)), offsets.reshape(1, -1))
    first = r.minimum(r.maximum(r.sigmoid(r.negative(exponents)), _LEAST), np.float32(1) - _LEAST)
    pairs = list(combinations(range(count), 2))
    of_first, of_second = (np.zeros((len(pairs), count * count), np.float32) for _ in range(2))
    for at, (i, j) in enumerate(pairs):
        of_first[at, i * count + j], of_second[at, j * count + i] = 1, 1
    both = r.add(r.matmul(first, of_first), r.matmul(r.subtract(np.float32(1), first), of_second))
    text = _KERNEL.format(rows=rows, count=count, least_error=0.005 / count)
    function = r.builder.add_func(parsed(text).without_attr("global_symbol"), "coupled_probabilities")
    kind = relax.TensorType((rows, count), "float32")
    return r.builder.emit(relax.call_tir(function, [r.reshape_to(both, [rows, count, count])], kind))
