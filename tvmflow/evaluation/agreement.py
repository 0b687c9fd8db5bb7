"""How far two sets of answers are apart, and the check at each arrow of the walk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvmflow.errors import AgreementError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Agreement:
    """answers against reference, both (N, outputs): share of equal top-1, and errors over everything.

    max_relative_error is max |a - b| / max |b|: relative to the largest answer, so that answers near zero do not decide.
    """

    top1_agreement: float
    max_absolute_error: float
    max_relative_error: float
    cosine: float
    samples: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def compare(answers: Array, reference: Array) -> Agreement:
    """Compare two arrays of the same shape (N, ...). Raises AgreementError when shapes differ or an answer is not finite."""
    if answers.shape != reference.shape:
        raise AgreementError(f"answers of shape {answers.shape}", f"{reference.shape}, as the source framework gives")
    if not np.isfinite(answers).all():
        raise AgreementError("answers that are not finite numbers", "finite numbers, as the source framework gives")
    a = answers.reshape(len(answers), -1).astype(np.float64)
    b = reference.reshape(len(reference), -1).astype(np.float64)
    difference = float(np.abs(a - b).max(initial=0.0))
    largest = float(np.abs(b).max(initial=0.0))
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return Agreement(
        top1_agreement=float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
        max_absolute_error=difference,
        max_relative_error=difference / largest if largest else difference,
        cosine=float((a * b).sum() / norms) if norms else float(difference == 0.0),
        samples=len(a),
    )


def check_golden(stage: str, answers: Array, reference: Array, bound: float) -> Agreement:
    """Compare the golden answers of a stage's form with the source framework's. Raises AgreementError naming the stage."""
    found = compare(answers, reference)
    if found.max_relative_error > bound:
        raise AgreementError(
            f"{stage} changes the answers: max relative error {found.max_relative_error:.3g} on the golden inputs",
            f"at most {bound:g} ({stage}.max_relative_error in params.yaml)",
            "look at the form before and after this stage; raise the bound only if you know why",
        )
    return found
