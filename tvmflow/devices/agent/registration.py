"""Register an agent with TVM's RPC tracker under a key, as TVM's own RPC servers do.

A tracker hands out an address with a match key for one session; an agent's match key identifies it as an agent. The
host that gets it connects to the agent; when the agent is free again, a new match key is put. The registration ends
with the connection to the tracker, which ends with the agent. TVM's own client cannot use an agent: the agent closes
the connection at its first bytes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any

from tvmflow.devices.agent.protocol import AgentConnection
from tvmflow.devices.tracker_protocol import PENDING, PUT, SUCCESS, UPDATE_INFO, TrackerAddress, TrackerConnection
from tvmflow.support.errors import TrackerError, UsageError

AGENT = "tvmflow-agent"  # part of match keys and of the tracker's listing
_PAUSE_S = 0.3
_UNCLAIMED_S = 5.0  # time limit to connect to an agent that was handed out


@dataclass(frozen=True)
class Offer:
    """An agent and the key of its registration. unit, build: its names in measurements, "" for those that the agent
    reports.
    """

    key: str
    host: str
    port: int
    secret: bytes
    unit: str = ""
    build: str = ""


def is_agent(match_key: str) -> bool:
    """Return whether a match key belongs to an agent."""
    return match_key.rpartition(":")[2].startswith(AGENT)


def check_address(tracker: TrackerAddress, host: str) -> None:
    """Raise UsageError for a loopback address of an agent that is registered with a remote tracker."""
    if _is_loopback(host) and not _is_loopback(tracker.host):
        raise UsageError(
            f"an agent at {host}, which is this machine to every host, for the tracker at {tracker.host}",
            "a tracker on this machine (127.0.0.1), or an address of the agent that other hosts reach",
        )


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def offer_agent(tracker: TrackerAddress, offer: Offer, over: threading.Event) -> None:
    """Keep an agent registered until `over` is set. Raises DeviceLostError when the agent is lost, TrackerError when
    the tracker is.
    """
    check_address(tracker, offer.host)
    with contextlib.ExitStack() as stack:
        agent = AgentConnection(offer.host, offer.port, offer.secret, offer.key)
        stack.callback(agent.close)
        agent.ask("taken", "asking whether it is free")
        connection = TrackerConnection(tracker)
        stack.callback(connection.close)
        about = {"unit": offer.unit, "build": offer.build}
        _send(connection, UPDATE_INFO, {"key": f"server:{offer.key}", "addr": [offer.host, offer.port], AGENT: about})
        state = _Registration(connection, offer)
        while not over.wait(_PAUSE_S):
            state.update(bool(agent.ask("taken", "asking whether it is free")["taken"]))


class _Registration:
    """match_key: the one that the tracker may hand out or has handed out; "" for none."""

    def __init__(self, connection: TrackerConnection, offer: Offer) -> None:
        self.connection, self.offer = connection, offer
        self.match_key, self.handed_out, self.was_taken = "", 0.0, False
        self.update(False)

    def update(self, taken: bool) -> None:
        """Put a new match key if the last one was used, or was not claimed in time."""
        if self.match_key and self.match_key not in self._pending():
            now = time.monotonic()
            self.handed_out, self.was_taken = self.handed_out or now, self.was_taken or taken
            if not taken and (self.was_taken or now - self.handed_out > _UNCLAIMED_S):
                self.match_key = ""
        if not self.match_key and not taken:
            self.match_key, self.handed_out, self.was_taken = self._put(), 0.0, False

    def _put(self) -> str:
        match_key = f"{self.offer.key}:{AGENT}-{secrets.token_hex(16)}"
        _send(self.connection, PUT, self.offer.key, [self.offer.port, match_key], self.offer.host)
        return match_key

    def _pending(self) -> list[str]:
        found = _request(self.connection, PENDING)
        return [str(one) for one in found] if isinstance(found, list) else []


def _send(connection: TrackerConnection, *message: Any) -> None:
    reply = _request(connection, *message)
    if reply != SUCCESS:
        raise TrackerError(f"the tracker refused: {str(reply)[:100]}", "a tracker of this version of TVM")


def _request(connection: TrackerConnection, *message: Any) -> Any:
    try:
        return connection.ask(*message)
    except TimeoutError:
        raise TrackerError("the tracker does not respond", "a tracker that responds", "start it again") from None
