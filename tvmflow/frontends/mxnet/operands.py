"""Describe the operands of an MXNet operator. Attributes are text in its files; they are parsed, never evaluated."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.tvm_compat import type_of
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Operands:
    """The operands of an operator: values (Relax expressions), arrays of those that are parameters, attributes."""

    name: str
    op: str
    values: tuple[Any, ...]
    arrays: tuple[Array | None, ...]
    attrs: dict[str, str]
    builder: Any

    def emit(self, value: Any) -> Any:
        """Return a step as a value whose shape is known."""
        return self.builder.emit(value)

    def shape_of(self, value: Any) -> tuple[int, ...]:
        return tuple(int(size) for size in type_of(value).shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the first operand."""
        return self.shape_of(self.values[0])

    def integers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        text = self.attrs.get(key)
        if text is None or text in ("None", "()", "[]"):
            return default
        if not re.fullmatch(r"[\[(]?[-\d, L]*[\])]?", text):
            raise self.wrong(key)
        return tuple(int(number) for number in re.findall(r"-?\d+", text))

    def integer(self, key: str, default: int) -> int:
        return self.integers(key, (default,))[0]

    def optional_integers(self, key: str) -> tuple[int | None, ...]:
        """Return numbers of which some may be None."""
        text = self.attrs.get(key, "")
        if not re.fullmatch(r"[\[(]?[-\d, LNone]*[\])]?", text):
            raise self.wrong(key)
        return tuple(None if number == "None" else int(number) for number in re.findall(r"-?\d+|None", text))

    def number(self, key: str, default: float) -> float:
        text = self.attrs.get(key, str(default))
        try:
            value = default if text == "None" else float(text)
        except ValueError:
            raise self.wrong(key) from None
        if math.isnan(value):
            raise self.wrong(key)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        return self.attrs.get(key, str(default)) in ("True", "true", "1")

    def array(self, index: int) -> Array:
        array = self.arrays[index] if index < len(self.arrays) else None
        if array is None:
            raise ModelFileError(f"{self.op} {self.name!r} computes its parameter {index}", "a parameter from the file")
        return array

    def axis(self, key: str, default: int) -> int:
        """Return an axis of the first operand, counted from its first."""
        axis, count = self.integer(key, default), len(self.shape)
        if not -count <= axis < count:
            raise self.wrong(key)
        return axis % count

    def wrong(self, key: str) -> ModelFileError:
        return ModelFileError(f"{self.op} {self.name!r} has {key}={self.attrs.get(key)!r}", "a legal attribute")

    def unsupported(self, what: str) -> UnsupportedOperatorError:
        return UnsupportedOperatorError(
            f"MXNet operator {self.op} ({self.name!r}) with {what}",
            "one that tvmflow's importer supports",
            "replace it in the model, or export the model to ONNX",
        )


def constant(value: Any) -> Any:
    return relax.const(np.ascontiguousarray(value, np.float32), "float32")
