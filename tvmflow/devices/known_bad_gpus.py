"""List GPU drivers that pass the probe but compute wrong values or fail in use, with reason and source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownBad:
    """An API and regular expressions for device and driver names. use: what must not be used: `any`, or a self-test of
    the probe such as `image_array`.
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
    """Return the entries that match a device of the probe."""
    name, driver = str(device.get("name", "")), str(device.get("driver", ""))
    return tuple(
        one for one in KNOWN_BAD if one.api == api and re.search(one.device, name) and re.fullmatch(one.driver, driver)
    )
