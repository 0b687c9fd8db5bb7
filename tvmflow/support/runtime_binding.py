"""Load the apps' Python binding of the runtime, and provide what devices need for accelerators."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from tvmflow.support.paths import RUNTIME

DRIVER_FUNCTION = "tvmflow.driver"
"""Of TVM's table of functions: name of a design -> address of a tvmflow_driver that lives as long as the process."""
DRIVER_ERROR_FUNCTION = "tvmflow.driver_error"
"""Of TVM's table of functions: () -> what went wrong in the last launch that failed, "" for nothing."""


@functools.cache
def network_binding() -> Any:
    """Return runtime/python/tvmflow_network.py, the binding in bundles, as a module."""
    spec = importlib.util.spec_from_file_location("tvmflow_network", RUNTIME / "python" / "tvmflow_network.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
