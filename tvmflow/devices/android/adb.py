"""Drive phones by Google's adb program: list them, run commands, and classify failures.

Exit codes of adb are unreliable (if a phone dies in a shell, some versions exit with 0 and others with 255). So a
command has succeeded only if the phone's shell prints that it has.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmflow.support.errors import (
    DeviceError,
    DeviceFullError,
    DeviceLostError,
    DeviceRebootedError,
    DeviceRefusedError,
    DeviceUnpluggedError,
    error_words,
    last_words,
)
from tvmflow.targets.cores import cores_of
from tvmflow.targets.device_processor import DeviceFacts
from tvmflow.toolchain.triples import ARM32

TIMEOUT_S = 60.0
_PUSHES = 4
PUSH_TIMEOUT_S = 600.0
_DONE = "tvmflow-exit:"
_FACTS = {
    "model": "ro.product.model",
    "android": "ro.build.version.release",
    "soc": "ro.soc.model",
    "abi": "ro.product.cpu.abi",
    "build": "ro.build.fingerprint",
    "abis": "ro.product.cpu.abilist",
}
_ARCHITECTURES = {"arm64-v8a": "aarch64", "armeabi-v7a": ARM32, "x86_64": "x86_64"}  # Android's ABI -> a triple's
_BATTERY = re.compile(r"^\s*(level|temperature|AC powered|USB powered): (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class ListedPhone:
    """A phone in `adb devices`. state: device, unauthorized, offline, ..."""

    serial: str
    state: str
    model: str


@dataclass(frozen=True)
class PhoneFacts:
    """The facts that a phone reports; "" if unknown. abis: all supported ABIs, abi the first; cores: LLVM's names;
    battery: percent, None without one.
    """

    model: str
    android: str
    soc: str
    abi: str
    build: str
    abis: str
    features: str
    cores: str
    battery: int | None
    celsius: float | None

    @property
    def architecture(self) -> str:
        """Return the architecture of the target triple; "" for an unknown ABI."""
        return _ARCHITECTURES.get(self.abi, "")

    @property
    def architectures(self) -> frozenset[str]:
        """Return all architectures for target triples, including 32-bit ones; empty if unknown."""
        return frozenset(_ARCHITECTURES[abi] for abi in (self.abi, *self.abis.split(",")) if abi in _ARCHITECTURES)

    @property
    def processor(self) -> DeviceFacts:
        """Return the processor's description; the fastest core is the last one in the phone's numbering."""
        return DeviceFacts(self.architecture, self.cores.rpartition(" ")[2], self.features)


def find_adb() -> str:
    """Return the adb program from PATH or from the package adbutils. Raises DeviceError."""
    found = shutil.which("adb")
    spec = None if found else importlib.util.find_spec("adbutils")
    for folder in spec.submodule_search_locations or () if spec else ():
        bundled = Path(folder) / "binaries" / "adb"
        if bundled.is_file():
            found = str(bundled)
    if found is None:
        raise DeviceError(
            "no adb: neither on PATH nor the package adbutils",
            "adb",
            "pip install 'tvmflow[adb]', or Android's platform tools",
        )
    return found


def list_phones(wanted: Sequence[str] = ()) -> list[ListedPhone]:
    """Return the phones that adb sees in any state. wanted: serials; those that are network addresses are connected
    first. Raises DeviceError.
    """
    phones = _list_all()
    absent = [serial for serial in wanted if ":" in serial and serial not in {phone.serial for phone in phones}]
    for serial in absent:
        _run("connect", serial)  # adb exits with 0 even without a phone
    return _list_all() if absent else phones


def _list_all() -> list[ListedPhone]:
    lines = _run("devices", "-l").stdout.decode(errors="replace").splitlines()
    phones = []
    for words in (line.split() for line in lines if "\t" in line or "  " in line or " " in line):
        if len(words) >= 2 and words[1] in (
            "device",
            "unauthorized",
            "offline",
            "recovery",
            "sideload",
            "authorizing",
            "no",
        ):
            model = next((word.partition(":")[2] for word in words if word.startswith("model:")), "")
            phones.append(ListedPhone(words[0], "no permissions" if words[1] == "no" else words[1], model))
    return phones


def unusable_reason(serial: str, states: Mapping[str, str]) -> DeviceError | None:
    """Return why a phone cannot be used, from the states that adb lists; None if it can."""
    state = states.get(serial, "absent")
    if state in ("unauthorized", "authorizing", "no permissions"):
        return DeviceRefusedError(
            f"phone {serial} does not trust this computer ({state})",
            "USB debugging that was allowed for it",
            "unlock the phone and confirm the question on its screen",
        )
    if state != "device":
        return DeviceUnpluggedError(
            f"phone {serial} is {'not attached' if state == 'absent' else state}",
            "a phone that adb devices lists",
            "check its cable and USB debugging, then run the same command again",
        )
    return None


class Phone:
    """One phone by its serial. Raises DeviceUnpluggedError, DeviceRebootedError, DeviceRefusedError,
    DeviceFullError.
    """

    def __init__(self, serial: str) -> None:
        self.serial, self._boot = serial, ""
        list_phones([serial])
        self.check_state()
        self._boot = self.boot()

    def boot(self) -> str:
        """Return an identifier of the phone's current boot."""
        return self.shell("cat /proc/sys/kernel/random/boot_id").strip()

    def shell(self, command: str, timeout_s: float = TIMEOUT_S, content: bytes = b"") -> str:
        """Run a command in the phone's shell and return its output. content: its standard input."""
        output, code = self._shell(command, timeout_s, content)
        if code:
            said = last_words(output.encode()) or f"exit {code}"
            raise self._refusal(said, f"running {command.split()[0]}")
        return output

    def succeeds(self, command: str) -> bool:
        """Return whether a command in the phone's shell exits with 0."""
        return not self._shell(command, TIMEOUT_S, b"")[1]

    def _shell(self, command: str, timeout_s: float, content: bytes) -> tuple[str, int]:
        done = _run(
            "-s", self.serial, "shell", f"( {command} ) 2>&1; echo {_DONE}$?", timeout_s=timeout_s, content=content
        )
        output, _, code = done.stdout.decode(errors="replace").rpartition(_DONE)
        if not code.strip().isdigit():
            raise self.why(
                last_words(done.stderr) or f"its shell ended without output while running {command.split()[0]}"
            )
        return output.replace("\r\n", "\n"), int(code)

    def push(self, file: Path, remote: str) -> None:
        """Copy a file to the phone."""
        for _ in range(_PUSHES):
            done = _run("-s", self.serial, "push", str(file), remote, timeout_s=PUSH_TIMEOUT_S)
            if not done.returncode or b"error" in done.stderr + done.stdout:
                break  # sometimes adb fails and prints the copied amount without the error
        if done.returncode:
            said = error_words(done.stderr + done.stdout)  # the copied amount and the error come in any order
            raise self._refusal(said, f"pushing {file.name}")

    def forward(self, port: int) -> int:
        """Forward a port of this machine to a port of the phone; return the former."""
        done = _run("-s", self.serial, "forward", "tcp:0", f"tcp:{port}")
        if done.returncode or not done.stdout.strip().isdigit():
            raise self.why(last_words(done.stderr) or last_words(done.stdout))
        return int(done.stdout)

    def end_forward(self, port: int) -> None:
        """Remove a forward; a missing one is no error."""
        _run("-s", self.serial, "forward", "--remove", f"tcp:{port}")

    def facts(self) -> PhoneFacts:
        """Return what the phone reports about itself."""
        names = " ".join(_FACTS.values())
        command = (
            f'for name in {names}; do echo "$(getprop $name)"; done; grep -E \'^(Features|flags|CPU '
            f"implementer|CPU part)' /proc/cpuinfo; dumpsys battery"
        )
        output, _ = self._shell(command, TIMEOUT_S, b"")
        lines = output.splitlines() + [""] * len(_FACTS)
        values = dict(zip(_FACTS, (line.strip() for line in lines), strict=False))
        features = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith(("Features", "flags"))), ""
        )
        battery = dict(_BATTERY.findall(output))
        level, tenths = battery.get("level", ""), battery.get("temperature", "")
        return PhoneFacts(
            **values,
            features=features,
            cores=cores_of(output),
            battery=int(level) if level.isdigit() else None,
            celsius=int(tenths) / 10 if tenths.isdigit() else None,
        )

    def check_state(self) -> None:
        """Raise the error that keeps the phone from being used."""
        why = unusable_reason(self.serial, {phone.serial: phone.state for phone in list_phones()})
        if why is not None:
            raise why

    def why(self, said: str) -> DeviceError:
        """Return the cause of a failed command: unplugged, rebooted, not trusted, or the text itself."""
        try:
            self.check_state()
            now = self.boot() if self._boot else ""
        except DeviceError as error:
            return error
        if now != self._boot:
            return DeviceRebootedError(
                f"phone {self.serial} rebooted ({said})", "a phone that keeps running", "run the stage again; charge it"
            )
        return DeviceLostError(
            f"phone {self.serial} failed: {said}", "a phone that responds until the end", "run the stage again"
        )

    def _refusal(self, said: str, doing: str) -> DeviceError:
        if "no space left" in said.lower():
            return DeviceFullError(
                f"phone {self.serial}, {doing}: {said}", "space on the phone", "delete something there"
            )
        return self.why(f"{doing}: {said}")


def _run(*arguments: str, timeout_s: float = TIMEOUT_S, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [find_adb(), *arguments], input=content, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeviceLostError(
            f"adb {' '.join(arguments[:3])} did not finish within {timeout_s:g} s",
            "a phone that responds",
            "unplug the phone and plug it in again",
        ) from None
    except OSError as error:
        raise DeviceError(f"adb cannot be run: {error}", "Android's adb for this machine") from None
