"""Take a pretrained model to a measured, versioned, releasable library on a device, with Apache TVM.

The names below are the Python API, docs/api.md. They are imported when they are first used, so that `import tvmflow` is
cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmflow.support.version import __version__ as __version__

if TYPE_CHECKING:
    from tvmflow.api import Workspace, history, load, plan, predict, promote, run, scorecard

__all__ = ["Workspace", "history", "load", "plan", "predict", "promote", "run", "scorecard"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("tvmflow.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
