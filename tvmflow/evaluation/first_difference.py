"""Find the first layer whose value differs between the source framework and the imported graph.

Importers rename, split and merge layers, so values are matched by content: a layer of the framework agrees if some
value of the imported graph, in one of the layouts, equals it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from tvmflow.frontends.source_model import Array, Arrays, SourceModel
from tvmflow.ir.relax.graph import Step, read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.canonicalize.fold_constants import FoldConstants

_LAYOUTS = ((0, 2, 3, 1), (0, 3, 1, 2))


def first_differing_layer(source: SourceModel, inputs: Array | Arrays, bound: float) -> str | None:
    """Return the name of the framework's first layer whose value has no equal in the import, or of the first output
    that differs; None if all agree.

    inputs: one batch of each input. bound: largest error relative to the layer's largest number. Runs the numpy
    interpreter, which is slow and exact.
    """
    by_size: dict[int, list[Array]] = defaultdict(list)

    def keep(_step: Step, value: Array) -> None:
        by_size[value.size].append(value)

    batch = inputs if isinstance(inputs, tuple) else (inputs,)
    for x in batch:
        by_size[x.size].append(x)
    fold: Any = FoldConstants()
    outputs = run_all(read_graph(fold(source.to_relax())), batch, keep)
    for name, value in source.layers(*batch):
        if not any(_equal(value, candidate, bound) for candidate in by_size[value.size]):
            return name
    for name, value, output in zip(source.output_names(), source.run(*batch), outputs, strict=True):
        if value.shape != output.shape or not _equal(value, output, bound):
            return f"output {name!r}"
    return None


def _equal(value: Array, candidate: Array, bound: float) -> bool:
    value, candidate = value.astype(np.float64), candidate.astype(np.float64)
    limit = bound * max(float(np.abs(value).max(initial=0.0)), 1e-30)
    layouts = [candidate]
    if candidate.ndim == 4:
        layouts += [candidate.transpose(layout) for layout in _LAYOUTS]
    flat = value.reshape(-1)
    return any(float(np.abs(flat - layout.reshape(-1)).max(initial=0.0)) <= limit for layout in layouts)
