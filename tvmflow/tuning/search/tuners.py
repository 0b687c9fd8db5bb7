"""Define the tuners: the order in which the candidates of a workload are tried.

grid follows the template's order, static an estimate from the assembly, random a shuffle. ga breeds from the best. xgb
asks a cost model that learns from all workloads of this device kind and from earlier logs, so that it transfers between
shapes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tvmflow.config.plugins import Table
from tvmflow.support.errors import UnknownNameError

if TYPE_CHECKING:
    from tvmflow.schedules.registry import Knobs

Loss = Literal["reg", "rank", "rank-binary"]
_EXTENTS = 9  # leading loop extents that are features of the cost model
_LEAST_TO_LEARN = 12  # measurements before the cost model is used
_EXPLORE = 0.1  # share of candidates that are drawn at random
_GOOD = 1.1  # rank-binary: label 1 within this factor of the best


class Tuner(Protocol):
    """Proposes candidates by index and learns from their times."""

    def ask(self, count: int) -> list[int]:
        """Return up to `count` indices that were not returned before."""

    def tell(self, index: int, seconds: float) -> None:
        """Report the time of a candidate; infinity for a failure."""


@dataclass
class _Untried:
    """The candidates that were not tried yet, in the template's order."""

    total: int
    asked: set[int] = field(default_factory=set)

    def remaining(self) -> list[int]:
        return [index for index in range(self.total) if index not in self.asked]

    def take(self, order: list[int], count: int, ahead: int = 0) -> list[int]:
        """Return the first `count` of an order and mark them; candidate 0, the default, is put after `ahead` others."""
        chosen = [index for index in order if index not in self.asked]
        if 0 not in self.asked:
            chosen = [*chosen[:ahead], 0, *chosen[ahead:]]
        chosen = list(dict.fromkeys(chosen))
        self.asked.update(chosen[:count])
        return chosen[:count]


class GridTuner:
    def __init__(self, candidates: list[Knobs]) -> None:
        self._untried = _Untried(len(candidates))

    def ask(self, count: int) -> list[int]:
        return self._untried.take(self._untried.remaining(), count)

    def tell(self, index: int, seconds: float) -> None:
        self._untried.asked.add(index)


class StaticTuner(GridTuner):
    """Tries the candidates in the order of the static model, then the others in the template's order."""

    def __init__(self, candidates: list[Knobs]) -> None:
        super().__init__(candidates)
        self.order: list[int] | None = None  # of the estimated candidates; None before the estimate

    def ask(self, count: int) -> list[int]:
        order = list(dict.fromkeys([*(self.order or ()), *self._untried.remaining()]))
        return self._untried.take(order, count, ahead=len(order) if self.order else 0)


class RandomTuner(GridTuner):
    def __init__(self, candidates: list[Knobs], seed: str) -> None:
        super().__init__(candidates)
        self._order = list(range(len(candidates)))
        random.Random(seed).shuffle(self._order)  # noqa: S311

    def ask(self, count: int) -> list[int]:
        return self._untried.take(self._order, count)


class GeneticTuner:
    """Crosses and mutates the knobs of the fastest candidates; illegal children are dropped.

    Candidates may belong to several families with different knobs. A child belongs to the family of a parent or, by
    mutation, to any other; it takes the knobs that a parent has, and the rest from a candidate of its family.
    """

    population = 12
    mutation = 0.15

    def __init__(self, candidates: list[Knobs], seed: str) -> None:
        self.candidates = candidates
        self._random = random.Random(seed)  # noqa: S311
        self._index = {knob_key(knobs): index for index, knobs in enumerate(candidates)}
        names = {name for knobs in candidates for name in knobs}
        self._values = {name: sorted({k[name] for k in candidates if name in k}) for name in names}
        self._untried = _Untried(len(candidates))
        self._times: dict[int, float] = {}

    def ask(self, count: int) -> list[int]:
        fittest = sorted(self._times, key=lambda index: self._times[index])[: self.population]
        order: list[int] = []
        for _ in range(60 * count if len(fittest) >= 2 else 0):
            child = self._child(*self._random.sample(fittest, 2))
            if child is not None and child not in self._untried.asked and child not in order:
                order.append(child)
            if len(order) == count:
                break
        remaining = self._untried.remaining()
        self._random.shuffle(remaining)
        return self._untried.take(order + remaining, count)

    def tell(self, index: int, seconds: float) -> None:
        self._untried.asked.add(index)
        if math.isfinite(seconds):
            self._times[index] = seconds

    def _child(self, one: int, other: int) -> int | None:
        parents = self.candidates[one], self.candidates[other]
        family = self._random.choice(parents)
        if self._random.random() < self.mutation:
            family = self._random.choice(self.candidates)
        knobs = {}
        for name in family:
            knobs[name] = self._random.choice([parent[name] for parent in parents if name in parent] or [family[name]])
            if self._random.random() < self.mutation:
                knobs[name] = self._random.choice(self._values[name])
        return self._index.get(knob_key(knobs))


def knob_key(knobs: Knobs) -> tuple[tuple[str, int], ...]:
    """Return a hashable key of knobs."""
    return tuple(sorted(knobs.items()))


Features = dict[str, float]


def features_of(extents: list[int], knobs: Knobs) -> Features:
    """Return the features of a candidate for the cost model: loop extents, knobs, and combinations of them."""
    sizes = (extents + [1] * _EXTENTS)[:_EXTENTS]
    tiles = [value for name, value in knobs.items() if name.endswith("_tile")]
    held = math.prod(tiles)
    chunk = max(knobs.get("chunk", 1), 1)
    pieces = sizes[2] / chunk * (1 if knobs.get("rows_first") else sizes[1] / max(knobs.get("c_tile", 1), 1))
    return {
        **{f"extent {index}": math.log2(size) for index, size in enumerate(sizes)},
        **{f"knob {name}": math.log2(1 + knobs[name]) for name in sorted(knobs)},
        "held": float(held),
        "square": math.log2(held / max(sum(tiles), 1) + 1),
        "pieces": math.log2(max(pieces, 0.5)),
        "odd": float(pieces % 2),
    }


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

    def scores(self, rows: list[Features]) -> NDArray[np.float32] | None:
        """Return a score per row, higher is better; None before enough was measured."""
        self._fit()
        if self._booster is None:
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


class ModelTuner:
    """Follows the cost model, also for the first candidate if other workloads have trained it.

    A share of the later candidates is drawn at random; without a model, the template's order is used.
    """

    def __init__(self, workload: str, candidates: list[Knobs], extents: list[int], model: CostModel, seed: str) -> None:
        self.workload, self.model = workload, model
        self.rows = [features_of(extents, knobs) for knobs in candidates]
        self._untried = _Untried(len(candidates))
        self._random = random.Random(seed)  # noqa: S311

    def ask(self, count: int) -> list[int]:
        remaining = self._untried.remaining()
        scores = self.model.scores([self.rows[index] for index in remaining]) if remaining else None
        if scores is not None:
            remaining = [remaining[index] for index in np.argsort(-scores, kind="stable")]
        if scores is not None and not self._untried.asked:
            return self._untried.take(remaining, count, ahead=1)
        for index in range(len(remaining[:count])):
            if self._random.random() < _EXPLORE:
                other = self._random.randrange(len(remaining))
                remaining[index], remaining[other] = remaining[other], remaining[index]
        return self._untried.take(remaining, count)

    def tell(self, index: int, seconds: float) -> None:
        self._untried.asked.add(index)
        self.model.add(self.workload, self.rows[index], seconds)


@dataclass(frozen=True)
class TunerArguments:
    """Arguments of a tuner. extents: loop extents of the workload; model: shared by all workloads of its template."""

    workload: str
    candidates: list[Knobs]
    extents: list[int]
    seed: str
    model: CostModel


# The values of `tune.tuner`. A new tuner is a file with a class and a row here.
TUNERS: Table[Callable[[TunerArguments], Tuner]] = Table(
    "tuners",
    {
        "xgb": lambda a: ModelTuner(a.workload, a.candidates, a.extents, a.model, a.seed),
        "ga": lambda a: GeneticTuner(a.candidates, a.seed),
        "random": lambda a: RandomTuner(a.candidates, a.seed),
        "grid": lambda a: GridTuner(a.candidates),
        "static": lambda a: StaticTuner(a.candidates),
    },
)


@dataclass
class TunerFactory:
    """Makes the tuner of each workload; the workloads of a template share a cost model."""

    name: str
    loss: Loss
    seed: int
    models: dict[str, CostModel] = field(default_factory=dict)

    def make(self, workload: str, template: str, candidates: list[Knobs], extents: list[int]) -> Tuner:
        """Return the tuner of a workload. Raises UnknownNameError."""
        if self.name not in TUNERS:
            raise UnknownNameError(f"no tuner {self.name!r}", legal=TUNERS)
        return TUNERS[self.name](
            TunerArguments(workload, candidates, extents, f"{self.seed}:{workload}", self._model(template))
        )

    def learn(self, workload: str, template: str, extents: list[int], knobs: Knobs, seconds: float) -> None:
        """Add a measurement of a workload that is not tuned in this run."""
        self._model(template).add(workload, features_of(extents, knobs), seconds)

    def _model(self, template: str) -> CostModel:
        return self.models.setdefault(template, CostModel(self.loss, self.seed))
