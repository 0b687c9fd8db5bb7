"""From torch.export to Relax and ONNX: shared by PyTorch and by Keras on its torch backend."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.errors import ModelFileError, UnsupportedOperatorError, first_line
from tvmflow.frontends.source_model import Array


class ExportedModel:
    """A torch module in evaluation mode with one float32 input of fixed shape."""

    in_process = True

    def __init__(self, module: Any, input_name: str, shape: tuple[int, ...]) -> None:
        self.module, self.input_name, self.shape = module, input_name, shape
        self._program: Any = None

    @classmethod
    def of_program(cls, program: Any, input_name: str, shape: tuple[int, ...]) -> ExportedModel:
        """Wrap a torch.export program; a batch that it leaves open is bound to that of `shape`."""
        model = cls(program.module(), input_name, shape)
        model._program = program
        return model

    def layers(self, x: Array) -> Iterator[tuple[str, Array]]:
        """Yield the value of every operator of the exported program, in order."""
        import torch

        found: list[tuple[str, Array]] = []

        class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
            def run_node(self, node: Any) -> Any:
                value = super().run_node(node)
                if node.op == "call_function" and isinstance(value, torch.Tensor) and value.is_floating_point():
                    found.append((f"{node.name} ({node.target})", value.detach().numpy().copy()))
                return value

        with torch.no_grad():
            Recorder(self.exported().module()).run(torch.from_numpy(x))
        yield from found

    def run(self, x: Array) -> Array:
        import torch

        with torch.no_grad():
            try:
                output = self.module(torch.from_numpy(x))
            except (RuntimeError, ValueError) as error:
                raise _wrong_shape(error, self.shape) from error
        if not isinstance(output, torch.Tensor):
            raise ModelFileError(f"the model's output is a {type(output).__name__}", "one tensor (N, outputs)")
        return np.asarray(output.detach().cpu().numpy())

    def use_threads(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)

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

    def to_relax(self, max_batch: int | None = None) -> Any:
        """Return the IRModule for the input's shape, or for any batch of 1 to max_batch."""
        from tvm.relax.frontend.torch import from_exported_program

        program = self.exported() if max_batch is None else self._any_batch(max_batch)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = from_exported_program(program, unwrap_unit_return_tuple=True, custom_convert_map=_OWN)
                return module if max_batch is not None else _bound(module, self.shape)
        except (AssertionError, NotImplementedError, KeyError) as error:
            raise unsupported("PyTorch", str(error)) from error

    def _any_batch(self, max_batch: int) -> Any:
        import torch

        batch = torch.export.Dim("batch", min=1, max=max_batch)
        example = torch.zeros((2, *self.shape[1:]))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(self.module, (example,), dynamic_shapes=({0: batch},))

    def to_onnx(self, path: Path) -> None:
        import contextlib
        import io

        import torch

        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                self.exported(), (), path, input_names=[self.input_name], external_data=False, verbose=False
            )


def _nearest(node: Any, importer: Any) -> Any:
    """Convert upsample_nearest2d; TVM's own takes the pixel nearest to the middle, PyTorch the one to the upper left."""
    from tvm import relax

    size = tuple(int(extent) for extent in node.meta["val"].shape[2:])
    return importer.block_builder.emit(relax.op.image.resize2d(
        importer.env[node.args[0]], size, layout="NCHW", method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric", rounding_method="floor",
    ))  # fmt: skip


_OWN = {"upsample_nearest2d.vec": _nearest}


def _bound(module: Any, shape: tuple[int, ...]) -> Any:
    """Put the numbers of `shape` in place of the sizes that a module's input leaves open."""
    from tvm import relax

    from tvmflow.ir.tvm_names import type_of

    sizes = list(type_of(module["main"].params[0]).shape)
    open_sizes = {
        str(size.name): wanted for size, wanted in zip(sizes, shape, strict=True) if not hasattr(size, "value")
    }
    return relax.transform.BindSymbolicVars(open_sizes)(module) if open_sizes else module


def unsupported(framework: str, message: str) -> UnsupportedOperatorError:
    """Name the operators in an importer's complaint."""
    names = re.findall(r"['\"]?([A-Za-z_][\w.]*\.default|[a-z_]+\.[\w.]+|[A-Z]\w+)['\"]?", message)
    shown = ", ".join(dict.fromkeys(n for n in names if n not in ("Unsupported",))) or message.strip()[:200]
    return UnsupportedOperatorError(
        f"TVM's {framework} importer does not know: {shown}",
        "a model made of operators that it knows",
        "replace that operator in the model, or export the model in another format",
    )


def _wrong_shape(error: Exception, shape: tuple[int, ...]) -> ModelFileError:
    return ModelFileError(
        f"the model refuses an input of shape {list(shape)}: {first_line(error)}",
        "input.shape as the model was built for",
        "correct input.shape in params.yaml",
    )
