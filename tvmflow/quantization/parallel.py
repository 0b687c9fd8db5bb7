"""Run pieces of the calibration samples in parallel: NumPy and BLAS release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from threadpoolctl import threadpool_limits

from tvmflow.ir.relax.graph import Array, Arrays, Graph, Step
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.quantization.integer_matmul import fast_step

T = TypeVar("T")
R = TypeVar("R")


class Each(Protocol):
    """Return function(piece) for each piece, in order."""

    def __call__(self, function: Callable[[T], R], pieces: Sequence[T]) -> list[R]: ...


class _Pieces(list[Any]):
    """The arrays of one value for all pieces."""


@contextmanager
def on_processors() -> Iterator[Each]:
    """Provide a thread for each processor, with one BLAS thread each: BLAS's own threads would wait for busy
    processors.
    """
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield lambda function, pieces: list(pool.map(function, pieces))


def run_together(
    graph: Graph, pieces: Sequence[Arrays], each: Each, watch: Callable[[Step, list[Array]], list[Array] | None]
) -> None:
    """Run all pieces through a graph step by step; watch(step, values) is called with all arrays of a value and may
    replace them.
    """

    def compute(step: Step, arguments: list[Any]) -> _Pieces:
        return _Pieces(each(lambda piece: fast_step()(step, _of_piece(arguments, piece)), range(len(pieces))))

    def see(step: Step, values: Any) -> Any:
        replaced = watch(step, values)
        return None if replaced is None else _Pieces(replaced)

    run_all(graph, tuple(_Pieces(same) for same in zip(*pieces, strict=True)), see, compute)  # type: ignore[arg-type]


def _of_piece(argument: Any, piece: int) -> Any:
    if isinstance(argument, _Pieces):
        return argument[piece]
    if isinstance(argument, list | tuple):
        return type(argument)(_of_piece(item, piece) for item in argument)
    return argument
