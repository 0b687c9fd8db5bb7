"""Google's adb program, driven as a subprocess: phones that are attached, commands on them, what went wrong with one.

Exit codes of adb tell little (a phone that dies in a shell ends it with 0 in one version and 255 in another): a command
is done when the shell on the phone says so.
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
class Attached:
    """A phone as `adb devices` lists it. state: device, unauthorized, offline, ..."""

    serial: str
    state: str
    model: str


@dataclass(frozen=True)
class PhoneFacts:
    """What a phone says of itself; "" for what it does not say. abis: all that it runs, abi the first; cores: LLVM's
    names; battery: in percent, None where there is none.
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
        """Return what a target's mtriple begins with; "" for an ABI that we do not know."""
        return _ARCHITECTURES.get(self.abi, "")

    @property
    def architectures(self) -> frozenset[str]:
        """Return what mtriples of targets may begin with, also of 32 bits; none where it says nothing that we know."""
        return frozenset(_ARCHITECTURES[abi] for abi in (self.abi, *self.abis.split(",")) if abi in _ARCHITECTURES)

    @property
    def processor(self) -> DeviceFacts:
        """Return what it says of its processor; the fastest core is the last, as phones number them."""
        return DeviceFacts(self.architecture, self.cores.rpartition(" ")[2], self.features)


def find_adb() -> str:
    """Return the program: of PATH, else the one that the package adbutils brings. Raises DeviceError."""
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


def attached(wanted: Sequence[str] = ()) -> list[Attached]:
    """Return the phones that adb sees, whatever their state. wanted: serials, of which those in the network are
    connected to.

    Raises DeviceError.
    """
    phones = _listed()
    absent = [serial for serial in wanted if ":" in serial and serial not in {phone.serial for phone in phones}]
    for serial in absent:
        _run("connect", serial)  # adb says 0 also where nobody is there
    return _listed() if absent else phones


def _listed() -> list[Attached]:
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
            phones.append(Attached(words[0], "no permissions" if words[1] == "no" else words[1], model))
    return phones


def why_not(serial: str, states: Mapping[str, str]) -> DeviceError | None:
    """Return what keeps a phone from being used, by the states of those that adb lists; None where nothing does."""
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
            "look at its cable and at USB debugging, then run the same command again",
        )
    return None


class Phone:
    """One phone by its serial. Raises DeviceUnpluggedError, DeviceRebootedError, DeviceRefusedError,
    DeviceFullError.
    """

    def __init__(self, serial: str) -> None:
        self.serial, self._boot = serial, ""
        attached([serial])
        self.check_state()
        self._boot = self.boot()

    def boot(self) -> str:
        """Return what tells this start of the phone from others."""
        return self.shell("cat /proc/sys/kernel/random/boot_id").strip()

    def shell(self, command: str, timeout_s: float = TIMEOUT_S, content: bytes = b"") -> str:
        """Run a command in the phone's shell; returns what it printed. content: its standard input."""
        output, code = self._shell(command, timeout_s, content)
        if code:
            said = last_words(output.encode()) or f"exit {code}"
            raise self._refusal(said, f"running {command.split()[0]}")
        return output

    def succeeds(self, command: str) -> bool:
        """Return whether a command in the phone's shell ended with 0."""
        return not self._shell(command, TIMEOUT_S, b"")[1]

    def _shell(self, command: str, timeout_s: float, content: bytes) -> tuple[str, int]:
        done = _run(
            "-s", self.serial, "shell", f"( {command} ) 2>&1; echo {_DONE}$?", timeout_s=timeout_s, content=content
        )
        output, _, code = done.stdout.decode(errors="replace").rpartition(_DONE)
        if not code.strip().isdigit():
            raise self.why(
                last_words(done.stderr) or f"its shell ended without a word while running {command.split()[0]}"
            )
        return output.replace("\r\n", "\n"), int(code)

    def push(self, file: Path, remote: str) -> None:
        """Copy a file to the phone."""
        for _ in range(_PUSHES):
            done = _run("-s", self.serial, "push", str(file), remote, timeout_s=PUSH_TIMEOUT_S)
            if not done.returncode or b"error" in done.stderr + done.stdout:
                break  # at times adb fails and says only how much it copied, not why
        if done.returncode:
            said = error_words(done.stderr + done.stdout)  # how much was copied may come beside the error, in any order
            raise self._refusal(said, f"pushing {file.name}")

    def forward(self, port: int) -> int:
        """Let a port of this machine lead to one of the phone; returns it."""
        done = _run("-s", self.serial, "forward", "tcp:0", f"tcp:{port}")
        if done.returncode or not done.stdout.strip().isdigit():
            raise self.why(last_words(done.stderr) or last_words(done.stdout))
        return int(done.stdout)

    def end_forward(self, port: int) -> None:
        """Take a forward back; that there is none any more is no error."""
        _run("-s", self.serial, "forward", "--remove", f"tcp:{port}")

    def facts(self) -> PhoneFacts:
        """Return what the phone says of itself."""
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
        """Raise what keeps the phone from being used."""
        why = why_not(self.serial, {phone.serial: phone.state for phone in attached()})
        if why is not None:
            raise why

    def why(self, said: str) -> DeviceError:
        """Return what ended a conversation with the phone: unplugged, rebooted, not trusted, or else what was said."""
        try:
            self.check_state()
            now = self.boot() if self._boot else ""
        except DeviceError as error:
            return error
        if now != self._boot:
            return DeviceRebootedError(
                f"phone {self.serial} started anew ({said})", "a phone that stays on", "run the stage again; charge it"
            )
        return DeviceLostError(
            f"phone {self.serial} failed: {said}", "a phone that responds until the end", "run the stage again"
        )

    def _refusal(self, said: str, doing: str) -> DeviceError:
        if "no space left" in said.lower():
            return DeviceFullError(
                f"phone {self.serial}, {doing}: {said}", "room on the phone", "delete something there"
            )
        return self.why(f"{doing}: {said}")


def _run(*arguments: str, timeout_s: float = TIMEOUT_S, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [find_adb(), *arguments], input=content, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeviceLostError(
            f"adb {' '.join(arguments[:3])} was silent for {timeout_s:g} s",
            "a phone that responds",
            "unplug the phone and plug it in again",
        ) from None
    except OSError as error:
        raise DeviceError(f"adb cannot be run: {error}", "Android's adb for this machine") from None
