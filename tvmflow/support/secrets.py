"""Mask secrets in texts: user and password of an address, signatures in its query, values of secret variables.

Every text that leaves a process passes `mask`: errors, results, logs. What must never be written is refused where it
enters: params.yaml, whose values reach git, dvc.lock and records, holds no address with a secret (`places_of_secrets`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

_QUERY = (
    "access_?token|token|sig|signature|secret|password|passwd|pwd|api_?key|x-(?:amz|goog)-(?:signature|credential)|"
    "x-amz-security-token"
)
_ADDRESS = re.compile(r"\b([A-Za-z][\w+.-]*://)([^/?#\s'\"<>]*)@")
_SECRET_QUERY = re.compile(rf"([?&;](?:{_QUERY})=)[^&;#\s'\"<>]+", re.IGNORECASE)
_VARIABLES = ("_PASSWORD", "_TOKEN", "_SECRET", "_ACCESS_KEY", "_API_KEY", "_SIGNING_KEY", "_AUTH_STRING")
_SHORTEST = 8  # of a variable's value that is looked for: a shorter one is in ordinary words too
_MASKED = "***"


def mask(text: str) -> str:
    """Return a text without the secrets in it."""
    return mask_of_now()(text)


def mask_of_now() -> Callable[[str], str]:
    """Return `mask` for many texts, which reads the variables once."""
    values = _values_of_variables()

    def hide(text: str) -> str:
        if "://" in text:
            text = _SECRET_QUERY.sub(rf"\1{_MASKED}", _ADDRESS.sub(_without_user, text))
        for value in values:
            text = text.replace(value, _MASKED)
        return text

    return hide


def _without_user(address: re.Match[str]) -> str:
    """Return the start of an address. ssh needs its user, who has a key."""
    scheme, user = address[1], address[2]
    return address[0] if scheme.lower().endswith("ssh://") and ":" not in user else scheme


def places_of_secrets(value: Any, place: str = "") -> Iterator[str]:
    """Yield the keys of nested dicts and lists under which an address with a user or a secret query is."""
    if isinstance(value, str) and "://" in value:
        plain = _SECRET_QUERY.sub(r"\1", _ADDRESS.sub(_without_user, value))
        yield from [place] if plain != value else []
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places_of_secrets(part, f"{place}.{name}" if place else str(name))


def _values_of_variables() -> list[str]:
    """Return the values of variables with names of secrets, the longest first: one may hold another."""
    found = {
        line
        for name, value in os.environ.items()
        if name.endswith(_VARIABLES)
        for line in value.splitlines()  # of a key in PEM each
        if len(line) >= _SHORTEST and not line.startswith("-----")
    }
    return sorted(found, key=len, reverse=True)


def mask_process() -> None:
    """Mask every log record and every traceback that this process writes."""
    global _make
    before = logging.getLogRecordFactory()
    if before is not _masked_record:
        _make = before
        logging.setLogRecordFactory(_masked_record)
        sys.excepthook = show_traceback


def show_traceback(*error: Any) -> None:
    """Write the traceback of an error (its type, itself, its traceback) to stderr."""
    sys.stderr.write(mask("".join(traceback.format_exception(*error))))


_make: Any = logging.LogRecord


def _masked_record(*args: Any, **named: Any) -> logging.LogRecord:
    record: logging.LogRecord = _make(*args, **named)
    try:
        said = record.getMessage()
        if (shown := mask(said)) != said:
            record.msg, record.args = shown, ()
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = mask(logging.Formatter().formatException(record.exc_info))
    except Exception:  # noqa: S110  (a format that does not fit its arguments: logging reports it)
        pass
    return record
