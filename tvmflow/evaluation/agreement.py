"""How far two sets of outputs are apart, judged by how much the outputs vary; the check at each arrow of the walk.

An error is small or large beside what distinguishes one output from another, not beside the largest number in it: a model
that adds 1000 to all of its outputs, or that gives the same output for every input, would forgive any error otherwise.
For outputs b (N inputs, C classes; further axes count as classes), in float64:

    over inputs   s_i = sqrt( sum (b - mean of its class)^2 / ((N - 1) C) )     how an output follows the input
    over classes  s_c = sqrt( sum (b - mean of its input)^2 / (N (C - 1)) )     how the classes of one input differ
    spread            = the smaller; with one input s_c alone, with one class s_i alone
    max_relative_error = max |a - b| / spread
    sqnr_db            = 20 log10( spread / rms(a - b) ), at most 200

The differences a - b are not centred: an offset of the outputs alone is an error. Both numbers stay the same when one number
is added to outputs and reference alike, or both are multiplied by one. The smaller spread is taken because neither
replaces the other: outputs that differ by class only hide that the input is ignored, outputs that differ by input only
hide that classes are permuted. Classes are pooled: one that varies by far the most sets the scale (a saturated softmax looks
so, and there the others do not matter), one that never varies (a padded class) only dilutes it. A reference whose spread is
below RESOLUTION of its largest output is refused: beside float32's rounding no error could be told from none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvmflow.errors import AgreementError

Array = np.ndarray[Any, Any]
RESOLUTION = 1e-5  # a hundred roundings of float32: a deep network that ignores its input still has outputs 1e-7 apart
NO_NOISE_DB = 200.0
LEAST_SQNR_DB = 6.0  # whatever the bound: noise of half the spread; outputs that ignore their input reach 3 dB at most
_BOUND_OF = {
    "import_model": "import_model.max_relative_error", "quantize": "quantize.max_relative_error",
    **dict.fromkeys(("graph_pack", "build", "deploy", "evaluate"), "build.max_relative_error"),
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Standard deviations of outputs over inputs and over classes; None where there is only one. largest: max |output|."""

    inputs: float | None
    classes: float | None
    largest: float

    @property
    def smaller(self) -> float:
        return min((s for s in (self.inputs, self.classes) if s is not None), default=0.0)


@dataclass(frozen=True)
class Agreement:
    """outputs against reference, both (N, outputs). top1_agreement: share of equal top-1, None where there is one class."""

    top1_agreement: float | None
    max_absolute_error: float
    max_relative_error: float
    sqnr_db: float
    spread: float
    samples: int

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


def spread_of(outputs: Array) -> Spread:
    """Return how outputs (N, ...) vary. Raises AgreementError when there are none, or one is not finite."""
    b = _matrix(outputs, "the reference outputs")
    count, classes = b.shape
    largest = float(np.abs(b).max())
    b = b / (largest or 1.0)  # so that squares neither vanish nor overflow
    inputs = np.sqrt(((b - b.mean(axis=0)) ** 2).sum() / ((count - 1) * classes)) if count > 1 else None
    over_classes = (
        np.sqrt(((b - b.mean(axis=1)[:, None]) ** 2).sum() / (count * (classes - 1))) if classes > 1 else None
    )
    scaled = [None if s is None else float(s) * largest for s in (inputs, over_classes)]
    return Spread(inputs=scaled[0], classes=scaled[1], largest=largest)


def check_reacts(reference: Array, what: str = "the source") -> Spread:
    """Return how the reference varies. Raises AgreementError when it does not: then no check that follows could fail."""
    spread = spread_of(reference)
    for varies, over in ((spread.inputs, "inputs"), (spread.classes, "classes")):
        if varies is not None and varies <= RESOLUTION * spread.largest:
            raise AgreementError(
                f"the outputs of {what} do not vary over {over}: standard deviation {varies:.2g} over {len(reference)} inputs, "
                f"the largest output is {spread.largest:.3g}",
                f"more than {RESOLUTION:g} of the largest, or no fault of a later stage could be seen",
                "give the model weights that were trained, and a data set to whose inputs it reacts",
            )
    if spread.inputs is None and spread.classes is None:
        raise AgreementError(f"a single output value of {what}", "two inputs or two classes, to see how it varies")
    return spread


def compare(outputs: Array, reference: Array) -> Agreement:
    """Compare two arrays of one shape (N, ...). Raises AgreementError: shapes differ, not finite, reference does not vary."""
    if outputs.shape != reference.shape:
        raise AgreementError(f"outputs of shape {outputs.shape}", f"{reference.shape}, as the source framework gives")
    spread = check_reacts(reference).smaller
    a, b = _matrix(outputs, "the outputs"), _matrix(reference, "the reference outputs")
    difference = np.abs(a - b)
    worst = float(difference.max())
    noise = worst * float(np.sqrt(((difference / worst) ** 2).mean())) if worst else 0.0
    return Agreement(
        top1_agreement=float((a.argmax(axis=1) == b.argmax(axis=1)).mean()) if a.shape[1] > 1 else None,
        max_absolute_error=worst,
        max_relative_error=worst / spread,
        sqnr_db=min(NO_NOISE_DB, 20 * float(np.log10(spread / noise))) if noise else NO_NOISE_DB,
        spread=spread,
        samples=len(a),
    )


def check_outputs(stage: str, inputs: str, outputs: Array, reference: Array, bound: float) -> Agreement:
    """Compare a stage's outputs for some inputs with those of the stage before it. Raises AgreementError above the bound."""
    found = compare(outputs, reference)
    if found.max_relative_error > bound or found.sqnr_db < LEAST_SQNR_DB:
        named = f" ({_BOUND_OF[stage]} in params.yaml)" if stage in _BOUND_OF else ""
        raise AgreementError(
            f"{stage} changes the outputs: on the {found.samples} {inputs} inputs the largest error is "
            f"{found.max_relative_error:.3g} of the spread of the outputs, SQNR {found.sqnr_db:.1f} dB",
            f"at most {bound:g}{named}, and {LEAST_SQNR_DB:g} dB",
            "compare the modules before and after this stage; raise the bound only if you know why",
        )
    return found


def check_golden(stage: str, outputs: Array, reference: Array, bound: float) -> Agreement:
    """Compare the golden outputs of a stage's module with those of the stage before it. Raises AgreementError."""
    if len(reference) < 2:
        raise AgreementError(
            f"{stage} has {len(reference)} golden input",
            "at least 2, or a module that ignores its input would pass",
            "raise fetch.golden_samples in params.yaml",
        )
    return check_outputs(stage, "golden", outputs, reference, bound)


def _matrix(outputs: Array, what: str) -> Array:
    """Return outputs as (N, outputs) in float64. Raises AgreementError when empty or not finite."""
    if outputs.size == 0:
        raise AgreementError(f"{what} of shape {outputs.shape}", "at least one input and one output")
    matrix = outputs.reshape(len(outputs), -1).astype(np.float64)
    if not np.isfinite(matrix).all():
        raise AgreementError(f"{what} are not all finite numbers", "finite numbers, as the source framework gives")
    return matrix
