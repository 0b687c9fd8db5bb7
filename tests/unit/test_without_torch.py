"""TVM does not bring PyTorch along, and both work in one process, whichever comes first."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAD = "import sys; from tvmflow.without_torch import keep_torch_out_of_tvm; keep_torch_out_of_tvm()\n"
_BOTH = """
import numpy, torch, tvm
print(torch.from_dlpack(tvm.runtime.tensor(numpy.arange(3.0))).sum().item())
print(tvm.runtime.from_dlpack(torch.arange(4.0)).numpy().sum())
"""


@pytest.mark.parametrize("first", ["import tvm\nassert 'torch' not in sys.modules", "import torch\nimport tvm"])
def test_tvm_does_not_bring_torch_along(first: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{_HEAD}{first}\n{_BOTH}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.split() == ["3.0", "6.0"], done.stderr
