"""Test `mcpu: device`: the reported processor becomes an LLVM name, is stored, and is part of recipe keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tvmflow import api
from tvmflow.backends.registry import resolve
from tvmflow.config.params import TargetEntry
from tvmflow.config.workspace import Workspace
from tvmflow.devices.probe_processor import ask_processor
from tvmflow.devices.transport import Transport
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.errors import DeviceLostError, DeviceUnknownError, UsageError, WrongProcessorError
from tvmflow.targets.cores import core_of
from tvmflow.targets.device_processor import DeviceFacts, processor_from
from tvmflow.targets.probed_processors import record

ARM64, ARM32, X86 = "aarch64-linux-gnu", "armv7a-linux-gnueabihf", "x86_64-linux-gnu"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tvmflow.targets.probed_processors.cache_folder", lambda: tmp_path)
    return tmp_path / "processors.json"


def _entry(**fields: Any) -> TargetEntry:
    device = {"transport": "agent", "key": "board", "port": 9, "secret_file": "none"}
    return TargetEntry.model_validate(
        {"kind": "llvm", "mcpu": "device", "mtriple": ARM64, "threads": 2, "device": device, **fields}
    )


@pytest.mark.parametrize(
    ("facts", "mtriple", "mcpu", "attributes"),
    [
        (("aarch64", "cortex-a76", "fp asimd asimdhp asimddp"), ARM64, "cortex-a76", ()),
        # A kernel that hides SVE, as those of phones do, and a core without a name.
        (("aarch64", "cortex-a710", "fp asimd asimdhp asimddp i8mm bf16"), ARM64, "cortex-a710", ("-sve", "-sve2")),
        (("", "0x61/0x1", "fp asimd asimddp"), ARM64, "generic", ("+dotprod",)),
        (("aarch64", "cortex-a53", ""), ARM64, "cortex-a53", ()),
        (("armv7l", "cortex-a7", "neon vfpv3 vfpv4 idiva idivt"), ARM32, "cortex-a7", ()),
        (("aarch64", "", "neon vfpv4 idiva idivt"), ARM32, "cortex-a8", ("+vfp4", "+hwdiv-arm", "+hwdiv")),
        (("x86_64", "", "cx16 popcnt sse4_1 sse4_2 ssse3"), X86, "x86-64-v2", ()),
        (
            ("x86_64", "", "cx16 popcnt sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma movbe avx_vnni"),
            X86,
            "x86-64-v3",
            (),
        ),
        (("x86_64", "", "fpu"), X86, "x86-64", ()),
    ],
)
def test_a_device_says_what_it_is(
    facts: tuple[str, str, str], mtriple: str, mcpu: str, attributes: tuple[str, ...]
) -> None:
    assert processor_from(DeviceFacts(*facts), mtriple) == (mcpu, attributes)


def test_another_architecture_than_the_triples() -> None:
    with pytest.raises(WrongProcessorError, match=f"the device is a aarch64, and the target compiles for {X86}"):
        processor_from(DeviceFacts("aarch64", "cortex-a76", ""), X86)


def test_cores_by_their_register() -> None:
    assert core_of("0x00000000414fd0b1") == "cortex-a76" and core_of("0x410fc075") == "cortex-a7"
    assert core_of("0x00000000610f0220") == "0x61/0x22" and core_of("") == core_of("x") == ""


def test_what_was_said_is_kept_and_decides_what_is_compiled(cache: Path) -> None:
    entry = _entry(mattr=["+sm4"])
    with pytest.raises(UsageError, match="the device 'board' was never probed"):
        resolve(entry)
    record(entry, "cortex-a76", ("-fullfp16",))
    target = resolve(entry)
    assert (target.mcpu, target.mattr) == ("cortex-a76", ("-fullfp16", "+sm4"))
    other = _entry(device={"transport": "agent", "key": "other", "port": 9, "secret_file": "none"})
    for written in ("[]", "{", json.dumps({key: [1] for key in json.loads(cache.read_text())})):
        with pytest.raises(UsageError, match="was never probed"):
            resolve(other)
        cache.write_text(written)
        other = entry


def test_a_transport_that_cannot_say_it() -> None:
    entry = _entry(device={"transport": "local", "key": "local-cpu"})
    with pytest.raises(UsageError, match="transport local, which does not report its processor"):
        ask_processor(entry, 0.0)


@pytest.fixture
def board(make_workspace: Any) -> Workspace:
    def edit(params: dict[str, Any]) -> None:
        device = {"transport": "agent", "key": "board", "port": 9, "secret_file": "none"}
        target = {"kind": "llvm", "mcpu": "device", "mtriple": ARM64, "threads": 2, "device": device}
        params["targets"] = {"board": target}
        params["cells"] = {"one": {"model": "digits_torch", "target": "board", "precision": "int8"}}

    return api.open_workspace(make_workspace(edit))


def test_a_run_asks_first_and_says_what_to_do_where_nobody_knows(
    board: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a device and with nothing kept: one error. With what another run kept the device may be away."""
    from tasks.table import STAGES

    def keys() -> list[Any]:
        cell = board.params.cells["one"]
        names = ("quantize", "graph_pack", "tune", "build")
        stages: list[AnyStage] = [STAGES[name] for name in names]
        return [stage.settings(board, cell) for stage in stages]

    def said(self: Transport, device: Any, wait_s: float) -> DeviceFacts:
        if isinstance(core, Exception):
            raise core
        return DeviceFacts("aarch64", core, "")

    core: Any = DeviceLostError("nobody answers at 127.0.0.1:9", "an agent", "start it")
    monkeypatch.setattr("tvmflow.devices.agent.transport.AgentTransport.processor", said)
    with pytest.raises(DeviceLostError, match=r"nobody answers .* \(asked for mcpu: device\)") as error:
        api.run("one", workspace=board)
    assert "targets.board.mcpu" in error.value.hint
    assert {state.target: state.kind for state in api.devices(board)}["board"] == "never asked"
    core = "cortex-a76"
    assert ask_processor(board.params.targets["board"], None) == ("cortex-a76", ())
    first = keys()
    assert all("cortex-a76" in str(settings) and "device'" not in str(settings.target) for settings in first[2:])
    core = DeviceUnknownError("no device", "", "")
    from tvmflow.setup.preflight import ask_processors

    assert ask_processors(board, [board.params.cells["one"]]) == {} and keys() == first
    core = "neoverse-v1"
    assert ask_processors(board, [board.params.cells["one"]]) == {} and keys() != first
