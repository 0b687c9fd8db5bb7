"""List the families of multiply instructions of arm64, with values that reveal typical mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.support.dtypes import numpy_dtype


@dataclass(frozen=True)
class Family:
    """compiled: LLVM's processor; runs: qemu's; code: what has to be in the assembly; bound: of errors, of the largest
    output.
    """

    name: str
    compiled: str
    runs: str
    data: str
    weight: str
    total: str
    code: tuple[str, ...]
    bound: float = 0.0


FAMILIES = (
    Family(
        "fmla",
        "cortex-a53",
        "cortex-a53",
        "float32",
        "float32",
        "float32",
        (r"fmla\tv\d+\.4s, v\d+\.4s, v\d+\.s\[3\]",),
        2e-6,
    ),
    Family(
        "fmla_half",
        "cortex-a76",
        "cortex-a76",
        "float16",
        "float16",
        "float16",
        (r"fmla\tv\d+\.8h, v\d+\.8h, v\d+\.h\[7\]",),
        1e-2,
    ),
    Family(
        "fmla_wide",
        "cortex-a76",
        "cortex-a76",
        "float16",
        "float16",
        "float32",
        (r"fmla\tv\d+\.4s, v\d+\.4s, v\d+\.s\[3\]",),
        2e-6,
    ),
    Family(
        "widened",
        "cortex-a53",
        "cortex-a53",
        "float16",
        "float16",
        "float32",
        (r"fmla\tv\d+\.4s, v\d+\.4s, v\d+\.s\[3\]",),
        2e-6,
    ),
    Family("smull", "cortex-a53", "cortex-a53", "int8", "int8", "int32", (r"(?s)smull\tv.*smlal\tv.*sadalp\tv",)),
    Family(
        "sdot",
        "cortex-a76",
        "cortex-a76",
        "int8",
        "int8",
        "int32",
        (r"sdot\tv\d+\.4s, v\d+\.16b, v\d+\.4b\[1\]", r"(?s)tbl\tv.*sdot\tv\d+\.4s, v\d+\.16b, v\d+\.16b\n"),
    ),
    # In pairs, and first layers by a lane.
    Family(
        "smmla",
        "neoverse-v1",
        "max",
        "int8",
        "int8",
        "int32",
        (r"\tsmmla\tv\d+\.4s, v\d+\.16b, v\d+\.16b", r"\tsdot\tv\d+\.4s, v\d+\.16b, v\d+\.4b\[1\]"),
    ),
    Family(
        "usmmla",
        "cortex-a710",
        "max",
        "uint8",
        "int8",
        "int32",
        (r"\tusmmla\tv\d+\.4s, v\d+\.16b, v\d+\.16b", r"\tsudot\tv\d+\.4s, v\d+\.16b, v\d+\.4b\[1\]"),
    ),
    Family(
        "bfmmla",
        "neoverse-n2",
        "max",
        "bfloat16",
        "bfloat16",
        "float32",
        (r"\tbfmmla\tv\d+\.4s, v\d+\.8h, v\d+\.8h", r"\tbfdot\tv\d+\.4s, v\d+\.8h"),
        2e-6,
    ),
)


def drawn(draw: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return values of a dtype, the extremes of integers among them; weights of -128 are never made."""
    if dtype in ("int8", "uint8"):
        return draw.choice(np.arange(*((-128, 128) if dtype == "int8" else (0, 256))), shape).astype(dtype)
    return draw.standard_normal(shape, dtype=np.float32).astype(numpy_dtype(dtype))
