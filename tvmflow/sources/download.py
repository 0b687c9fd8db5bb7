"""Download a file pinned by its sha256, with resumption, retries, a size limit and redirect checks."""

from __future__ import annotations

import hashlib
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from tvmflow.support.errors import DigestError, DownloadError, SourceError
from tvmflow.support.progress import Progress, silent
from tvmflow.support.secrets import mask

if TYPE_CHECKING:
    import requests

_CHUNK = 1 << 16
_MAX_REDIRECTS = 5
_KINDS = {32: "md5", 40: "sha1"}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class DownloadLimits:
    max_bytes: int
    attempts: int = 5
    timeout_s: float = 20.0
    first_delay_s: float = 0.5


def download(url: str, target: Path, limits: DownloadLimits, digest: str, progress: Progress = silent) -> None:
    """Fetch `url` into `target`, whose bytes must have the given digest.

    digest: 40 hexadecimal digits are a sha1 and 32 an md5, as older zoos have them; else a sha256, or its first 8
    digits at least.

    A part that was fetched before (`target` + .part) is continued. Raises DownloadError when the network failed every
    time, DigestError when the bytes are others, SourceError when the server's reply can never be accepted.
    """
    import requests  # imported here, since listing names of sources needs no network

    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    last = "no attempt was made"
    for attempt in range(limits.attempts):
        if attempt:
            time.sleep(limits.first_delay_s * 2 ** (attempt - 1) * random.uniform(0.7, 1.3))  # noqa: S311
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _fetch_rest(url, part, limits, progress)
        except _TryAgain as error:
            last = str(error)
            continue
        except requests.RequestException as error:
            last = type(error).__name__  # its text may contain the address with user and token
            continue
        kind = _KINDS.get(len(digest), "sha256")
        actual = _digest(part, kind)
        if actual.startswith(digest):
            os.replace(part, target)
            return
        part.unlink()
        if resumed:  # the old part may belong to another file: start again
            last = "the part of an earlier download did not match"
            continue
        raise DigestError(
            f"{_shown(url)} has {kind} {actual}",
            f"{kind} {digest}",
            "if the file was changed on purpose, write its new sha256 into params.yaml; otherwise do not use it",
        )
    raise DownloadError(
        f"{_shown(url)} could not be downloaded in {limits.attempts} attempts; last: {last}",
        "a server that responds",
        "try again later: the download will be resumed",
    )


class _TryAgain(Exception):
    pass


def _fetch_rest(url: str, part: Path, limits: DownloadLimits, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    with _open(url, have, limits) as response:
        if response.status_code == 416:  # nothing is left, or the part is longer than the file
            if response.headers.get("Content-Range", "") == f"bytes */{have}":
                return
            part.unlink(missing_ok=True)
            raise _TryAgain("the server does not have the range that was asked for")
        if response.status_code in (408, 425, 429) or response.status_code >= 500:
            raise _TryAgain(f"HTTP {response.status_code}")
        if response.status_code not in (200, 206):
            raise SourceError(
                f"{_shown(url)} responded with HTTP {response.status_code}", "HTTP 200", "check the address"
            )
        if response.status_code == 200:
            have = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            part.unlink(missing_ok=True)
            raise _TryAgain("the server continued at another place than asked")
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else 0
        _check_size(url, total, limits)
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            for chunk in response.iter_content(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                _check_size(url, have, limits, part)
                progress(f"downloading {part.name.removesuffix('.part')}", have, total)
        if total and have < total:
            raise _TryAgain(f"the connection ended after {have} of {total} bytes")


def _open(url: str, have: int, limits: DownloadLimits) -> requests.Response:
    import requests

    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    for _ in range(_MAX_REDIRECTS + 1):
        _check_address(url)
        response = requests.get(
            url, headers=headers, stream=True, allow_redirects=False, timeout=(limits.timeout_s, limits.timeout_s)
        )
        if not response.is_redirect:
            return response
        response.close()
        url = urljoin(url, response.headers["Location"])
    raise SourceError(f"{_shown(url)} redirects more than {_MAX_REDIRECTS} times", "a file")


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return
    raise SourceError(
        f"address {_shown(url)} uses protocol {parts.scheme or 'none'}",
        "https (http only on loopback), also after redirects",
        "use an https address",
    )


def _check_size(url: str, size: int, limits: DownloadLimits, part: Path | None = None) -> None:
    if size > limits.max_bytes:
        if part is not None:
            part.unlink(missing_ok=True)
        raise SourceError(
            f"{_shown(url)} holds more than {limits.max_bytes} bytes",
            f"at most {limits.max_bytes}",
            "raise fetch.max_download_mb in params.yaml if that size is expected",
        )


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _shown(url: str) -> str:
    """Return an address for messages. Without its query: after a redirect it may be signed in any way."""
    return mask(url.split("?")[0])
