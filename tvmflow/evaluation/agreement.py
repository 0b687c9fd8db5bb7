"""Measure the error of outputs relative to their spread, and check it after every stage.

An error is large or small relative to what distinguishes one output from another, not relative to the largest number in
it. Otherwise a model that adds 1000 to all outputs, or whose output is constant, would hide any error. For one output b
(N inputs, C classes; further axes count as classes), in float64:

    over inputs   s_i = sqrt( sum (b - mean of its class)^2 / ((N - 1) C) )     variation between the inputs
    over classes  s_c = sqrt( sum (b - mean of its input)^2 / (N (C - 1)) )     variation between the classes
    spread            = the smaller one; with one input s_c alone, with one class s_i alone
    max_relative_error = max |a - b| / spread
    sqnr_db            = 20 log10( spread / rms(a - b) ), at most 200

The differences a - b are not centred: a constant offset is an error. Both numbers are invariant when one constant is
added to outputs and reference, or both are scaled. The smaller spread is used because neither replaces the other:
outputs that vary by class only hide an ignored input, outputs that vary by input only hide permuted classes. Classes
are pooled: a class with by far the largest variation sets the scale (as in a saturated softmax, where the others do not
matter), a constant class (padding) only dilutes it. A reference does not vary if its spread is below
RESOLUTION of its largest output: float32 rounding would hide any error relative to it.

A source framework rounds, too. An error above the bound is accepted up to NOISE_MULTIPLE times the difference of the
source from itself when only its rounding changes (`source_noise`): then no product could be shown to be wrong by it.

Each output of a model is compared separately. A constant one (such as anchor boxes) is compared relative to its largest
number; import_model warns if no output varies. Integers are compared by the share of equal values. A
task metric is added where it is defined: top-1 of class scores (N, C), the share of equal classes over the pixels of a
map (N, C, H, W), the cosine of embeddings. The shape or the `task` of the model selects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tvmflow.support.errors import AgreementError

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
RESOLUTION = 1e-5  # a hundred float32 roundings: outputs of a deep network that ignores its input still differ by 1e-7
NO_NOISE_DB = 200.0
LEAST_SQNR_DB = 6.0  # whatever the bound: noise of half the spread; outputs that ignore the input reach at most 3 dB
LEAST_EQUAL = 0.9  # of integers, whatever the bound: the class of a near tie may change
# Two results that round independently differ from the exact one by as much each, so from each other by twice that. The
# largest of a few thousand differences varies by a factor of two between two draws. So two bits, 12 dB, on the noise.
NOISE_MULTIPLE = 4.0
_MULTIPLE_DB = 20 * float(np.log10(NOISE_MULTIPLE))
_BOUND_OF = {
    "import_model": "import_model.max_relative_error",
    "quantize": "quantize.max_relative_error",
    **dict.fromkeys(("graph_pack", "build", "deploy", "evaluate"), "build.max_relative_error"),
}


@dataclass(frozen=True)
class Spread:
    """Standard deviations of outputs over inputs and over classes, None if there is only one. largest: max |output|."""

    inputs: float | None
    classes: float | None
    largest: float

    @property
    def smaller(self) -> float:
        return min((s for s in (self.inputs, self.classes) if s is not None), default=0.0)


@dataclass(frozen=True)
class Noise:
    """How far one output of the source is from itself with other roundings, measured as in Agreement."""

    max_relative_error: float = 0.0
    sqnr_db: float = NO_NOISE_DB
    equal: float = 1.0

    @property
    def hides_faults(self) -> bool:
        """Return whether a module that no bound would accept could be within the multiple of this noise."""
        return self.sqnr_db - _MULTIPLE_DB < LEAST_SQNR_DB or 1 - NOISE_MULTIPLE * (1 - self.equal) < LEAST_EQUAL

    def that_tells_faults(self) -> Noise:
        """Return the noise up to which LEAST_SQNR_DB is still required of what it covers."""
        return replace(self, sqnr_db=max(self.sqnr_db, LEAST_SQNR_DB + _MULTIPLE_DB))

    def covers(self, agreement: Agreement) -> bool:
        """Return whether an error is within the multiple of this noise, at its largest and on average."""
        return (
            agreement.max_relative_error <= NOISE_MULTIPLE * self.max_relative_error
            and agreement.sqnr_db >= self.sqnr_db - _MULTIPLE_DB
            and (agreement.equal is None or 1 - agreement.equal <= NOISE_MULTIPLE * (1 - self.equal))
        )


NO_NOISE = Noise()


@dataclass(frozen=True)
class Agreement:
    """The agreement of one output with its reference, or the worst of several.

    top1_agreement: share of equal top-1. pixel_agreement: of equal classes over pixels. cosine: the lowest over the
    samples. equal: share of equal integers. Each is None where it is not defined.
    """

    top1_agreement: float | None
    max_absolute_error: float
    max_relative_error: float
    sqnr_db: float
    spread: float
    samples: int
    pixel_agreement: float | None = None
    cosine: float | None = None
    equal: float | None = None

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


def spread_of(outputs: Array) -> Spread:
    """Return the spread of outputs (N, ...). Raises AgreementError for empty or non-finite outputs."""
    b = _matrix(outputs, "the reference outputs")
    count, classes = b.shape
    largest = float(np.abs(b).max())
    b = b / (largest or 1.0)  # avoid underflow and overflow of the squares
    inputs = np.sqrt(((b - b.mean(axis=0)) ** 2).sum() / ((count - 1) * classes)) if count > 1 else None
    over_classes = (
        np.sqrt(((b - b.mean(axis=1)[:, None]) ** 2).sum() / (count * (classes - 1))) if classes > 1 else None
    )
    scaled = [None if s is None else float(s) * largest for s in (inputs, over_classes)]
    return Spread(inputs=scaled[0], classes=scaled[1], largest=largest)


def why_still(reference: Array, what: str = "the source") -> str | None:
    """Return why a reference does not vary, so that no later check could fail; None if it varies."""
    spread = spread_of(reference)
    for deviation, over in ((spread.inputs, "inputs"), (spread.classes, "classes")):
        if deviation is not None and deviation <= RESOLUTION * spread.largest:
            return (
                f"the outputs of {what} do not vary over {over}: standard deviation {deviation:.2g} over "
                f"{len(reference)} inputs, the largest output is {spread.largest:.3g}"
            )
    return f"a single output value of {what}" if spread.inputs is None and spread.classes is None else None


def check_varies(reference: Array, what: str = "the source") -> Spread:
    """Return the spread of the reference. Raises AgreementError if it does not vary."""
    if (why := why_still(reference, what)) is not None:
        raise AgreementError(
            why,
            f"more than {RESOLUTION:g} of the largest, or no fault of a later stage could be detected",
            "use trained weights, and a data set on which the outputs vary",
        )
    return spread_of(reference)


def compare(outputs: Array, reference: Array, task: str | None = None) -> Agreement:
    """Compare two arrays of one shape (N, ...). Raises AgreementError for different shapes, non-finite values, or a
    constant reference.
    """
    _check_shapes(outputs, reference)
    return _compare(outputs, reference, check_varies(reference).smaller, task)


def compare_all(
    outputs: Array | Arrays,
    references: Array | Arrays,
    task: str | None = None,
    scales: Sequence[float] | None = None,
) -> list[Agreement]:
    """Compare all outputs of two modules, each with its reference. scales: what errors are relative to; default: of the
    references. Raises AgreementError for other shapes or values that are not finite.
    """
    computed, expected = as_outputs(outputs), as_outputs(references)
    if len(computed) != len(expected):
        raise AgreementError(f"{len(computed)} outputs", f"{len(expected)}, as the source framework gives")
    for a, b in zip(computed, expected, strict=True):
        _check_shapes(a, b)
    return [
        _equal_integers(a, b) if b.dtype.kind in "iub" else _compare(a, b, scale, task)
        for a, b, scale in zip(computed, expected, scales or map(scale_of, expected), strict=True)
    ]


def worst_of(agreements: Sequence[Agreement]) -> Agreement:
    """Return the worst value of each number over the outputs."""
    if len(agreements) == 1:
        return agreements[0]

    def least(name: str) -> float | None:
        return min((value for one in agreements if (value := getattr(one, name)) is not None), default=None)

    worst = max(agreements, key=lambda one: one.max_relative_error)
    shares = {name: least(name) for name in ("top1_agreement", "pixel_agreement", "cosine", "equal")}
    return replace(worst, sqnr_db=min(one.sqnr_db for one in agreements), **shares)  # type: ignore[arg-type]


def as_outputs(outputs: Array | Arrays) -> Arrays:
    """Return outputs as a tuple, also if there is a single one."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def classes_of(output: Array, task: str | None = None) -> Array | None:
    """Return the most likely class: (N,) for scores (N, C), (N, H, W) for a map; None for other outputs.

    The class axis of a map is 1 or, if that is shorter, the last one.
    """
    if output.dtype.kind != "f" or task in ("embedding", "detection", "other"):
        return None
    if output.ndim == 2 and output.shape[1] > 1 and task != "segmentation":
        return np.asarray(output.argmax(axis=1))
    if output.ndim == 4 and min(output.shape[1], output.shape[3]) > 1 and task != "classification":
        return np.asarray(output.argmax(axis=1 if output.shape[1] <= output.shape[3] else 3))
    return None


def _check_shapes(outputs: Array, reference: Array) -> None:
    if outputs.shape != reference.shape:
        raise AgreementError(f"outputs of shape {outputs.shape}", f"{reference.shape}, as the source framework gives")


def scale_of(reference: Array) -> float:
    """Return the scale of an output's errors: its spread, or its largest number if it does not vary. Raises
    AgreementError for values that are not finite.
    """
    if reference.dtype.kind not in "iub" and why_still(reference) is None:
        return spread_of(reference).smaller
    return float(np.abs(reference.astype(np.float64)).max(initial=0.0)) or 1.0


def _equal_integers(outputs: Array, reference: Array) -> Agreement:
    share = float((outputs == reference).mean()) if reference.size else 1.0
    largest = float(np.abs(outputs.astype(np.float64) - reference.astype(np.float64)).max(initial=0.0))
    return Agreement(None, largest, 0.0, NO_NOISE_DB, 0.0, len(reference), equal=share)


def _compare(outputs: Array, reference: Array, spread: float, task: str | None) -> Agreement:
    a, b = _matrix(outputs, "the outputs"), _matrix(reference, "the reference outputs")
    difference = np.abs(a - b)
    worst = float(difference.max())
    noise = worst * float(np.sqrt(((difference / worst) ** 2).mean())) if worst else 0.0
    ours, theirs = classes_of(outputs, task), classes_of(reference, task)
    share = None if ours is None or theirs is None else float((ours == theirs).mean())
    return Agreement(
        top1_agreement=share if outputs.ndim == 2 else None,
        max_absolute_error=worst,
        max_relative_error=worst / spread,
        sqnr_db=min(NO_NOISE_DB, 20 * float(np.log10(spread / noise))) if noise else NO_NOISE_DB,
        spread=spread,
        samples=len(a),
        pixel_agreement=share if outputs.ndim == 4 else None,
        cosine=_cosine(a, b) if task == "embedding" else None,
    )


def _cosine(a: Array, b: Array) -> float:
    """Return the lowest cosine over the samples of two matrices (N, numbers)."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / np.maximum(lengths, 1e-300)).min())


def check_outputs(
    stage: str,
    inputs: str,
    outputs: Array | Arrays,
    reference: Array | Arrays,
    bound: float,
    task: str | None = None,
    noise: Sequence[Noise] = (),
    scales: Sequence[float] | None = None,
) -> Agreement:
    """Compare a stage's outputs with those of the stage before, output by output; return the worst agreement.

    noise: of the source, for each output; empty for none. scales: of `compare_all`. Raises AgreementError above the
    bound and the noise.
    """
    every = compare_all(outputs, reference, task, scales)
    for index, (agreement, own) in enumerate(zip(every, noise or [NO_NOISE] * len(every), strict=True)):
        if not is_within(agreement, bound, own):
            where = f" of output {index}" if len(every) > 1 else ""
            raise _difference(stage, f"the {agreement.samples} {inputs} inputs", where, agreement, bound, own)
    return worst_of(every)


def is_within(agreement: Agreement, bound: float, noise: Noise = NO_NOISE) -> bool:
    """Return whether an output agrees with its reference: within the bounds, or as far as the source with itself."""
    is_near = agreement.max_relative_error <= bound and agreement.sqnr_db >= LEAST_SQNR_DB
    return (is_near and (agreement.equal is None or agreement.equal >= LEAST_EQUAL)) or noise.covers(agreement)


def _difference(
    stage: str, inputs: str, where: str, agreement: Agreement, bound: float, noise: Noise
) -> AgreementError:
    named = f" ({_BOUND_OF[stage]} in params.yaml)" if stage in _BOUND_OF else ""
    if agreement.equal is not None:
        found, expected = f"{agreement.equal:.1%} of the integers are equal", f"at least {LEAST_EQUAL:.0%}"
        own = f"{1 - noise.equal:.1%} of them differ" if noise.equal < 1 else ""
    else:
        found = (
            f"the largest error is {agreement.max_relative_error:.3g} of the spread of the outputs, SQNR "
            f"{agreement.sqnr_db:.1f} dB"
        )
        expected = f"at most {bound:g}{named}, and {LEAST_SQNR_DB:g} dB"
        own = f"{noise.max_relative_error:.3g}, {noise.sqnr_db:.1f} dB" if noise != NO_NOISE else ""
    if own:
        expected += f"; or {NOISE_MULTIPLE:g} times the source's own rounding ({own})"
    return AgreementError(
        f"{stage} changes the outputs{where}: on {inputs} {found}",
        expected,
        "compare the network before and after this stage; raise the bound only if you know why",
    )


def check_equal(stage: str, outputs: Arrays, reference: Arrays) -> None:
    """Raise AgreementError if two builds of one library differ in a single bit."""
    for index, (a, b) in enumerate(zip(outputs, reference, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype or a.tobytes() != b.tobytes():
            raise AgreementError(
                f"{stage}: output {index} of the library without TVM differs from that of the same kernels "
                f"in TVM's runtime",
                "equal bits",
                "this is a bug in tvmflow: keep the folder of the stage and report it",
            )


def check_golden(
    stage: str,
    outputs: Array | Arrays,
    reference: Array | Arrays,
    bound: float,
    task: str | None = None,
    noise: Sequence[Noise] = (),
) -> Agreement:
    """Compare a stage's golden outputs with those of the stage before. Raises AgreementError."""
    if len(as_outputs(reference)[0]) < 2:
        raise AgreementError(
            f"{stage} has {len(as_outputs(reference)[0])} golden input",
            "at least 2, or a network that ignores its input would pass",
            "raise fetch.golden_samples in params.yaml",
        )
    return check_outputs(stage, "golden", outputs, reference, bound, task, noise)


def _matrix(outputs: Array, what: str) -> Array:
    """Return outputs as (N, outputs) in float64. Raises AgreementError if they are empty or not finite."""
    if outputs.size == 0:
        raise AgreementError(f"{what} of shape {outputs.shape}", "at least one input and one output")
    matrix = outputs.reshape(len(outputs), -1).astype(np.float64)
    if not np.isfinite(matrix).all():
        raise AgreementError(f"{what} are not all finite numbers", "finite numbers, as the source framework gives")
    return matrix
