"""Save a library as a model of MLflow, for `mlflow.pyfunc.load_model` and `mlflow models predict`.

A logged model is a folder: MLmodel (the signature, and this module's name), requirements.txt, an input example, and
data/ with library.so and manifest.json. Loading it needs neither pickle nor a workspace, only tvmflow and a processor
that the library is for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tvmflow.support.version import __version__

if TYPE_CHECKING:
    from tvmflow.evaluation.loaded_library import LoadedLibrary

Arrays = Mapping[str, NDArray[Any]]
LOADER = "tvmflow.tracking.mlflow.pyfunc"
DATA = "data"
MOST_EXAMPLE_NUMBERS = 1 << 20  # they are written as JSON
_COMPARISON = "warn_dependency_requirement_mismatches"


class PyfuncLibrary:
    """The object that MLflow calls. One input is an array, several are a mapping by name."""

    def __init__(self, library: LoadedLibrary) -> None:
        self.library = library

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Return the outputs (N, ...), of several outputs a mapping output_0, output_1, ..."""
        if isinstance(model_input, Mapping):
            outputs = self.library(**model_input)
        else:
            values = getattr(model_input, "values", model_input)  # a DataFrame has a row for each sample
            outputs = self.library(np.asarray(values))
        return {f"output_{index}": x for index, x in enumerate(outputs)} if isinstance(outputs, tuple) else outputs


def _load_pyfunc(path: str) -> PyfuncLibrary:
    """Load the model whose data folder is at `path`; MLflow calls this."""
    from tvmflow.evaluation.loaded_library import LoadedLibrary

    return PyfuncLibrary(LoadedLibrary(Path(path)))


def save_model(folder: Path, data: Path, inputs: Arrays, outputs: Arrays, tvm: str) -> None:
    """Write the model folder. data: holds library.so and manifest.json; inputs, outputs: golden arrays (N, ...) by
    name.

    The signature is inferred from them, with any N; the first sample is the input example. tvm: the version that built
    it.
    """
    from mlflow import pyfunc
    from mlflow.models import infer_signature

    model_inputs, model_outputs = _single_or_dict(inputs), _single_or_dict(outputs)
    first = {name: x[:1] for name, x in inputs.items()}
    is_small = sum(x.size for x in first.values()) <= MOST_EXAMPLE_NUMBERS
    with _without_comparison():
        pyfunc.save_model(
            str(folder),
            loader_module=LOADER,
            data_path=str(data),
            signature=infer_signature(model_inputs, model_outputs),
            input_example=_single_or_dict(first) if is_small else None,
            pip_requirements=[f"tvmflow=={__version__}", f"apache-tvm=={tvm}"],
        )


@contextlib.contextmanager
def _without_comparison() -> Iterator[None]:
    """Keep MLflow from comparing requirements with installed packages, which takes a second for a silenced warning.

    MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK is for another check. An MLflow without this function compares them.
    """
    from mlflow.utils import environment

    compare = getattr(environment, _COMPARISON, None)
    if compare is not None:
        setattr(environment, _COMPARISON, lambda _requirements: None)
    try:
        yield
    finally:
        if compare is not None:
            setattr(environment, _COMPARISON, compare)


def _single_or_dict(arrays: Arrays) -> Any:
    return next(iter(arrays.values())) if len(arrays) == 1 else dict(arrays)
