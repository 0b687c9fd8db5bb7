"""Keep torchvision and torch's optimizers from importing TorchDynamo, which takes 1.5 s per process.

torchvision imports it for one function that only its box operators call. A process that compiles or exports imports it
itself, before or after. Torch's optimizers import it only to disable compilation.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_NAME, _FUNCTION = "torch._dynamo.utils", "is_compile_supported"
_COMPILER = "torch._dynamo"


def _is_compile_supported(device: Any) -> Any:
    return getattr(importlib.import_module(_NAME), _FUNCTION)(device)


class _StandIn(ModuleType):
    """A module with that one function, which imports the real module when it is called or anything else is accessed."""

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
    """Provide that function in a context without importing TorchDynamo, unless it is already imported."""
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


class _NoCompiler(ModuleType):
    """The functions of TorchDynamo that optimizers call when nothing is compiled."""

    @staticmethod
    def graph_break() -> None:
        pass

    @staticmethod
    def disable(function: Any, *_how: Any, **_named: Any) -> Any:
        return function


@contextlib.contextmanager
def optimizers_without_dynamo() -> Iterator[None]:
    """Run torch's optimizers in a context without TorchDynamo, unless it is already imported; nothing may be
    compiled.
    """
    if _COMPILER in sys.modules:
        yield
        return
    sys.modules[_COMPILER] = module = _NoCompiler(_COMPILER)
    try:
        yield
    finally:
        if sys.modules.get(_COMPILER) is module:
            del sys.modules[_COMPILER]
