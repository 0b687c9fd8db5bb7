"""Check the machine and the workspace for known problems, with a hint for each."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from tvmflow.config.params import TargetEntry
from tvmflow.config.workspace import find_workspace
from tvmflow.devices.registry import transport_of
from tvmflow.pipeline.stage import AnyStage
from tvmflow.setup.preflight import missing_for
from tvmflow.support.errors import StoreError, TvmflowError, UsageError, first_line
from tvmflow.support.extras import extra_of
from tvmflow.toolchain.compilers import compiler_named, debian_package
from tvmflow.toolchain.versions import installed_version

Level = Literal["ok", "warning", "broken"]
# Tested combinations; the reasons are in docs/limits.md.
_FFI_FOR_TVM = {"0.27.0.post1": "0.1.14.post1", "0.26.0": "0.1.14.post1"}
_TRACKER_PORTS = range(9190, 9200)


@dataclass(frozen=True)
class Finding:
    level: Level
    what: str
    found: str
    hint: str = ""

    def to_json(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}


def examine(root: Path | None = None) -> list[Finding]:
    """Return all findings, good and bad, about the machine and the workspace, if there is one."""
    return [*_versions(root), *_threads(), *_tools(root), *_runtime(), *_sandbox(), *_ports(), *_workspace(root)]


def _below(version: str, bound: tuple[int, ...]) -> bool:
    numbers = tuple(int(part) for part in version.split(".")[: len(bound)] if part.isdigit())
    return numbers < bound


def check_versions(versions: dict[str, str]) -> Iterator[Finding]:
    """Check versions by name for combinations that are known to fail."""
    tvm, ffi = versions["apache-tvm"], versions["apache-tvm-ffi"]
    if tvm not in _FFI_FOR_TVM:
        yield Finding("warning", "apache-tvm", tvm, f"tvmflow is tested with {', '.join(_FFI_FOR_TVM)}")
    elif ffi != _FFI_FOR_TVM[tvm]:
        yield Finding(
            "broken",
            "apache-tvm-ffi",
            f"{ffi} with apache-tvm {tvm}",
            f"pip install apache-tvm-ffi=={_FFI_FOR_TVM[tvm]}",
        )
    else:
        yield Finding("ok", "apache-tvm and apache-tvm-ffi", f"{tvm} and {ffi}")
    for name, bound, why in (
        ("fastapi", (0, 151), "Prefect's server does not start with it"),
        ("sqlalchemy", (2, 1), "Prefect's schedules silently never fire with it"),
    ):
        text, limit = versions[name], ".".join(map(str, bound))
        if text != "absent" and not _below(text, bound):
            yield Finding("broken", name, f"{text}: {why}", f"pip install '{name}<{limit}'")
        else:
            yield Finding("ok", name, text)


def _versions(root: Path | None) -> Iterator[Finding]:
    yield from check_versions(
        {name: installed_version(name) for name in ("apache-tvm", "apache-tvm-ffi", "fastapi", "sqlalchemy")}
    )
    for name in ("prefect", "mlflow", "dvc", "xgboost-cpu"):
        found = installed_version(name)
        extra = extra_of(name.partition("-")[0])
        yield Finding(
            "broken" if found == "absent" else "ok",
            name,
            found,
            f"pip install 'tvmflow[{extra}]'" if found == "absent" else "",
        )
    yield from _frameworks(root)


def _frameworks(root: Path | None) -> Iterator[Finding]:
    """Check the frameworks of the models in params.yaml; report other missing ones without judgement."""
    try:
        wanted = {model.framework for model in find_workspace(root).params.models.values()}
        unneeded = "absent; no model of this workspace needs it"
    except TvmflowError:
        wanted, unneeded = set(), "absent; only models of this framework need it"
    for name, extra in (
        ("torch", "torch"),
        ("keras", "keras"),
        ("onnxruntime", "onnx"),
        ("ai-edge-litert", "tensorflow"),
    ):
        found = installed_version(name)
        if found != "absent":
            yield Finding("ok", name, found)
        elif extra in wanted:
            yield Finding("warning", name, "absent", f"pip install 'tvmflow[{extra}]'")
        else:
            yield Finding("ok", name, unneeded)


def _threads() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    named = os.environ.get("TVM_NUM_THREADS")
    if named and named.isdigit() and int(named) > cores:
        yield Finding(
            "warning",
            "TVM_NUM_THREADS",
            f"{named} on {cores} cores",
            "unset it: tvmflow sets the number of threads per target",
        )
    yield Finding("ok", "cores", str(cores))


def _tools(root: Path | None) -> Iterator[Finding]:
    for tool, who in (("g++", "every target"), ("git", "records")):
        path = shutil.which(tool)
        if path:
            yield Finding("ok", tool, path)
        else:
            hint = f"install it (Debian: apt-get install {debian_package(tool)}); {who} needs it"
            yield Finding("broken" if tool == "g++" else "warning", tool, "not on PATH", hint)
    try:
        targets = find_workspace(root).params.targets
    except TvmflowError:
        return
    for name, target in targets.items():
        yield from _compiler(name, target)


def _compiler(name: str, target: TargetEntry) -> Iterator[Finding]:
    """Report the compiler of a target's libraries, unless it is this machine's own."""
    from tvmflow.backends.registry import backend_for

    try:
        resolved = backend_for(target).target
        if resolved.cc != "g++":
            resolved.compiler  # noqa: B018  (raises where something lacks)
            compiler = compiler_named(resolved.cc)
            yield Finding("ok", f"compiler of {name}", compiler.version())
    except TvmflowError as error:
        yield Finding("warning", f"compiler of {name}", error.found, error.hint)


def _runtime() -> Iterator[Finding]:
    try:
        from tvmflow.toolchain.versions import probe

        facts = probe()
        yield Finding(
            "ok", "TVM starts", f"LLVM {facts['llvm']}, this CPU is {facts['host_cpu']}{facts['host_attributes']}"
        )
    except (TvmflowError, metadata.PackageNotFoundError) as error:
        yield Finding("broken", "TVM starts", first_line(error), "reinstall with constraints.txt")
    missing = [name for name in ("tornado", "psutil", "cloudpickle") if installed_version(name) == "absent"]
    if missing:
        yield Finding("broken", "TVM RPC", f"{', '.join(missing)} missing", "pip install 'tvmflow[compile]'")


def _sandbox() -> Iterator[Finding]:
    """Report the sandbox's protections against untrusted model files, by starting one."""
    from tvmflow.sandbox.process import Policy, Sandbox

    try:
        with Sandbox("os:getpid", {}, Policy(60.0)) as sandbox:
            held = sandbox.held
    except TvmflowError as error:
        yield Finding("broken", "sandbox", first_line(error), "report this, with your versions of Linux and Python")
        return
    yield from judge_sandbox(held)


def judge_sandbox(held: list[str]) -> Iterator[Finding]:
    """Judge the protections that a sandbox reported."""
    lost = []
    if not {"landlock", "own root"} & set(held):
        lost.append("no Landlock and no mounts of its own: model files may read and write all files of this user")
    if "seccomp" not in held:
        network = "may use the network" if "namespaces" not in held else "may make any system call"
        lost.append(f"no seccomp filter: model files {network}")
    if lost:
        yield Finding(
            "warning",
            "sandbox",
            "; ".join(lost),
            "Linux 5.13 or later on x86_64 or arm64 with Landlock among its security modules (lsm=)",
        )
        return
    seen = "" if "namespaces" in held else " (no namespaces, as in containers: model files see the names of processes)"
    yield Finding("ok", "sandbox", ", ".join(held) + seen)


def _listening_beyond_loopback(port: int) -> bool:
    """Return whether a server responds on this machine's outward address; connects to nothing else."""
    try:
        address = next(
            info[4][0]
            for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)
            if not str(info[4][0]).startswith("127.")
        )
    except (StopIteration, OSError):
        return False
    with socket.socket() as probe_socket:
        probe_socket.settimeout(0.2)
        return probe_socket.connect_ex((str(address), port)) == 0


def _ports() -> Iterator[Finding]:
    exposed = [port for port in (*_TRACKER_PORTS, 4200, 5000) if _listening_beyond_loopback(port)]
    if exposed:
        yield Finding(
            "warning",
            "exposed ports",
            ", ".join(map(str, exposed)),
            "TVM's RPC, Prefect and MLflow have no authentication by default: bind them to 127.0.0.1, use SSH tunnels",
        )
    else:
        yield Finding("ok", "exposed ports", "none (tracker, Prefect, MLflow)")


def open_devices(targets: Mapping[str, TargetEntry], others: Collection[str]) -> Iterator[Finding]:
    """Check targets for devices on which every user of the network, or of this machine, can run code. others: its
    users.
    """
    named = []
    for name, target in targets.items():
        with contextlib.suppress(TvmflowError):  # of the options, which other commands report
            if transport_of(target.device).runs_code_of_strangers(target.device):
                named.append(name)
    if named and others:
        yield Finding(
            "warning",
            "open devices",
            f"{', '.join(named)}: TVM's servers run the code of whoever reaches them, and this machine has other users "
            f"({', '.join(sorted(others)[:3])})",
            "use the agent and secret_file: of the device, or a machine that nobody else uses",
        )


def _other_users() -> list[str]:
    """Return the users of this machine who can log in, apart from this one and the system's."""
    people = (user for user in pwd.getpwall() if 1000 <= user.pw_uid < 65534 and user.pw_uid != os.geteuid())
    return [user.pw_name for user in people if not user.pw_shell.endswith(("nologin", "false"))]


def _outside(root: Path | None) -> bool:
    """Return whether neither --root nor the current folder is a workspace."""
    try:
        find_workspace(root)
    except UsageError:
        return root is None and not os.environ.get("TVMFLOW_ROOT")
    except StoreError:  # one that another user can exchange
        return False
    return False


def cells_switched_off(root: Path | None, stages: Sequence[AnyStage]) -> Iterator[Finding]:
    """Return what is missing for each cell with `enabled: false`."""
    try:
        workspace = find_workspace(root)
        cells = workspace.params.switched_off
    except TvmflowError:
        return  # said by the check of the workspace
    for name, off in cells.items():
        missing = missing_for(workspace, off.cell, stages)
        found = "; ".join(dict.fromkeys(error.found for error in missing))
        hint = next((error.hint for error in missing if error.hint), "") if missing else "remove its enabled: false"
        yield Finding("ok", f"cell {name}, off", f"missing: {found}" if missing else "nothing is missing", hint)


def _free_disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    enough = free > 5e9
    return Finding(
        "ok" if enough else "warning", "free disk", f"{free / 1e9:.1f} GB", "" if enough else "free some space"
    )


def _workspace(root: Path | None) -> Iterator[Finding]:
    if _outside(root):
        yield _free_disk(Path.cwd())
        yield Finding("ok", "workspace", "none in this folder or its parents", "tvmflow new DIR")
        return
    try:
        workspace = find_workspace(root)
        params = workspace.params
    except TvmflowError as error:
        yield Finding("broken", "params.yaml", error.found.splitlines()[0], "run 'tvmflow status' for the full message")
        return
    yield Finding(
        "ok", "params.yaml", f"{len(params.models)} models, {len(params.targets)} targets, {len(params.cells)} cells"
    )
    yield _free_disk(workspace.root)
    yield from open_devices(params.targets, _other_users())
    for folder in (workspace.root / ".dvc", workspace.root / "mlruns"):
        if not folder.exists():
            yield Finding("warning", folder.name, "does not exist yet", "tvmflow init")
    from tvmflow.devices.registry import transport_of

    for name, target in params.targets.items():
        try:
            state = transport_of(target.device).state(target.device)
            yield Finding("ok" if state.is_there else "warning", f"device of {name}", state.text)
        except TvmflowError as error:
            yield Finding("warning", f"device of {name}", error.found, error.hint)
