"""Define the tuners: the order in which the candidates of a workload are tried.

grid follows the template's order, static an estimate from the assembly, random a shuffle. ga breeds from the best. xgb
asks a cost model that learns from all workloads of this device kind and, by knobs, from earlier logs, so that it
transfers between shapes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tvmflow.config.plugins import Table
from tvmflow.support.errors import UnknownNameError
from tvmflow.tuning.cost_model.boosted_trees import CostModel, Loss
from tvmflow.tuning.cost_model.kernel_features import FeatureKind, Features, knob_features, schedule_features

if TYPE_CHECKING:
    from tvmflow.config.stage_params import SearchSettings
    from tvmflow.schedules.registry import Knobs

POPULATION = 12  # of the genetic algorithm, unless the settings say otherwise
_EXPLORE = 0.1  # share of candidates that are drawn at random
_RANKED = 64  # untried candidates whose schedules are made for one ranking

FeaturesOf = Callable[[int], Features]  # index of a candidate -> its features


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
    """Crosses and mutates the knobs of the fastest candidates, `population` of them; illegal children are dropped.

    Candidates may belong to several families with different knobs. A child belongs to the family of a parent or, by
    mutation, to any other; it takes the knobs that a parent has, and the rest from a candidate of its family.
    """

    mutation = 0.15

    def __init__(self, candidates: list[Knobs], seed: str, population: int = POPULATION) -> None:
        self.candidates, self.population = candidates, population
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


class ModelTuner:
    """Follows the cost model, also for the first candidate if other workloads have trained it.

    A share of the later candidates is drawn at random; without a model, the template's order is used. ranked: how many
    untried candidates are ranked at a time, the template's first and others at random; None for all.
    """

    def __init__(
        self, workload: str, count: int, features: FeaturesOf, model: CostModel, seed: str, ranked: int | None = None
    ) -> None:
        self.workload, self.model, self.features, self.ranked = workload, model, features, ranked
        self._untried = _Untried(count)
        self._random = random.Random(seed)  # noqa: S311

    def ask(self, count: int) -> list[int]:
        remaining = self._untried.remaining()
        considered = self._considered(remaining) if self.model.is_fitted() else []
        scores = self.model.scores([self.features(index) for index in considered]) if considered else None
        if scores is not None:
            first = [considered[index] for index in np.argsort(-scores, kind="stable")]
            remaining = list(dict.fromkeys([*first, *remaining]))
        if scores is not None and not self._untried.asked:
            return self._untried.take(remaining, count, ahead=1)
        for index in range(len(remaining[:count])):
            if self._random.random() < _EXPLORE:
                other = self._random.randrange(len(remaining))
                remaining[index], remaining[other] = remaining[other], remaining[index]
        return self._untried.take(remaining, count)

    def _considered(self, remaining: list[int]) -> list[int]:
        if self.ranked is None or len(remaining) <= self.ranked:
            return remaining
        first = remaining[: self.ranked // 2]
        return first + self._random.sample(remaining[len(first) :], self.ranked - len(first))

    def tell(self, index: int, seconds: float) -> None:
        self._untried.asked.add(index)
        self.model.add(self.workload, self.features(index), seconds)


@dataclass(frozen=True)
class TunerArguments:
    """Arguments of a tuner. extents: loop extents of the workload; model: shared by all workloads of its template;
    features: of the candidates, for that; ranked: how many are ranked at a time, None for all; population: of ga.
    """

    workload: str
    candidates: list[Knobs]
    extents: list[int]
    seed: str
    model: CostModel
    features: FeaturesOf
    ranked: int | None = None
    population: int = POPULATION


# The values of `tune.tuner`. A new tuner is a file with a class and a row here.
TUNERS: Table[Callable[[TunerArguments], Tuner]] = Table(
    "tuners",
    {
        "xgb": lambda a: ModelTuner(a.workload, len(a.candidates), a.features, a.model, a.seed, a.ranked),
        "ga": lambda a: GeneticTuner(a.candidates, a.seed, a.population),
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
    features: FeatureKind = "knobs"
    population: int = POPULATION
    models: dict[str, CostModel] = field(default_factory=dict)

    def make(
        self,
        workload: str,
        template: str,
        candidates: list[Knobs],
        extents: list[int],
        scheduled: Callable[[Knobs], Any] | None = None,
    ) -> Tuner:
        """Return the tuner of a workload. Raises UnknownNameError.

        scheduled: knobs -> the scheduled function, None where they are illegal; not needed for the features `knobs`.
        """
        if self.name not in TUNERS:
            raise UnknownNameError(f"no tuner {self.name!r}", legal=TUNERS)
        by_knobs = self.features == "knobs" or scheduled is None
        return TUNERS[self.name](
            TunerArguments(
                workload,
                candidates,
                extents,
                f"{self.seed}:{workload}",
                self._model(template),
                self._features_of(candidates, extents, None if by_knobs else scheduled),
                None if by_knobs else _RANKED,
                self.population,
            )
        )

    def learn(self, workload: str, template: str, extents: list[int], knobs: Knobs, seconds: float) -> None:
        """Add a measurement of a workload that is not tuned in this run; it teaches by knobs, as it has no kernel."""
        if self.features == "knobs":
            self._model(template).add(workload, knob_features(extents, knobs), seconds)

    def _features_of(
        self, candidates: list[Knobs], extents: list[int], scheduled: Callable[[Knobs], Any] | None
    ) -> FeaturesOf:
        known: dict[int, Features] = {}

        def features(index: int) -> Features:
            if index not in known:
                knobs = candidates[index]
                if scheduled is None:
                    known[index] = knob_features(extents, knobs)
                else:
                    function = scheduled(knobs)
                    known[index] = {} if function is None else schedule_features(self.features, function)
            return known[index]

        return features

    def _model(self, template: str) -> CostModel:
        return self.models.setdefault(template, CostModel(self.loss, self.seed))


def tuner_factory(settings: SearchSettings) -> TunerFactory:
    """Return the factory of the tuners that the settings choose."""
    return TunerFactory(settings.tuner, settings.loss, settings.seed, settings.features, settings.population)


def knob_key(knobs: Knobs) -> tuple[tuple[str, int], ...]:
    """Return a hashable key of knobs."""
    return tuple(sorted(knobs.items()))
