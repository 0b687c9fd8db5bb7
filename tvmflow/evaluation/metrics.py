"""Define the metrics of `metric:` of a model, which replace top-1 accuracy.

A metric is a function of the outputs and the labels. Its value takes the place of the accuracy in the scorecard for
every version of the model, in the history, and in the release gate. A package adds one by an entry point of
`tvmflow.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.config.plugins import Table
from tvmflow.support.errors import UsageError, first_line

Array = NDArray[Any]
Metric = Callable[[tuple[Array, ...], Array], float]


def mean_iou(outputs: tuple[Array, ...], labels: Array) -> float:
    """Return the mean IoU over the classes, of the first output (N, C, H, W) and labels (N, H, W).

    Classes without pixels in both are skipped; pixels whose label is no class (255 by convention) are ignored.
    """
    scores = outputs[0]
    if scores.ndim != 4 or labels.shape != (len(scores), *scores.shape[2:]):
        raise ValueError(
            f"outputs of shape {scores.shape} with labels of shape {labels.shape}, not (N, C, H, W) with (N, H, W)"
        )
    classes = scores.shape[1]
    valid = (labels >= 0) & (labels < classes)
    pairs = labels[valid].astype(np.int64) * classes + scores.argmax(axis=1)[valid]
    table = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
    both = np.diag(table)
    either = table.sum(0) + table.sum(1) - both
    return float((both[either > 0] / either[either > 0]).mean())


METRICS: Table[Metric] = Table("metrics", {"mean_iou": mean_iou})


def value_of(name: str, outputs: tuple[Array, ...], labels: Array) -> float:
    """Return the value of a metric. Raises UsageError if it fails or is not between 0 and 1."""
    try:
        value = float(METRICS[name](outputs, labels))
    except UsageError:
        raise
    except Exception as error:  # the metric's own code
        raise UsageError(
            f"metric {name!r} fails: {type(error).__name__}: {first_line(error)}",
            "a value for the outputs and labels of this model",
            "correct metric: of the model in params.yaml",
        ) from error
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"metric {name!r} gives {value:g}", "a share between 0 and 1, more is better")
    return value
