"""Keep TVM from importing PyTorch: TVM does at its start, where it is installed, and that takes
2 s of every process.

A process that needs PyTorch imports it by itself, before or after TVM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoTorch:
    """Refuses torch as long as TVM is being imported, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torch" and any(map(_is_being_imported, ("tvm_ffi", "tvm"))):
            raise ModuleNotFoundError("not needed by TVM", name=name)
        return None


def _is_being_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and getattr(module.__spec__, "_initializing", False) is True


def keep_torch_out_of_tvm() -> None:
    """Let TVM's own import of PyTorch fail in this process, which it takes well; to be called before TVM is imported."""
    if _NoTorch not in sys.meta_path:
        sys.meta_path.insert(0, _NoTorch)
