"""Rank candidates by gradient-boosted trees over what was measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tvmflow.tuning.cost_model.kernel_features import Features

Loss = Literal["reg", "rank", "rank-binary"]
_LEAST_TO_LEARN = 12  # measurements before the cost model is used
_GOOD = 1.1  # rank-binary: label 1 within this factor of the best


class CostModel:
    """Gradient-boosted trees over all measurements of one template on one device kind.

    The label of a measurement is its speed relative to the best of its workload, so that shapes are comparable.
    Candidates may have different knobs: every knob is a column, with a missing value where a candidate does not have
    it.
    """

    def __init__(self, loss: Loss, seed: int) -> None:
        self.loss, self.seed = loss, seed
        self._rows: dict[str, list[tuple[Features, float]]] = {}
        self._booster: Any = None
        self._columns: list[str] = []
        self._fitted = 0

    def add(self, workload: str, row: Features, seconds: float) -> None:
        self._rows.setdefault(workload, []).append((row, seconds))

    def is_fitted(self) -> bool:
        """Return whether enough was measured; the model is brought up to date."""
        self._fit()
        return self._booster is not None

    def scores(self, rows: list[Features]) -> NDArray[np.float32] | None:
        """Return a score per row, higher is better; None before enough was measured."""
        if not self.is_fitted():
            return None
        import xgboost

        return np.asarray(self._booster.predict(xgboost.DMatrix(self._table(rows))))

    def _table(self, rows: list[Features]) -> NDArray[np.float32]:
        return np.asarray([[row.get(name, math.nan) for name in self._columns] for row in rows], np.float32)

    def _fit(self) -> None:
        known = {
            key: rows
            for key, rows in self._rows.items()
            if len(rows) > 1 and any(math.isfinite(seconds) for _, seconds in rows)
        }
        count = sum(len(rows) for rows in known.values())
        if count < _LEAST_TO_LEARN or count < self._fitted + 4:
            return
        import xgboost

        x: list[Features] = []
        y: list[float] = []
        groups: list[int] = []
        for rows in known.values():
            best = min(seconds for _, seconds in rows)
            for row, seconds in rows:
                x.append(row)
                y.append(self._label(seconds, best))
            groups.append(len(rows))
        self._columns = list(dict.fromkeys(name for row in x for name in row))
        if not self._columns:  # none of the schedules was legal
            return
        data = xgboost.DMatrix(self._table(x), np.asarray(y, np.float32))
        objective = "reg:squarederror"
        if self.loss != "reg":
            data.set_group(groups)
            objective = "rank:pairwise"
        options = {"objective": objective, "max_depth": 6, "eta": 0.3, "nthread": 1, "seed": self.seed, "verbosity": 0}
        self._booster = xgboost.train(options, data, 60)
        self._fitted = count

    def _label(self, seconds: float, best: float) -> float:
        if self.loss == "rank-binary":
            return float(seconds <= _GOOD * best)
        speed = best / seconds
        return math.log2(speed + 1e-3) if self.loss == "reg" else 31.0 * speed
