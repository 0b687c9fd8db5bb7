"""Map TIR's types to GPU types, for all languages.

Integers of 8 and 16 bits are computed in 32 bits, so that a device must support them in memory only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvmflow.support.errors import StageError

# dtype -> dtype of its computations
_COMPUTED = {
    **{name: name for name in ("float32", "float16", "int32", "uint32", "int64", "uint64", "bool")},
    "int16": "int32",
    "int8": "int32",
    "uint16": "uint32",
    "uint8": "uint32",
}
_DTYPE = re.compile(r"(bool|float\d+|u?int\d+)(?:x(\d+))?")
MOST_LANES = 4
LANES = "xyzw"


@dataclass(frozen=True)
class KernelType:
    """A TIR type of `lanes` values. is_wide: float16 is computed in float32 and rounded when it is stored."""

    dtype: str
    lanes: int = 1
    is_wide: bool = False

    @property
    def computed(self) -> str:
        """Return the dtype in which values are computed."""
        return "float32" if self.is_wide and self.is_float else _COMPUTED[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def narrow_bits(self) -> int:
        """Return the bits of an integer that is computed in more bits, else 0."""
        bits = int(re.sub(r"\D", "", self.dtype) or 0)
        return bits if not self.is_float and 0 < bits < 32 else 0

    def scalar(self) -> KernelType:
        return self.with_lanes(1)

    def with_lanes(self, lanes: int) -> KernelType:
        return KernelType(self.dtype, lanes, self.is_wide)


FLOAT32 = KernelType("float32")


def type_of(dtype: object, is_wide: bool = False) -> KernelType:
    """Return the kernel type of a TIR dtype. is_wide: see KernelType. Raises StageError for unsupported dtypes."""
    found = _DTYPE.fullmatch(str(dtype))
    lanes = int(found[2] or 1) if found else 0
    if not found or found[1] not in _COMPUTED or not 1 <= lanes <= MOST_LANES:
        raise StageError(
            f"a kernel computes with {dtype}", f"{', '.join(_COMPUTED)}, in vectors of at most {MOST_LANES}"
        )
    return KernelType(found[1], lanes, is_wide)
