"""Keep TVM's import from importing PyTorch and from installing its SIGSEGV handler.

TVM imports PyTorch if it is installed, which takes 2 s per process; a process that needs PyTorch imports it itself,
before or after TVM. On SIGSEGV, TVM's library prints a backtrace, for which it allocates memory, and waits forever if
the fault came during an allocation: of 200 processes that allocate, 41 hung. Python's faulthandler does not.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType


class _Loader(SourceFileLoader):
    """Loads tvm_ffi, whose library installs the handler, and installs faulthandler again."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _replace_handler()


def load_interface_of_tvm() -> None:
    """Load the interface of TVM's libraries before a framework, and let it read symbols for the traces of its errors.

    It reads those of all libraries at its first error, and importing TVM raises a hundred: 0.4 s more with PyTorch.
    """
    prepare_import_of_tvm()
    from tvm_ffi import core

    core._object_type_key_to_index("no class")


def _replace_handler() -> None:
    faulthandler.disable()  # enable() has no effect if it is already enabled below TVM's handler
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    faulthandler.enable(file=2)


class _Finder:
    """Hides torch while TVM is being imported, and finds tvm_ffi for `_Loader`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torch" and any(map(_is_being_imported, ("tvm_ffi", "tvm"))):
            raise ModuleNotFoundError("not needed by TVM", name=name)
        found = PathFinder.find_spec(name, path, target) if name == "tvm_ffi" else None
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(found.loader.name, found.loader.path)
        return found


def _is_being_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and getattr(module.__spec__, "_initializing", False) is True


def prepare_import_of_tvm() -> None:
    """Make a later import of TVM in this process skip PyTorch and keep faulthandler's SIGSEGV handler, and replace the
    handler of one imported before.
    """
    if "tvm_ffi" in sys.modules:
        _replace_handler()
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
