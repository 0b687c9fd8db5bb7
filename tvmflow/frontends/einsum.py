"""Convert Einstein sums to transposes and matrix products, whose kernels are tiled; TVM's einsum is a plain loop."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tvmflow.ir.tvm_compat import Expr, shape_of

Term = tuple[Any, str]  # a value and a label for each of its axes


def einsum(builder: Any, equation: str, operands: list[Expr]) -> Expr | None:
    """Emit the Einstein sum of values of any shapes, one dtype; None for what is no product of matrices.

    That is a label twice in one operand, as in "ii->i", or axes of different extents under one label.
    """
    inputs, output = _labels(equation.replace(" ", ""), [len(shape_of(value)) for value in operands])
    extents: dict[str, int] = {}
    for labels, value in zip(inputs, operands, strict=True):
        for label, extent in zip(labels, shape_of(value), strict=True):
            if extents.setdefault(label, extent) != extent:
                return None
    if any(len(set(labels)) != len(labels) for labels in inputs):
        return None
    terms: list[Term] = list(zip(operands, inputs, strict=True))
    while len(terms) > 1:
        needed = set(output).union(*(labels for _, labels in terms[2:]))
        terms = [_multiply(builder, terms[0], terms[1], needed, extents), *terms[2:]]
    return _arrange(builder, _reduce(builder, terms[0], set(output)), output)


def _labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the labels of each operand's axes and of the output's; ellipses become digits."""
    left, arrow, right = equation.partition("->")
    inputs = left.split(",")
    most = max(rank - len(part.replace("...", "")) for part, rank in zip(inputs, ranks, strict=True))
    hidden = "0123456789"[:most]
    named = [
        part.replace("...", hidden[most - (rank - len(part.replace("...", ""))) :])
        for part, rank in zip(inputs, ranks, strict=True)
    ]
    if arrow:
        return named, right.replace("...", hidden)
    letters = sorted(label for label in set(left) if label.isalpha() and left.count(label) == 1)
    return named, hidden * ("..." in left) + "".join(letters)


def _reduce(builder: Any, term: Term, needed: set[str]) -> Term:
    """Return the term summed over labels that nothing else reads."""
    value, labels = term
    axes = [axis for axis, label in enumerate(labels) if label not in needed]
    if not axes:
        return term
    kept = "".join(label for label in labels if label in needed)
    return builder.emit(relax.op.sum(value, axes)), kept


def _arrange(builder: Any, term: Term, labels: str) -> Expr:
    """Return the value with its axes in the order of `labels`."""
    value, have = term
    return value if have == labels else builder.emit(relax.op.permute_dims(value, [have.index(one) for one in labels]))


def _multiply(builder: Any, a: Term, b: Term, needed: set[str], extents: dict[str, int]) -> Term:
    """Return the product of two terms, summed over the labels that neither the output nor a later operand has."""
    a, b = _reduce(builder, a, needed | set(b[1])), _reduce(builder, b, needed | set(a[1]))
    shared = [label for label in a[1] if label in b[1]]
    batch, summed = ("".join(one for one in shared if (one in needed) == is_kept) for is_kept in (True, False))
    rows = "".join(label for label in a[1] if label not in shared)
    columns = "".join(label for label in b[1] if label not in shared)

    def matrices(term: Term, *groups: str) -> Expr:
        shape = [math.prod(extents[label] for label in group) for group in groups]
        return builder.emit(relax.op.reshape(_arrange(builder, term, "".join(groups)), shape))

    product = builder.emit(relax.op.matmul(matrices(a, batch, rows, summed), matrices(b, batch, summed, columns)))
    made = batch + rows + columns
    return builder.emit(relax.op.reshape(product, [extents[label] for label in made])), made
