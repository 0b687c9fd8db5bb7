"""Run one build process: start it, send it requests, and classify its failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from tvmflow.support.paths import CODE_ROOT
from tvmflow.tuning.records.record import COMPILE_ERROR, UNKNOWN

START_TIMEOUT_S = 120.0  # to import TVM on a busy machine
# Signals of a compiler crash; any other signal comes from outside, such as the OOM killer.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_OWN_TIME = 0.5  # least share of the time limit in CPU time, or the machine is at fault


class BuildProcess:
    """A process that builds kernels. Raises OSError where it cannot be started."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tvmflow.tuning.measure.build_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
        )
        self._cpu_s = 0.0
        ready, timed_out = self._line(START_TIMEOUT_S)
        if ready is None or ready.get("error"):
            self.kill()
            why = f"it did not start within {START_TIMEOUT_S:g} s" if timed_out else f"exit {self.process.returncode}"
            raise OSError(f"the process that compiles did not start: {(ready or {}).get('error') or why}")
        self._cpu_s = ready["cpu_s"]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and return the reply. `sure` in it: the schedule is at fault, whatever the state of the
        machine.
        """
        before = self._cpu_s
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        reply, timed_out = self._line(timeout_s)
        if reply is not None:
            self._cpu_s = reply["cpu_s"]
            return reply
        computed_s = self.kill() - before
        if timed_out:
            error = f"the compiler took longer than {timeout_s:g} s, {computed_s:.0f} s of which it computed"
            own = computed_s >= _OWN_TIME * timeout_s
            return {"status": COMPILE_ERROR if own else UNKNOWN, "error": error, "sure": own}
        code = self.process.returncode or 0
        status = COMPILE_ERROR if -code in _CRASHES else UNKNOWN
        name = signal.Signals(-code).name if code < 0 else f"exit {code}"
        return {"status": status, "error": f"the process that compiles died: {name}"}

    def kill(self) -> float:
        """Kill the process and its children; return the CPU seconds that it used."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            _, status, usage = os.wait4(self.process.pid, 0)
        except ChildProcessError:  # reaped already
            self.process.wait()
            return 0.0
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime

    def _line(self, timeout_s: float) -> tuple[dict[str, Any] | None, bool]:
        """Return the next line of the process (None if it ended) and whether it was killed for a timeout."""
        silent = threading.Event()

        def end() -> None:
            silent.set()
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

        watchdog = threading.Timer(timeout_s, end)
        watchdog.start()
        try:
            assert self.process.stdout is not None
            found: dict[str, Any] | None = json.loads(self.process.stdout.readline() or "null")
        except (OSError, ValueError):
            found = None
        finally:
            watchdog.cancel()
        return found, silent.is_set()
