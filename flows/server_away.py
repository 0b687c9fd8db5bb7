"""End a run right whose Prefect server went away: its work needs none, so its results are kept, and its end told later.

Prefect's client asks the server when a flow begins and ends; what happens between is logs and events, which it sends
from queues. Without a server its last request repeats for minutes, and then takes the results of the flow with it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import requests
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.settings import get_current_settings
from prefect.states import Completed

from flows.live_runs import tell_later
from flows.settings import has_users_server
from flows.stopping import is_stopping, leave_at_once
from tvmflow.support.errors import first_line
from tvmflow.support.secrets import mask

_WAIT_S = 30.0  # for a server that restarts while a flow ends
_EVERY_S = 2.0
_ANSWER_S = 10.0


class _Ended:
    """How the function of a flow ended. run: the flow run, None before it ended; why: what is wrong with the server."""

    def __init__(self) -> None:
        self.run: Any = None
        self.value: Any = None
        self.error: Exception | None = None
        self.why = ""

    def take(self, value: Any, error: Exception | None = None) -> None:
        """Keep what the function returned or raised, and give the server a moment to be back."""
        self.run, self.value, self.error = flow_run.id, value, error
        self.why = _wait_for_server()
        if self.why:
            get_current_settings().client.max_retries = 0


_ended: ContextVar[_Ended | None] = ContextVar("ended", default=None)  # of the flow of `run_flow`


def keeps_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a flow such that what it returns or raises outlives the server."""

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        ended = _ended.get()
        try:
            value = function(*arguments, **named)
        except Exception as error:
            if ended is not None:
                ended.take(None, error)
            raise
        if ended is not None:
            ended.take(value)
        return value

    return run


def run_flow(flow: Callable[..., Any], *arguments: Any) -> Any:
    """Run a flow whose function `keeps_result`. Returns its final state, also where its server went away meanwhile.

    Raises the error of the function, or one of Prefect's client if the server went away before the function ended.
    """
    if not has_users_server():  # one of this process ends with it
        return flow(*arguments, return_state=True)
    ended = _Ended()
    before = _ended.set(ended)
    try:
        with _retries_restored():
            return flow(*arguments, return_state=True)
    except Exception:
        why = ended.why or _why_away()
        if ended.run is None or not why:
            raise
    finally:
        _ended.reset(before)
    leave_at_once()
    sys.stderr.write(f"{why}: the run went on without it, and the next run tells it how this one ended\n")
    tell_later(ended.run, "FAILED" if ended.error else _type_of(ended.value))
    if ended.error is not None:
        raise ended.error
    return ended.value if isinstance(ended.value, State) else Completed(data=ended.value)


def _type_of(value: Any) -> str:
    return str(value.type.value) if isinstance(value, State) else "COMPLETED"


def _why_away() -> str:
    """Return why the server of runs cannot be used, naming it; '' if it can."""
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    server = f"Prefect's server at {mask(url)} does not answer"
    try:
        reply = requests.get(f"{url}/ready", timeout=_ANSWER_S)
    except requests.RequestException as error:
        is_refused = isinstance(error, requests.ConnectionError)
        return f"{server} ({'nothing listens there' if is_refused else first_line(error, 100)})"
    if reply.status_code < requests.codes.server_error:
        return ""
    if "database" in reply.text.lower():
        return f"{server}, since its database does not answer"
    return f"{server} ({reply.status_code} {reply.reason})"


def _wait_for_server() -> str:
    """Wait a little for a server that restarts. Returns why it cannot be used, '' if it can."""
    deadline = time.monotonic() + (0.0 if is_stopping() else _WAIT_S)
    while (why := _why_away()) and time.monotonic() < deadline:
        time.sleep(_EVERY_S)
    return why


@contextlib.contextmanager
def _retries_restored() -> Iterator[None]:
    client = get_current_settings().client
    before = client.max_retries
    try:
        yield
    finally:
        client.max_retries = before
