"""Build a schedule record from its trace alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Traced:
    trace: Any
    status: str = "ok"
