"""Test publishing of releases: packages made of the bundle alone, into folders, DVC's remotes and an OCI registry.

The registry is a stand-in on loopback that keeps to the distribution specification and refuses what is not of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.bundle_parts import CELL, SPEC, small_part, small_scheduled, written
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.params import AppEntry
from tvmflow.config.workspace import Workspace
from tvmflow.shipping.bundle.part import Part
from tvmflow.shipping.bundle.signing import KeyPair, public_key, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.publish import Files, publish
from tvmflow.shipping.release_app import Order, Signer, publish_app, release_app
from tvmflow.shipping.release_trust import shipped
from tvmflow.support.errors import StoreError, ToolchainError, UsageError
from tvmflow.toolchain.compilers import compiler_named
from tvmflow.tracking.dvc import repository as dvc

ENTRY = AppEntry(cells=(CELL,), packages=("wheel",))


class _Registry(BaseHTTPRequestHandler):
    """blobs, manifests: by digest and by tag; uploads: open ones."""

    blobs: ClassVar[dict[str, bytes]] = {}
    manifests: ClassVar[dict[str, bytes]] = {}
    uploads: ClassVar[set[str]] = set()

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _is_allowed(self) -> bool:
        wanted = f"Basic {base64.b64encode(b'me:secret').decode()}"
        if self.headers.get("Authorization") == wanted:
            return True
        self._answer(401, WWW_Authenticate='Basic realm="registry"')
        return False

    def do_HEAD(self) -> None:
        if self._is_allowed():
            digest = self.path.removeprefix("/v2/team/demo/blobs/")
            self._answer(200 if digest in self.blobs else 404)

    def do_POST(self) -> None:
        if self._is_allowed():
            name = str(uuid.uuid4())
            self.uploads.add(name)
            known = self.path == "/v2/team/demo/blobs/uploads/"
            self._answer(202 if known else 404, Location=f"/v2/team/demo/blobs/uploads/{name}?state=1")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._is_allowed():
            return
        place = urlsplit(self.path)
        if tag := re.fullmatch(r"/v2/team/demo/manifests/([\w.-]+)", place.path):
            named = [one["digest"] for one in (json.loads(data)["config"], *json.loads(data)["layers"])]
            is_whole = all(digest in self.blobs for digest in named)
            if is_whole:
                self.manifests[tag[1]] = data
            return self._answer(201 if is_whole else 400)
        [digest] = parse_qs(place.query)["digest"]
        upload = place.path.rpartition("/")[2]
        if upload not in self.uploads or digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            return self._answer(400)
        self.uploads.remove(upload)
        self.blobs[digest] = data
        return self._answer(201)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[tuple[type[_Registry], str]]:
    kind = type("Registry", (_Registry,), {"blobs": {}, "manifests": {}, "uploads": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield kind, f"oci+http://127.0.0.1:{server.server_address[1]}/team/demo"
    server.shutdown()
    server.server_close()
    thread.join()


def _workspace(folder: Path) -> Workspace:
    folder.mkdir(exist_ok=True)
    (folder / "params.yaml").write_text("models: {}\n")
    return Workspace(folder)


@pytest.fixture(scope="module")
def released(part: Part, keys: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Return a workspace with version 1 of an app that has a wheel."""
    workspace = _workspace(tmp_path_factory.mktemp("released"))
    order = Order("demo", ENTRY, [part], key=signing_key(keys.private))
    assert release_app(workspace, order, lambda _step: None).passed
    return workspace


def test_a_folder_gets_what_who_downloads_verifies(released: Workspace, keys: KeyPair, tmp_path: Path) -> None:
    publish_app(released, "demo", ENTRY, "beta", str(tmp_path), Signer(signing_key(keys.private)))
    [wheel] = tmp_path.glob("*.whl")
    assert {path.name for path in tmp_path.iterdir()} == {
        "demo-1.zip", "demo.yaml", wheel.name, f"{wheel.name}.dsse.json"
    }  # fmt: skip
    key = public_key(keys.public)
    assert verify(wheel, Trust(key, at_least=1)).version == 1 and wheel.name.startswith("demo-1-py3-none-manylinux_")
    now = shipped(tmp_path / "demo.yaml", "beta", key, False, None)
    assert verify(tmp_path / "demo-1.zip", Trust(now.key, sha256=now.version.bundle.sha256)).version == 1
    again = tmp_path / "again"
    publish_app(released, "demo", ENTRY, "beta", str(again), Signer(signing_key(keys.private)))
    assert (again / wheel.name).read_bytes() == wheel.read_bytes(), "the same bundle gives the same packages"
    with pytest.raises(StoreError, match="demo has no release on stable"):
        publish_app(released, "demo", ENTRY, "stable", str(again), Signer(signing_key(keys.private)))


def test_a_registry_gets_each_file_once(
    released: Workspace, keys: KeyPair, registry: tuple[type[_Registry], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, address = registry
    signer = Signer(signing_key(keys.private))
    with pytest.raises(StoreError, match="the registry answers 401"):
        publish_app(released, "demo", ENTRY, "beta", address, signer)
    monkeypatch.setenv("TVMFLOW_REGISTRY_USER", "me")
    monkeypatch.setenv("TVMFLOW_REGISTRY_PASSWORD", "secret")
    where = publish_app(released, "demo", ENTRY, "beta", address, signer)
    assert set(store.manifests) == {"1", "beta"} and store.manifests["1"] == store.manifests["beta"]
    manifest = json.loads(store.manifests["1"])
    assert where == f"{address}:beta@sha256:{hashlib.sha256(store.manifests['1']).hexdigest()}"
    assert manifest["artifactType"] == "application/vnd.tvmflow.release.v1" and manifest["schemaVersion"] == 2
    names = {one["annotations"]["org.opencontainers.image.title"]: one for one in manifest["layers"]}
    bundle = released.root / "releases" / "demo-1.zip"
    assert store.blobs[names["demo-1.zip"]["digest"]] == bundle.read_bytes()
    assert names["demo-1.zip"]["size"] == bundle.stat().st_size and len(names) == 4
    publish_app(released, "demo", ENTRY, "beta", address, signer)
    assert not store.uploads and len(store.blobs) == 5, "four files and the empty configuration"
    with pytest.raises(UsageError, match="the registry 'oci://host'"):
        publish(Files(Path("/"), (), ("1",)), "oci://host", Path("/none"))


def test_a_remote_of_dvc_gets_the_files(tmp_path: Path) -> None:
    dvc.initialize(_workspace(tmp_path / "work"))
    config = tmp_path / "work" / ".dvc" / "config"
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    config.write_text(config.read_text() + f"['remote \"shop\"']\n    url = {bucket}\n")
    folder = tmp_path / "files"
    (folder / "maven").mkdir(parents=True)
    (folder / "maven" / "a.pom").write_text("pom")
    files = Files(folder, [folder / "maven" / "a.pom"], ("1",))
    publish(files, "remote://shop/demo", tmp_path / "work" / ".dvc")
    assert (bucket / "demo" / "maven" / "a.pom").read_text() == "pom"
    with pytest.raises(StoreError, match="remote://nowhere/demo does not take the files"):
        publish(files, "remote://nowhere/demo", tmp_path / "work" / ".dvc")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
def test_a_release_for_two_systems_has_a_wheel_and_an_aar(part: Part, keys: KeyPair, tmp_path: Path) -> None:
    try:
        command = compiler_named("bionic-stubs").command("x86_64-linux-android")
    except ToolchainError as error:
        pytest.skip(f"needs zig: {error}")
    made, labels = small_part(tmp_path / "cell"), ("ant", "bee", "cow", "dog", "elk")
    network = Network("small@phone:float32", (SPEC,), ("scores",), 2, labels)
    built = write_network(tmp_path / "cell" / "build" / "network.so", small_scheduled(), network, command)
    target = replace(made.manifest.target, mtriple="x86_64-linux-android", cc="bionic-stubs")
    phone = replace(written(tmp_path / "cell", built, target, labels), cell=network.cell, slug="small.phone.float32")
    entry = AppEntry(cells=(CELL, phone.cell), packages=("wheel", "aar"), group="com.example")
    workspace = _workspace(tmp_path / "work")
    key = signing_key(keys.private)
    only_here = Order("demo", AppEntry(cells=(CELL,), packages=("aar",)), [part], key=key)
    refused = release_app(workspace, only_here, lambda _step: None)
    assert not refused.passed and "a package is refused: no aar of cells for x86_64-linux-gnu" in refused.reasons[0]
    assert release_app(workspace, Order("demo", entry, [part, phone], key=key), lambda _step: None).passed
    shop = tmp_path / "shop"
    listed = shop / "maven" / "com" / "example" / "demo" / "maven-metadata.xml"
    listed.parent.mkdir(parents=True)
    listed.write_text("<metadata><versioning><versions><version>10</version></versions></versioning></metadata>")
    publish_app(workspace, "demo", entry, "beta", str(shop), Signer(key))
    trust = Trust(public_key(keys.public), at_least=1)
    [wheel], [aar] = shop.glob("*.whl"), shop.rglob("demo-1.aar")
    assert [one.cell for one in verify(wheel, trust).libraries] == [CELL]
    assert [one.cell for one in verify(aar, trust).libraries] == [phone.cell]
    assert re.findall(r"<(?:version|latest)>(\d+)", listed.read_text()) == ["10", "1", "10"]
    assert listed.with_name("maven-metadata.xml.sha1").read_text() == hashlib.sha1(listed.read_bytes()).hexdigest()  # noqa: S324
