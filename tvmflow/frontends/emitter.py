"""Emit operators of Relax by name, for converters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmflow.ir.tvm_compat import type_of


class Emitter:
    """Emits operators of Relax by their names; `nn__pad` is relax.op.nn.pad."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def __getattr__(self, name: str) -> Callable[..., Any]:
        from tvm import relax

        operator = relax.op
        for part in name.split("__"):
            operator = getattr(operator, part)
        return lambda *args, **options: self.builder.emit(operator(*map(self.operand, args), **options))

    def operand(self, value: Any) -> Any:
        """Return an argument as Relax takes it."""
        return value


def type_name(value: Any) -> str:
    """Return the element type of a Relax value."""
    found = type_of(value).dtype
    return str(getattr(found, "dtype", found))
