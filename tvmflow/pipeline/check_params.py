"""Validate params.yaml against all registries: backends, transports, frontends, tuners.

config/params.py validates types and bounds and does not import the registries, so that a new entry needs no change
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tvmflow.backends.registry import BACKENDS
from tvmflow.config.options import explain
from tvmflow.config.params import Cell, ModelEntry, Params, TargetEntry
from tvmflow.config.plugins import Table
from tvmflow.devices.registry import TRANSPORTS
from tvmflow.evaluation.metrics import METRICS
from tvmflow.frontends.registry import FRONTENDS
from tvmflow.support.errors import ParamsError, TvmflowError, did_you_mean
from tvmflow.targets.probed_processors import DEVICE, read_record
from tvmflow.targets.processors import architecture_of
from tvmflow.toolchain.compilers import COMPILERS
from tvmflow.toolchain.environments import cache_folder
from tvmflow.tuning.search.tuners import TUNERS


def check_rows(params: Params) -> None:
    """Raise ParamsError with a line for every unknown name and every invalid block, and StoreError for a cache that
    another user can exchange, before anything in it is read.
    """
    cache_folder()
    lines = list(_lines(params))
    if lines:
        raise ParamsError("params.yaml is not valid:\n" + "\n".join(lines), hint="docs/params.md explains every key")


def packages_of(params: Params, cell: Cell, reads: Iterable[str]) -> dict[str, str]:
    """Return package -> version of the plug-ins that affect a stage's output, for its recipe key. reads: the keys of
    params.yaml in `Stage.reads`.
    """
    model, target = params.models[cell.model], params.targets[cell.target]
    rows: tuple[tuple[str, Table[Any], str | None], ...] = (
        ("models.{model}.framework", FRONTENDS, model.framework),
        ("models.{model}.metric", METRICS, model.metric),
        ("targets.{target}.kind", BACKENDS, target.kind),
        ("targets.{target}.cc", COMPILERS, target.cc if target.cc in COMPILERS else None),
        ("targets.{target}.device.transport", TRANSPORTS, target.device.transport),
        ("tune.tuner", TUNERS, params.tune.tuner),
    )
    asked = (
        table.package(name)
        for key, table, name in rows
        if name is not None and any(f"{key}.".startswith(f"{x}.") for x in reads)
    )
    return {f"plugin:{package[0]}": package[1] for package in asked if package is not None}


def _lines(params: Params) -> Iterator[str]:
    for name, model in params.models.items():
        yield from _model(f"models.{name}", model)
    for name, target in params.targets.items():
        yield from _target(f"targets.{name}", target)
    yield from _describe_unknown("tune.tuner", params.tune.tuner, TUNERS)


def _model(where: str, model: ModelEntry) -> Iterator[str]:
    yield from _describe_unknown(f"{where}.framework", model.framework, FRONTENDS)
    if model.metric is not None:
        yield from _describe_unknown(f"{where}.metric", model.metric, METRICS)
    has_networks = model.framework not in FRONTENDS or FRONTENDS[model.framework].has_networks
    if not has_networks and model.weights.kind not in ("file", "url"):
        expected = "{file: ...} or {url: ..., sha256: ...}"
        yield f"  - {where}.weights: a model of {model.framework} comes from {expected}; found {model.weights.kind}"


def _target(where: str, target: TargetEntry) -> Iterator[str]:
    wrong = [
        *_describe_unknown(f"{where}.kind", target.kind, BACKENDS),
        *_describe_unknown(f"{where}.device.transport", target.device.transport, TRANSPORTS),
    ]
    if wrong:
        yield from wrong
        return
    backend, transport = BACKENDS[target.kind], TRANSPORTS[target.device.transport]
    own = ("key", "transport")
    for model, block, place, legal in (
        (backend.options, target.options, f"{where}.{target.kind}", ()),
        (transport.options, target.device.options, f"{where}.device", own),
    ):
        try:
            model.model_validate(block)
        except ValidationError as error:
            yield from explain(error, model, place, legal)
            return
    try:
        if target.mcpu == DEVICE and read_record(target) is None:  # what needs it asks, or says so
            architecture_of(target.mtriple or "")
            return
        backend.resolve(target)
    except TvmflowError as error:
        yield f"  - {where}: {error.found}; expected: {error.expected}"


def _describe_unknown(where: str, name: str, table: Mapping[str, Any]) -> list[str]:
    return (
        []
        if name in table
        else [f"  - {where}: no {name!r}{did_you_mean(name, table)}; legal: {', '.join(sorted(table))}"]
    )
