"""Describe an operator of CLML: what the host code needs to create it, and its constants in CLML's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from tvmflow.support.json_values import from_json, to_json

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]

ClmlKind = Literal[
    "convolution",
    "depthwise convolution",
    "max pool",
    "average pool",
    "addition",
    "activation",
    "dense",
    "softmax",
]
KINDS: tuple[ClmlKind, ...] = get_args(ClmlKind)
_ACTIVATIONS = ("none", "relu", "relu6")
_ARITHMETICS = ("float32", "float16", "float16_acc32")


@dataclass(frozen=True)
class ClmlOperator:
    """An operator and its attributes. padding: top, left, bottom, right; window: of a pool; the others height and
    width.
    """

    kind: ClmlKind
    activation: str
    arithmetic: str
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    strides: Pair = (1, 1)
    dilation: Pair = (1, 1)
    window: Pair = (1, 1)

    def windowed(
        self, padding: tuple[int, int, int, int], strides: Pair, dilation: Pair = (1, 1), window: Pair = (1, 1)
    ) -> ClmlOperator:
        return replace(self, padding=padding, strides=strides, dilation=dilation, window=window)

    def to_json(self) -> str:
        return json.dumps(to_json(self))

    @classmethod
    def from_json(cls, text: str) -> ClmlOperator:
        return from_json(cls, json.loads(text))

    def to_c(self) -> str:
        """Return the initializer of a plan_layer of runtime/src/plan.h."""
        groups = (self.padding, self.strides, self.dilation, self.window)
        numbers = ", ".join(f"{{{', '.join(map(str, group))}}}" for group in groups)
        names = (
            f"PLAN_LAYER_{self.kind.replace(' ', '_').upper()}, {_ACTIVATIONS.index(self.activation)}, "
            f"{_ARITHMETICS.index(self.arithmetic)}"
        )
        return f"{{{names}, {numbers}}}"

    def constants(self, arrays: Sequence[Array], dtype: str) -> list[Array]:
        """Return weights and bias as tensors of four axes, in the type of the layer's input.

        Depthwise weights are one image of as many channels; those of a dense layer are rows of outputs.
        """
        found = [np.asarray(array).astype(dtype) for array in arrays]
        if self.kind == "dense":
            found[0] = found[0].T[None, None]  # (K, M) -> (1, 1, M, K)
        elif self.kind == "depthwise convolution":
            found[0] = found[0].transpose(1, 0, 2, 3)  # (C, 1, h, w) -> (1, C, h, w)
        return [np.ascontiguousarray(array) for array in (*found[:1], *(one.reshape(1, -1, 1, 1) for one in found[1:]))]


def arithmetic_of(dtype: str, sums: str) -> str:
    """Return the arithmetic for inputs of a type and sums of another."""
    return "float16_acc32" if (dtype, sums) == ("float16", "float32") else dtype
