"""Define the errors of tvmflow.

TvmflowError                 exit 1   the base: what was found, what was expected, what to do
|- UsageError                exit 2   the request cannot be understood
|  |- ParamsError                     params.yaml is not valid
|  `- UnknownNameError                a name that is not in a table; lists the legal ones
|- SourceError                        weights, labels or data cannot be had
|  |- DownloadError          retried  the network failed
|  `- DigestError                     the bytes are not the ones that were pinned
|- ModelFileError                     a model file is damaged, hostile or of the wrong kind
|- UnsupportedOperatorError           the importer does not know an operator; names it
|- AgreementError                     the outputs of a stage differ from those of the source
|- ProgramError                       a program for the VTA accelerator breaks the rules of the machine
|- StageError                         a stage ended without its outputs
|  |- ToolchainError                  this machine cannot compile, whatever it is given
|  |- StageCrashedError               its process died
|  |- StageTimeoutError               its process was killed because it took too long
|  |- InterruptedStageError  exit 130 the user stopped it
|  `- ClusterAwayError       retried  the Dask cluster does not answer
|- DeviceError                        a device could not do what was asked
|  |- TrackerError           retried  the tracker cannot be reached
|  |- DeviceUnknownError              no device of that key is registered
|  |- DeviceBusyError                 every device of that key stayed in use for deploy.device_wait_s
|  |  `- DeviceHotError      retried  it stayed too hot to measure
|  |- DeviceLostError        retried  the device went away in the middle
|  |  |- DeviceUnpluggedError retried its cable or its network is gone
|  |  `- DeviceRebootedError retried  it started anew
|  |- DeviceRefusedError              it does not trust this host: another secret, or nobody confirmed on its screen
|  |- DeviceFullError                 it has no room for a file
|  |- WrongProcessorError             a library for another processor, or with instructions that this one lacks
|  `- AgentVersionError               its agent belongs to another tvmflow
|- StoreError                         files cannot be written, read or trusted
|  |- DamagedStoreError               MLflow's database is not one any more
|  `- StoreAwayError                  MLflow's server does not answer; what was measured is kept until it does
|- BundleError                        a bundle is damaged, was altered, or holds what no bundle may
|  `- SignatureError                  nobody who is trusted signed it
`- GateRefusedError          exit 3   a release gate said no
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable
from typing import Any, ClassVar

from tvmflow.support.secrets import mask


class TvmflowError(Exception):
    """An expected failure: what was found, what was expected, what to do; without secrets or control characters."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, found: str, expected: str = "", hint: str = "") -> None:
        self.found, self.expected, self.hint = (_printable(mask(text)) for text in (found, expected, hint))
        super().__init__(self.found)

    def __str__(self) -> str:
        lines = [self.found]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.found, self.expected, self.hint)

    def to_json(self) -> dict[str, str]:
        """Return the error as plain strings, for another process."""
        return {
            "type": type(self).__name__,
            "found": self.found,
            "expected": self.expected,
            "hint": self.hint,
        }


class UsageError(TvmflowError):
    exit_code = 2


class ParamsError(UsageError):
    pass


class UnknownNameError(UsageError):
    """name: the requested name; the hint suggests a similar legal name, if any."""

    def __init__(
        self, found: str, expected: str = "", hint: str = "", *, legal: Iterable[str] = (), name: str | None = None
    ) -> None:
        known = sorted(legal)
        similar = similar_name(name, known) if name is not None else None
        super().__init__(
            found,
            expected or "one of " + (", ".join(known) or "(there is none)"),
            f"did you mean {similar!r}?" if similar else hint,
        )


class SourceError(TvmflowError):
    pass


class DownloadError(SourceError):
    retryable = True


class DigestError(SourceError):
    pass


class ModelFileError(TvmflowError):
    pass


class UnsupportedOperatorError(TvmflowError):
    pass


class AgreementError(TvmflowError):
    pass


class ProgramError(TvmflowError):
    pass


class StageError(TvmflowError):
    pass


class ToolchainError(StageError):
    pass


class StageCrashedError(StageError):
    pass


class StageTimeoutError(StageError):
    pass


class InterruptedStageError(StageError):
    exit_code = 130


class ClusterAwayError(StageError):
    retryable = True


class DeviceError(TvmflowError):
    pass


class TrackerError(DeviceError):
    retryable = True


class DeviceUnknownError(DeviceError):
    pass


class DeviceBusyError(DeviceError):
    pass


class DeviceHotError(DeviceBusyError):
    retryable = True


class DeviceLostError(DeviceError):
    retryable = True


def session_expired_error(name: str, doing: str, seconds: float) -> DeviceLostError:
    """Return the error of a session that was closed at its time limit."""
    return DeviceLostError(
        f"the session with device {name!r} was closed after {seconds:g} s, while {doing}",
        "a session that ends within session_timeout_s",
        "raise session_timeout_s: of the device, or deploy.session_timeout_s",
    )


class DeviceUnpluggedError(DeviceLostError):
    pass


class DeviceRebootedError(DeviceLostError):
    pass


class DeviceRefusedError(DeviceError):
    pass


class DeviceFullError(DeviceError):
    pass


class WrongProcessorError(DeviceError):
    pass


class AgentVersionError(DeviceError):
    pass


class StoreError(TvmflowError):
    pass


class StoreAwayError(StoreError):
    pass


class DamagedStoreError(StoreError):
    pass


class BundleError(TvmflowError):
    pass


class SignatureError(BundleError):
    pass


class GateRefusedError(TvmflowError):
    exit_code = 3


def _subclasses(root: type[TvmflowError]) -> dict[str, type[TvmflowError]]:
    kinds = {root.__name__: root}
    for child in root.__subclasses__():
        kinds.update(_subclasses(child))
    return kinds


def from_json(data: dict[str, str]) -> TvmflowError:
    """Return the error from another process's `to_json`; an unknown type becomes StageError."""
    kind = _subclasses(TvmflowError).get(data.get("type", ""), StageError)
    return kind(data.get("found", ""), data.get("expected", ""), data.get("hint", ""))


def _printable(text: str) -> str:
    """Return a text whose control characters, which a file may hold, are written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def from_os_error(error: OSError, doing: str) -> StoreError:
    """Convert a full disk or a missing permission to a StoreError."""
    path = error.filename or ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"no space left while {doing} {path}".rstrip(),
            "room on the disk of the workspace",
            "free some space and run the same command again; nothing stored was changed",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(
            f"no permission while {doing} {path}".rstrip(),
            "a workspace that this user may write",
            "fix the owner or the mode of that path and run the same command again",
        )
    return StoreError(f"{error.strerror or error} while {doing} {path}".rstrip())


def similar_name(name: str, legal: Iterable[str]) -> str | None:
    """Return the legal name that was probably meant, ignoring case and punctuation; None without a similar one."""
    plain = {_plain(known): known for known in legal}
    if _plain(name) in plain:
        return plain[_plain(name)]
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


_SHORT = ((r"^(fp|f)(?=\d)", "float"), (r"^bf(?=\d)", "bfloat"), (r"^i(?=\d)", "int"))  # as people write dtypes


def _plain(name: str) -> str:
    plain = "".join(c for c in name.lower() if c.isalnum())
    for short, whole in _SHORT:
        plain = re.sub(short, whole, plain)
    return plain


def did_you_mean(name: str, legal: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)", or "" without a similar legal name."""
    similar = similar_name(name, legal)
    return f" (did you mean {similar!r}?)" if similar else ""


def first_line(error: BaseException, limit: int = 300) -> str:
    """Return the first non-empty line of an error's text, or else the error's type."""
    lines = _lines(error)
    return lines[0][:limit] if lines else type(error).__name__


def last_line(error: BaseException, limit: int = 300) -> str:
    """Return the last line of an error's text, where TVM puts the cause."""
    lines = _lines(error)
    return lines[-1][:limit] if lines else type(error).__name__


def cause(error: BaseException, limit: int = 300) -> str:
    """Return an unexpected error as one line: its type, and the first and last line of its text."""
    lines = _lines(error)
    shown = dict.fromkeys(line[:limit] for line in (*lines[:1], *lines[-1:]))
    return ": ".join([type(error).__name__, " ... ".join(shown)] if lines else [type(error).__name__])


def _lines(error: BaseException) -> list[str]:
    """Return the lines of an error's text, without what TVM's printer adds below a module."""
    lines = (line.strip() for line in str(error).splitlines())
    return [line for line in lines if line and not line.startswith("# Metadata omitted")]


def last_words(said: bytes, limit: int = 300) -> str:
    """Return the last line of a process's output, or the one about a full disk, without terminal control characters; ""
    for no output.
    """
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    full = [line for line in lines if os.strerror(errno.ENOSPC) in line]
    return "".join(c if c.isprintable() else " " for c in (full or lines)[-1][:limit]) if lines else ""


def error_words(said: bytes, limit: int = 300) -> str:
    """Return the first line of a process's output that names an error, else the last line."""
    errors = [line for line in said.splitlines() if b"error:" in line]
    return last_words(errors[0] if errors else said, limit)
