"""Offer an agent to TVM's RPC tracker under a key, as TVM's own servers offer themselves: listed, handed out to one
host at a time.

A tracker hands out addresses with a key for one session, a match key, which for an agent says that it is one. Whoever
has been given one connects to the agent and takes it; when it is free again another match key is put. The offer ends
with the connection to the tracker, which ends with the agent. TVM's own client cannot use an agent: that closes the
connection at its first words.
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

AGENT = "tvmflow-agent"  # in match keys, and what the tracker lists beside key and addr
_PAUSE_S = 0.3
_UNCLAIMED_S = 5.0  # so long whoever was given an agent has to take it


@dataclass(frozen=True)
class Offer:
    """An agent, and the key under which it is offered. unit, build: what measurements name it by, "" for what it says
    itself.
    """

    key: str
    host: str
    port: int
    secret: bytes
    unit: str = ""
    build: str = ""


def is_agent(match_key: str) -> bool:
    """Whether what a tracker gave away is an agent."""
    return match_key.rpartition(":")[2].startswith(AGENT)


def check_reachable(tracker: TrackerAddress, host: str) -> None:
    """Raise UsageError where an agent's address means this machine, and a tracker tells it to others."""
    if _is_loopback(host) and not _is_loopback(tracker.host):
        raise UsageError(
            f"an agent at {host}, which is this machine to every host, for the tracker at {tracker.host}",
            "a tracker of this machine (127.0.0.1), or an address of the agent that others reach",
        )


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def offer_agent(tracker: TrackerAddress, offer: Offer, over: threading.Event) -> None:
    """Offer an agent until `over` is set. Raises DeviceLostError when it goes away, TrackerError when the tracker
    does.
    """
    check_reachable(tracker, offer.host)
    with contextlib.ExitStack() as stack:
        agent = AgentConnection(offer.host, offer.port, offer.secret, offer.key)
        stack.callback(agent.close)
        agent.ask("taken", "asking whether it is free")
        connection = TrackerConnection(tracker)
        stack.callback(connection.close)
        about = {"unit": offer.unit, "build": offer.build}
        _told(connection, UPDATE_INFO, {"key": f"server:{offer.key}", "addr": [offer.host, offer.port], AGENT: about})
        state = _Offered(connection, offer)
        while not over.wait(_PAUSE_S):
            state.look(bool(agent.ask("taken", "asking whether it is free")["taken"]))


class _Offered:
    """match_key: what the tracker may hand out, or has handed out; "" for nothing."""

    def __init__(self, connection: TrackerConnection, offer: Offer) -> None:
        self.connection, self.offer = connection, offer
        self.match_key, self.handed_out, self.was_taken = "", 0.0, False
        self.look(False)

    def look(self, taken: bool) -> None:
        """Put a new match key where the last one was used, or was not used for too long."""
        if self.match_key and self.match_key not in self._pending():
            now = time.monotonic()
            self.handed_out, self.was_taken = self.handed_out or now, self.was_taken or taken
            if not taken and (self.was_taken or now - self.handed_out > _UNCLAIMED_S):
                self.match_key = ""
        if not self.match_key and not taken:
            self.match_key, self.handed_out, self.was_taken = self._put(), 0.0, False

    def _put(self) -> str:
        match_key = f"{self.offer.key}:{AGENT}-{secrets.token_hex(16)}"
        _told(self.connection, PUT, self.offer.key, [self.offer.port, match_key], self.offer.host)
        return match_key

    def _pending(self) -> list[str]:
        found = _asked(self.connection, PENDING)
        return [str(one) for one in found] if isinstance(found, list) else []


def _told(connection: TrackerConnection, *message: Any) -> None:
    reply = _asked(connection, *message)
    if reply != SUCCESS:
        raise TrackerError(f"the tracker refused: {str(reply)[:100]}", "a tracker of this version of TVM")


def _asked(connection: TrackerConnection, *message: Any) -> Any:
    try:
        return connection.ask(*message)
    except TimeoutError:
        raise TrackerError("the tracker is silent", "a tracker that answers", "start it again") from None
