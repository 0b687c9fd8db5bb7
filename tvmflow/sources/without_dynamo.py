"""Keep torchvision from importing TorchDynamo, torch's compiler: it does for one function, which only its boxes call, and
that takes 1.5 s of every process.

A process that compiles or exports imports it by itself, before or after.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_NAME, _FUNCTION = "torch._dynamo.utils", "is_compile_supported"


def _is_compile_supported(device: Any) -> Any:
    return getattr(importlib.import_module(_NAME), _FUNCTION)(device)


class _StandIn(ModuleType):
    """Has the one function, which asks the real module when it is called; for anything else the real one is imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _take_away(self)
        return getattr(importlib.import_module(_NAME), name)


def _take_away(module: ModuleType) -> None:
    if sys.modules.get(_NAME) is module:
        del sys.modules[_NAME]


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """Within, that function is there without TorchDynamo, unless it has been imported already."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    module = _StandIn(_NAME)
    setattr(module, _FUNCTION, _is_compile_supported)
    sys.modules[_NAME] = module
    try:
        yield
    finally:
        _take_away(module)
