"""Queue for devices that several machines reach, by a global concurrency limit of the user's Prefect server.

The limit is held by a lease, which Prefect ends about a minute after its holder died. Who holds it is in a variable of
the limit's name, with a number that grows while the holder lives; a limit whose number stands still is freed by who
waits, since a server that restarts forgets its leases but not its slots. Without a server, and while it is away,
devices protect themselves: a tracker hands out each board once, an agent serves one host.
"""

from __future__ import annotations

import contextlib
import getpass
import platform
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate, VariableCreate, VariableUpdate
from prefect.exceptions import ObjectAlreadyExists

from flows.settings import has_users_server
from flows.stopping import is_stopping
from tvmflow.config.params import DeviceEntry
from tvmflow.config.workspace import Workspace
from tvmflow.devices.device_lock import shown_path
from tvmflow.devices.registry import transport_of
from tvmflow.devices.waiting import duration, wait_for
from tvmflow.support.errors import InterruptedStageError, TvmflowError
from tvmflow.support.progress import Progress

LEASE_S = 60.0  # the shortest that Prefect accepts
_RENEW_S = 15.0
_STALE_S = LEASE_S + 2 * _RENEW_S
_TIMEOUT_S = 15.0  # of a request
_LOCKED = 423


@contextlib.contextmanager
def device_turn(workspace: Workspace, device: DeviceEntry, cell: str, progress: Progress) -> Iterator[None]:
    """Hold the turn of a device within this context, if several machines reach it. Raises DeviceBusyError."""
    shared = _shared_units(device) if has_users_server() else None
    if shared is None:
        yield
        return
    queue = DeviceQueue(*shared, f"{shown_path(workspace.root)} {cell} on {platform.node()}")
    with queue.turn(lambda text: progress(text, 0, 0), workspace.params.deploy.device_wait_s):
        yield


def _shared_units(device: DeviceEntry) -> tuple[str, int] | None:
    try:
        return transport_of(device).shared_units(device)
    except TvmflowError:
        return None  # the stage reports what is wrong with the device


class DeviceQueue:
    """The queue of a device. name: the same on every machine; units: how many there are; work: what is done here."""

    def __init__(self, name: str, units: int, work: str) -> None:
        legal = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        self.name, self.units, self.work = f"tvmflow_device_{legal}"[:200], units, work
        self.shown = name
        self._seen: tuple[Any, float] = (None, 0.0)

    @contextlib.contextmanager
    def turn(self, say: Callable[[str], None], wait_s: float | None = None) -> Iterator[None]:
        """Hold a turn. Raises DeviceBusyError after `wait_s`."""
        try:
            with self._client() as client:
                client.upsert_global_concurrency_limit_by_name(self.name, self.units)
                take = lambda: self._take(client)  # noqa: E731
                lease = wait_for(self.shown, take, lambda: self._held_by(client), wait_s, say)
        except TvmflowError:
            raise
        except Exception as error:  # httpx and Prefect have many
            say(f"no queue for {self.shown}: Prefect's server does not answer ({type(error).__name__})")
            yield
            return
        ended = threading.Event()
        beat = threading.Thread(target=self._renew, args=(lease, ended), daemon=True)
        beat.start()
        try:
            yield
        finally:
            ended.set()
            with contextlib.suppress(Exception), self._client() as client:
                client.release_concurrency_slots_with_lease(lease)

    def _client(self) -> Any:
        return get_client(sync_client=True, httpx_settings={"timeout": _TIMEOUT_S})

    def _take(self, client: Any) -> Any:
        """Return the lease of a turn, None if there is none."""
        if is_stopping():
            raise InterruptedStageError(f"waiting for {self.shown} was interrupted")
        try:
            reply = client.increment_concurrency_slots_with_lease([self.name], 1, "concurrency", LEASE_S)
        except Exception as error:
            if getattr(getattr(error, "response", None), "status_code", None) != _LOCKED:
                raise
            self._free_if_dead(client)
            return None
        self._describe(client, 0)
        return reply.json()["lease_id"]

    def _free_if_dead(self, client: Any) -> None:
        about, now = self._about(client), time.monotonic()
        beat = (about.get("work"), about.get("since"), about.get("beat"))
        if beat != self._seen[0]:
            self._seen = (beat, now)
        elif now - self._seen[1] > _STALE_S:
            client.update_global_concurrency_limit(self.name, GlobalConcurrencyLimitUpdate(active_slots=0))
            self._seen = (None, now)

    def _renew(self, lease: Any, ended: threading.Event) -> None:
        beat = 0
        while not ended.wait(_RENEW_S):
            beat += 1
            with contextlib.suppress(Exception), self._client() as client:  # the device protects itself meanwhile
                self._describe(client, beat)
                client.renew_concurrency_lease(lease, LEASE_S)

    def _describe(self, client: Any, beat: int) -> None:
        if not beat:
            self._since = time.time()
        about = {"user": getpass.getuser(), "work": self.work, "since": self._since, "beat": beat}
        with contextlib.suppress(Exception):
            try:
                client.create_variable(VariableCreate(name=self.name, value=about, tags=["tvmflow"]))
            except ObjectAlreadyExists:
                client.update_variable(VariableUpdate(name=self.name, value=about))

    def _about(self, client: Any) -> dict[str, Any]:
        found = client.read_variable_by_name(self.name)
        return found.value if found is not None and isinstance(found.value, dict) else {}

    def _held_by(self, client: Any) -> str:
        about = self._about(client)
        since = about.get("since")
        if not isinstance(since, int | float):
            return "held by another run"
        text = f"held by {about.get('user')}: {about.get('work')} since {duration(max(0.0, time.time() - since))}"
        return "".join(one if one.isprintable() else "?" for one in text)[:300]
