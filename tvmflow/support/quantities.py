"""Read quantities with their units: "0.5%", "8ms", "64MB"."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tvmflow.support.errors import UsageError

SHARES = {"%": 0.01, "": 1.0}
MILLISECONDS = {"ms": 1.0, "us": 1e-3, "s": 1e3}
BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}


def quantity(what: str, text: str, units: Mapping[str, float]) -> float:
    """Return a quantity in the unit whose factor is 1. what: its name. Raises UsageError with the legal units."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z%]*)", text)
    factor = units.get(match[2]) if match else None
    if match is None or factor is None:
        example = next(unit for unit in units if unit)
        named = ", ".join(unit or "none" for unit in units)
        raise UsageError(f"{what} {text!r}", f"a number and its unit ({named}), e.g. 8{example}")
    value = float(match[1]) * factor
    if units is SHARES and value > 1:
        raise UsageError(f"{what} {text!r}", "a share of at most 100%")
    return value
