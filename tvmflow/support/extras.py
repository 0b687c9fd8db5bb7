"""Know which extra of tvmflow brings a package, for installations without it: `pip install tvmflow` is a small core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tvmflow.support.errors import UsageError

# Extra -> names by which its packages are imported, or asked for their version.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "compile": (
        *("tvm", "tvm_ffi", "apache-tvm", "apache-tvm-ffi", "tornado", "cloudpickle"),
        *("PIL", "safetensors", "requests", "threadpoolctl", "xgboost"),
    ),
    "pipeline": ("prefect", "fastapi", "sqlalchemy", "mlflow", "alembic", "pandas", "dvc"),
    "torch": ("torch", "torchvision"),
    "keras": ("keras", "h5py"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "tensorflow": ("ai_edge_litert", "tflite"),
}


def extra_of(package: str | None) -> str | None:
    """Return the extra that brings a package, None for a package of no extra."""
    top = (package or "").partition(".")[0]
    return next((extra for extra, names in EXTRAS.items() if top in names), None)


def missing_extra(error: ModuleNotFoundError) -> UsageError | None:
    """Return what to say of an import that failed because an extra is not installed; None for another failure."""
    extra = extra_of(error.name)
    if extra is None:
        return None
    return UsageError(
        f"the package {error.name} is not installed, which is needed here",
        f"the extra {extra} of tvmflow",
        f"pip install 'tvmflow[{extra}]'; 'tvmflow[all]' has all that tvmflow needs",
    )


@contextmanager
def missing_extras_named() -> Iterator[None]:
    """Raise UsageError, which names the extra, for an import in this block that lacks its package. Also a decorator."""
    try:
        yield
    except ModuleNotFoundError as error:
        if missing := missing_extra(error):
            raise missing from error
        raise
