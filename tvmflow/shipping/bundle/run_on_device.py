"""Run the golden inputs of a bundle's libraries on a device of the workspace.

The device is no sandbox: only bundles with a trusted signature may run there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvmflow.backends.registry import backend_for
from tvmflow.codegen.network.link import link_rpc
from tvmflow.config.params import TargetEntry
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.frontends.source_model import OutputSpec, run_in_batches
from tvmflow.shipping.bundle.abis import abi_of
from tvmflow.shipping.bundle.manifest import Library
from tvmflow.shipping.bundle.run_in_sandbox import golden_arrays, missing_features_of, outcome
from tvmflow.support.errors import BundleError, StageError
from tvmflow.support.samples import batch_of
from tvmflow.targets.cpu_features import features_of


class DeviceTrial:
    """A device on which the libraries of a bundle run, in one session each. target: its entry in params.yaml."""

    def __init__(self, name: str, target: TargetEntry, limits: SessionLimits) -> None:
        self.name, self.entry, self.limits = name, target, limits
        self.backend = backend_for(target)

    def run(self, library: Library, folder: Path) -> str:
        """Return the result of running a library, or why it was not run. folder: with library and arrays.

        Raises BundleError for a library that fails or has other outputs, DeviceError for a device failure.
        """
        target = self.backend.target
        abi = abi_of(target.mtriple).name
        if library.abi != abi:
            return f"not run on {self.name}: it is for {library.abi}, the device for {abi}"
        if library.device not in (None, self.backend.accelerator):
            return f"not run on {self.name}: it needs a driver for the accelerator {library.device}"
        if missing := missing_features_of(library, features_of(target.mcpu, target.mtriple, target.mattr)):
            return f"not run on {self.name}: {target.mcpu} lacks {', '.join(missing[:4])}"
        inputs, outputs = golden_arrays(library, folder)
        with open_session(self.entry.device, self.backend, self.limits) as session:
            try:
                model = self._start(session, library, folder)
                results = run_in_batches(model, inputs, batch_of([one.shape for one in library.inputs]))
            except StageError as error:
                raise BundleError(
                    f"{library.soname} does not run on {self.name}: {error.found}",
                    "a library that runs its golden inputs",
                ) from None
            unit = f" ({session.unit})" if session.unit else ""
        return f"on {self.name}{unit}: {outcome(library, results, outputs)}"

    def _start(self, session: DeviceSession, library: Library, folder: Path) -> Any:
        if session.has_tvm:  # its server reaches a library through functions that lie beside it
            link_rpc(folder / "rpc.so", self.backend.target.compiler)
        outputs = tuple(OutputSpec(one.name, one.shape, one.dtype) for one in library.outputs)
        return session.network(session.upload(folder / library.soname), folder, outputs, library.device)
