"""From torch.export to Relax and ONNX: shared by PyTorch and by Keras on its torch backend."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.errors import ModelFileError, UnsupportedOperatorError, first_line
from tvmflow.frontends.source_model import Array


class ExportedModel:
    """A torch module in evaluation mode with one float32 input of fixed shape."""

    def __init__(self, module: Any, input_name: str, shape: tuple[int, ...]) -> None:
        self.module, self.input_name, self.shape = module, input_name, shape
        self._program: Any = None

    def run(self, x: Array) -> Array:
        import torch

        with torch.no_grad():
            try:
                answer = self.module(torch.from_numpy(x))
            except (RuntimeError, ValueError) as error:
                raise _wrong_shape(error, self.shape) from error
        if not isinstance(answer, torch.Tensor):
            raise ModelFileError(f"the model answers with {type(answer).__name__}", "one tensor (N, outputs)")
        return np.asarray(answer.detach().cpu().numpy())

    def exported(self) -> Any:
        """Return the torch.export program, made once."""
        import torch

        if self._program is None:
            try:
                with warnings.catch_warnings(), torch.no_grad():
                    warnings.simplefilter("ignore")
                    self._program = torch.export.export(self.module, (torch.zeros(self.shape),))
            except (RuntimeError, ValueError) as error:
                raise _wrong_shape(error, self.shape) from error
        return self._program

    def to_relax(self) -> Any:
        from tvm.relax.frontend.torch import from_exported_program

        program = self.exported()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return from_exported_program(program, unwrap_unit_return_tuple=True)
        except (AssertionError, NotImplementedError, KeyError) as error:
            raise unsupported("PyTorch", str(error)) from error

    def to_onnx(self, path: Path) -> None:
        import contextlib
        import io

        import torch

        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.exported(), (), path, input_names=[self.input_name], external_data=False, verbose=False
            )


def unsupported(framework: str, message: str) -> UnsupportedOperatorError:
    """Name the operators in an importer's complaint."""
    names = re.findall(r"['\"]?([A-Za-z_][\w.]*\.default|[a-z_]+\.[\w.]+|[A-Z]\w+)['\"]?", message)
    shown = ", ".join(dict.fromkeys(n for n in names if n not in ("Unsupported",))) or message.strip()[:200]
    return UnsupportedOperatorError(
        f"TVM's {framework} importer does not know: {shown}",
        "a model made of operators that it knows",
        "replace that operator in the model, or export the model in another form",
    )


def _wrong_shape(error: Exception, shape: tuple[int, ...]) -> ModelFileError:
    return ModelFileError(
        f"the model refuses an input of shape {list(shape)}: {first_line(error)}",
        "input.shape as the model was built for",
        "correct input.shape in params.yaml",
    )
