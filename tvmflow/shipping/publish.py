"""Publish the files of a release: into a folder, to an OCI registry, or to a bucket that DVC knows.

What says which versions there are is written last, so that an interrupted run leaves the former state.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.shipping.bundle.maven import VERSIONS_FILE, add_versions
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.tracking.dvc.remote import open_address

USER, PASSWORD = "TVMFLOW_REGISTRY_USER", "TVMFLOW_REGISTRY_PASSWORD"
_ARTIFACT = "application/vnd.tvmflow.release.v1"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_EMPTY = b"{}"
_TIMEOUT_S = 60.0
_OCI = re.compile(r"oci(?P<plain>\+http)?://(?P<host>[A-Za-z0-9.-]+(:\d+)?)/(?P<name>[a-z0-9]+([._/-][a-z0-9]+)*)")


@dataclass(frozen=True)
class Files:
    """folder: what the names of files are relative to; tags: of the release in a registry, the last one moves."""

    folder: Path
    files: Sequence[Path]
    tags: tuple[str, ...]

    @property
    def lists(self) -> list[Path]:
        """Return the lists of versions, to which those that are published already are added."""
        return [file for file in self.files if file.name == VERSIONS_FILE]

    def name(self, file: Path) -> str:
        return file.relative_to(self.folder).as_posix()


def publish(files: Files, to: str, dvc_folder: Path) -> str:
    """Publish files; returns where. to: a folder, `oci://HOST/NAME` (`oci+http://` without TLS), or an address of
    DVC's, as `s3://BUCKET/PATH` or `remote://NAME/PATH`. Raises UsageError, StoreError.
    """
    if to.startswith(("oci://", "oci+http://")):
        return _to_registry(files, to)
    if "://" in to:
        return _to_bucket(files, to, dvc_folder)
    place = Path(to)
    for listed in files.lists:
        known = place / files.name(listed)
        if known.is_file():
            add_versions(listed, known.read_bytes())
    for file in files.files:
        target = place / files.name(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        shutil.copyfile(file, draft)
        os.replace(draft, target)
    return str(place)


def _to_bucket(files: Files, to: str, dvc_folder: Path) -> str:
    try:
        fs, root = open_address(to, dvc_folder)
        for listed in files.lists:
            known = fs.join(root, *files.name(listed).split("/"))
            if fs.exists(known):
                add_versions(listed, fs.cat_file(known))
        for file in files.files:
            target = fs.join(root, *files.name(file).split("/"))
            fs.makedirs(fs.parent(target), exist_ok=True)
            fs.put_file(str(file), target)
    except (OSError, ValueError) as error:
        raise StoreError(f"{to} does not take the files: {error}", "an address that DVC can write to") from None
    return to


def _to_registry(files: Files, to: str) -> str:
    found = _OCI.fullmatch(to)
    if found is None:
        raise UsageError(f"the registry {to!a}", "oci://HOST/NAME, the name in lower case without a tag")
    registry = _Registry(f"{'http' if found['plain'] else 'https'}://{found['host']}/v2/{found['name']}")
    layers = []
    for file in files.files:
        one = registry.push(file.read_bytes(), "application/octet-stream")
        layers.append({**one, "annotations": {"org.opencontainers.image.title": files.name(file)}})
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "artifactType": _ARTIFACT,
        "config": registry.push(_EMPTY, "application/vnd.oci.empty.v1+json"),
        "layers": layers,
    }
    data = json.dumps(manifest, sort_keys=True).encode()
    for tag in files.tags:
        registry.call("PUT", f"/manifests/{tag}", data, {"Content-Type": _MANIFEST}, (201,))
    return f"{to}:{files.tags[-1]}@sha256:{hashlib.sha256(data).hexdigest()}"


class _Registry:
    """A repository of a registry, by the OCI distribution specification. base: its address behind which blobs are."""

    def __init__(self, base: str) -> None:
        import requests

        self._base, self._session = base, requests.Session()
        if os.environ.get(USER):
            self._session.auth = (os.environ[USER], os.environ.get(PASSWORD, ""))

    def push(self, data: bytes, kind: str) -> dict[str, Any]:
        """Upload a blob unless it is there; return its descriptor."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self.call("HEAD", f"/blobs/{digest}", None, {}, (200, 404)).status_code == 404:
            begun = self.call("POST", "/blobs/uploads/", None, {}, (202,))
            from urllib.parse import urljoin

            place = urljoin(f"{self._base}/", begun.headers.get("Location", ""))
            place += f"{'&' if '?' in place else '?'}digest={digest}"
            self.call("PUT", place, data, {"Content-Type": "application/octet-stream"}, (201,))
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def call(
        self, method: str, place: str, data: bytes | None, headers: dict[str, str], allowed: tuple[int, ...]
    ) -> Any:
        """Return the answer to a request. Raises StoreError for one that is not allowed."""
        import requests

        url = place if "://" in place else self._base + place
        try:
            answer = self._session.request(method, url, data=data, headers=headers, timeout=_TIMEOUT_S)
            challenge = answer.headers.get("WWW-Authenticate", "")
            if answer.status_code == 401 and challenge.lower().startswith("bearer "):
                self._fetch_token(challenge)
                answer = self._session.request(method, url, data=data, headers=headers, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            raise StoreError(f"the registry {self._base} does not answer: {error}", "a registry that is up") from None
        if answer.status_code not in allowed:
            hint = f"set {USER} and {PASSWORD}" if answer.status_code in (401, 403) else ""
            raise StoreError(
                f"the registry answers {answer.status_code} to {method} {url}: {answer.text[:200]}",
                f"one of {', '.join(map(str, allowed))}",
                hint,
            )
        return answer

    def _fetch_token(self, challenge: str) -> None:
        """Exchange user and password for the token that a challenge asks for."""
        import requests

        words = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        asked = {name: words[name] for name in ("service", "scope") if name in words}
        realm = words.get("realm", "")
        if not realm.startswith(("https://", "http://127.0.0.1", "http://localhost")):
            raise StoreError(f"the registry sends credentials to {realm!a}", "an address of https")
        answer = requests.get(realm, params=asked, auth=self._session.auth, timeout=_TIMEOUT_S)
        try:
            found = answer.json()
            token = found.get("token") or found["access_token"]
        except (ValueError, KeyError, AttributeError):
            raise StoreError(f"no token from {realm}: {answer.status_code}", "a token", f"{USER}, {PASSWORD}") from None
        self._session.auth = None
        self._session.headers["Authorization"] = f"Bearer {token}"
