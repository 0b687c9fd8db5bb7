"""Drivers that pass the probe and still compute wrong values, or that fail in use: refused, with the reason and where
it was reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownBad:
    """api: of which API; device, driver: regular expressions that name and driver have to match; use: what must not be
    used.

    use: `any`, or the name of a self-test of the probe, as `image_array`.
    """

    api: str
    device: str
    driver: str
    use: str
    reason: str
    reported: str


KNOWN_BAD = (
    KnownBad(
        "opencl",
        r"Mali-(G72|G76|T8[0-9]{2})",
        r".*",
        "image_from_buffer",
        "images made of buffers read wrong values; this project makes none",
        "TensorFlow Lite, delegates/gpu, device exceptions",
    ),
    KnownBad(
        "opencl",
        r"pthread",
        r"(1|2|3\.0)(\..*|-.*)?",
        "image_from_buffer",
        "images cannot be made of buffers; this project makes none",
        "PoCL issue 1855",
    ),
)


def known_bad(api: str, device: Mapping[str, object]) -> tuple[KnownBad, ...]:
    """Return the entries that a device of the probe matches."""
    name, driver = str(device.get("name", "")), str(device.get("driver", ""))
    return tuple(
        one for one in KNOWN_BAD if one.api == api and re.search(one.device, name) and re.fullmatch(one.driver, driver)
    )
