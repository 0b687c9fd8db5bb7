"""Ask a device for its GPU's driver, and remember it for the recipe keys of what is measured there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from tvmflow.backends.registry import backend_for
from tvmflow.config.params import Params, TargetEntry
from tvmflow.devices.gpu_facts import Gpu, sanitize_name
from tvmflow.devices.registry import open_session, transport_of
from tvmflow.devices.session import SessionLimits
from tvmflow.support.errors import TvmflowError
from tvmflow.targets.gpu_drivers import note_driver
from tvmflow.targets.gpu_features import GPU_KINDS


def ask_driver(root: Path, name: str, entry: TargetEntry, limits: SessionLimits) -> None:
    """Ask the device of a target of a GPU kind. Raises DeviceError."""
    if entry.kind not in GPU_KINDS:
        return
    with open_session(entry.device, backend_for(entry), limits) as session:
        keep_driver(root, name, entry.kind, session.unit, session.gpus().gpus)


def keep_driver(root: Path, name: str, api: str, unit: str, gpus: Iterable[Gpu]) -> None:
    """Remember the driver of the first GPU of a probe that a target of this API can use."""
    for gpu in gpus:
        if gpu.api == api and not gpu.reasons:
            told = (sanitize_name(gpu.facts.get(part, "")).strip() for part in ("driver", "version"))
            note_driver(root, name, unit, " ".join(filter(None, told)) or "unknown")
            return


def ask_drivers(root: Path, params: Params, targets: Iterable[str]) -> None:
    """Ask all units of the devices of these targets that are free now; what was known of the others stays."""
    for name in dict.fromkeys(targets):
        entry = params.targets[name]
        if entry.kind not in GPU_KINDS:
            continue
        with contextlib.suppress(TvmflowError):
            for unit in transport_of(entry.device).units(entry.device) or ("",):
                limits = SessionLimits(params.deploy.session_timeout_s, 0.0, unit)
                with contextlib.suppress(TvmflowError):
                    ask_driver(root, name, entry, limits)
