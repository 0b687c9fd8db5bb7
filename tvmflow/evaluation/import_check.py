"""Check an imported network against its source model, on inputs like those of the data set and on edge cases.

An error near or above the bound is compared with the source's own rounding (`source_noise`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tvmflow.evaluation.agreement import (
    Agreement,
    Noise,
    check_golden,
    check_outputs,
    compare_all,
    scale_of,
    why_still,
)
from tvmflow.evaluation.quality_warnings import QualityWarning
from tvmflow.evaluation.source_noise import measure_noise
from tvmflow.evaluation.source_runs import SourceRuns, samples_of
from tvmflow.frontends.source_model import Array, Arrays, Runner, SourceModel, run_in_batches
from tvmflow.support.errors import AgreementError

LEAST_INPUTS = 8
_NEAR = 4  # noise is measured from this part of the bound on: later stages round differently again, and need it


@dataclass
class ImportCheck:
    """The check of one import. noise: of each output of the source, empty if its rounding did not matter. measured:
    returns the noise for the inputs of `on_samples`; None: it is measured when it is needed.
    """

    source: SourceModel
    batch: int
    task: str | None
    bound: float
    measured: Callable[[], tuple[Noise, ...]] | None = None
    noise: tuple[Noise, ...] = ()
    warnings: list[QualityWarning] = field(default_factory=list)

    def on_samples(self, inputs: Arrays, computed: Arrays, reference: Arrays) -> Agreement:
        """Compare outputs for inputs (N, ...) with the source's. Raises AgreementError."""
        check_dtypes(self.source.output_names(), computed, reference)
        every = compare_all(computed, reference, self.task)
        if any(one.max_relative_error > self.bound / _NEAR or (one.equal or 1.0) < 1.0 for one in every):
            measure = self.measured or functools.partial(measure_noise, self.source, inputs, self.batch, reference)
            self.noise = measure()
        agreement = check_golden("import_model", computed, reference, self.bound, self.task, self.noise)
        self.warnings += _warnings(self.source.output_names(), reference, self.noise)
        return agreement

    def at_edges(self, edges: Mapping[str, Arrays], imported: Runner, found: SourceRuns) -> None:
        """Compare the import with the source on inputs at the edges, name -> (N, ...), for which the source has
        outputs. The spread of its usual outputs is the least scale of an error. Raises AgreementError.
        """
        least = [scale_of(output) for output in found.expected]
        for name, inputs in edges.items():
            for at, sample in enumerate(samples_of(inputs)):
                if (expected := found.edges.get((name, at))) is not None:
                    self._at_edge(name, sample, imported, expected, least)

    def _at_edge(self, name: str, inputs: Arrays, imported: Runner, expected: Arrays, least: list[float]) -> None:
        computed = run_in_batches(imported, inputs, self.batch)
        scales = [max(_largest(output), scale) for output, scale in zip(expected, least, strict=True)]
        what = f"edge ({name})"
        try:
            check_outputs("import_model", what, computed, expected, self.bound, self.task, self.noise, scales)
        except AgreementError:
            noise = measure_noise(self.source, inputs, self.batch, expected, scales)
            check_outputs("import_model", what, computed, expected, self.bound, self.task, noise, scales)


def check_dtypes(names: tuple[str, ...], computed: Arrays, reference: Arrays) -> None:
    """Raise AgreementError for an output of another dtype than the source's."""
    for name, a, b in zip(names, computed, reference, strict=False):
        if a.dtype != b.dtype:
            raise AgreementError(
                f"import_model changes the dtype of output {name!r} to {a.dtype}",
                f"{b.dtype}, as the source framework gives",
                "this is a bug in tvmflow's importer: report it with the model",
            )


def _largest(output: Array) -> float:
    return float(np.abs(output.astype(np.float64)).max(initial=0.0))


def _warnings(names: tuple[str, ...], reference: Arrays, noise: tuple[Noise, ...]) -> Iterator[QualityWarning]:
    """Yield what no later check can notice."""
    still = [why_still(output) for output in reference]
    if still and all(still):
        yield QualityWarning(
            "outputs do not vary",
            f"{still[0]}: no check could notice a fault; use trained weights, and a data set on which they vary",
        )
    for name, own in zip(names, noise, strict=False):
        if own.hides_faults:
            moved = (
                f"{1 - own.equal:.0%} of its integers"
                if own.equal < 1
                else f"it by {own.max_relative_error:.2g} of its spread ({own.sqnr_db:.0f} dB)"
            )
            yield QualityWarning(
                f"{name} cannot be judged",
                f"output {name!r} cannot be judged: the source's own rounding changes {moved}; use trained weights, "
                "and a data set on which it varies",
            )
