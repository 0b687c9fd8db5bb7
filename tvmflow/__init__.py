"""Take a pretrained model to a measured, versioned, releasable library on a device, with Apache TVM.

The library package: what each stage means. It knows nothing of Prefect, DVC or MLflow, except in `ledger/`. The names below
are the Python API, docs/api.md; they are imported when they are first used, so that `import tvmflow` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmflow.api import Workspace, history, load, plan, predict, promote, run, scorecard

__version__ = "0.1.0"
__all__ = ["Workspace", "history", "load", "plan", "predict", "promote", "run", "scorecard"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("tvmflow.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
