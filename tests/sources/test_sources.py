"""Test labels, data sets and weights: read as data only, with an error for each mismatch."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from tvmflow.frontends.registry import FRONTENDS
from tvmflow.sources.data import datasets
from tvmflow.sources.data.datasets import Samples, SplitSizes
from tvmflow.sources.data.labels import read_labels
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.errors import DigestError, ModelFileError, SourceError, TvmflowError, UnknownNameError
from tvmflow.toolchain.environments import TOOL_ENVIRONMENTS, ToolEnvironment, ToolProcess, python_of, run_tool


@pytest.mark.parametrize(
    "text",
    ['["cat", "dog"]', '{"0": "cat", "1": "dog"}', "{0: 'cat', 1: 'dog'}", "['cat', 'dog']", "cat\ndog\n"],
)
def test_labels_in_every_format(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels").write_text(text)
    assert read_labels(tmp_path / "labels") == ["cat", "dog"]


@pytest.mark.parametrize(
    "text",
    [
        "{0: __import__('os').system('touch hacked')}",
        "[open('x')]",
        "{0: 'a', 2: 'b'}",
        "[1, 2]",
        "[]",
        "{'a': 'b'}",
        "[" * 20_000,
        "{" + "'a':" * 5000,
    ],
)
def test_labels_are_never_evaluated(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels").write_text(text)
    with pytest.raises(SourceError):
        read_labels(tmp_path / "labels")
    assert not (tmp_path / "hacked").exists()


def test_the_split_is_fixed_and_shares_no_sample() -> None:
    raw = datasets.load_dataset("digits", Path())
    assert raw.x.shape == (1797, 1, 8, 8)
    sizes = SplitSizes(200, 400, 0)
    numbered = Samples((np.arange(1797, dtype=np.float32)[:, None, None, None],), raw.y)
    one, two = datasets.split(numbered, sizes), datasets.split(numbered, sizes)
    parts = [set(part.x.ravel()) for part in (one.train, one.calibration, one.evaluation)]
    assert [len(part) for part in parts] == [1197, 200, 400]
    assert len(set.union(*parts)) == 1797
    assert np.array_equal(one.evaluation.x, two.evaluation.x)
    assert not np.array_equal(one.evaluation.x, datasets.split(numbered, SplitSizes(200, 400, 1)).evaluation.x)


def test_a_data_set_of_ones_own(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", images=np.zeros((30, 4, 4), np.uint8), labels=np.arange(30))
    assert datasets.load_dataset("d.npz", tmp_path).x.shape == (30, 1, 4, 4)
    with pytest.raises(SourceError, match="more than calibration"):
        datasets.split(datasets.load_dataset("d.npz", tmp_path), SplitSizes(20, 20, 0))


@pytest.mark.parametrize("damage", ["no file", "not a zip", "pickled", "no images", "lengths", "floats"])
def test_a_bad_data_set_is_one_error(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "d.npz"
    images, labels = np.zeros((3, 2, 2)), np.arange(3)
    if damage == "not a zip":
        path.write_bytes(b"PK\x03\x04 not really")
    elif damage == "pickled":
        np.savez(path, images=np.array([{"a": 1}], dtype=object), labels=labels)
    elif damage == "no images":
        np.savez(path, labels=labels)
    elif damage == "lengths":
        np.savez(path, images=images, labels=np.arange(4))
    elif damage == "floats":
        np.savez(path, images=images, labels=labels * 1.5)
    with pytest.raises(SourceError):
        datasets.load_dataset("d.npz", tmp_path)


def test_preprocessing_per_channel() -> None:
    x = np.full((1, 2, 1, 1), 4.0, np.float32)
    assert datasets.preprocess(x, 0.5, (1.0, 0.0), (2.0, 4.0)).ravel().tolist() == [0.5, 0.5]
    with pytest.raises(SourceError, match="3 numbers"):
        datasets.preprocess(x, 1.0, (0.0, 0.0, 0.0), (1.0,))


def _request(tmp_path: Path, **weights: object) -> WeightsRequest:
    limits = DownloadLimits(max_bytes=10**8, attempts=1, timeout_s=1.0)
    return WeightsRequest(
        "torch", "digits_cnn", dict(weights), tmp_path, limits, tmp_path / "downloads", FRONTENDS["torch"].files
    )


def test_seeded_weights_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        fetch_weights(_request(tmp_path, seeded=3), tmp_path / name, None, lambda *_: None)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_a_pinned_file_must_match(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"abc")
    with pytest.raises(DigestError):
        fetch_weights(_request(tmp_path, file="w.safetensors", sha256="0" * 64), tmp_path, None, lambda *_: None)
    with pytest.raises(SourceError, match="no weights file"):
        fetch_weights(_request(tmp_path, file="x.safetensors"), tmp_path, None, lambda *_: None)
    (tmp_path / "w.exe").write_bytes(b"abc")
    with pytest.raises(ModelFileError, match="ends in"):
        fetch_weights(_request(tmp_path, file="w.exe"), tmp_path, None, lambda *_: None)


class _Served(http.server.BaseHTTPRequestHandler):
    """Serves one body under every name."""

    body = b"weights of a zoo"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_zoo_weights_are_pinned_as_their_zoo_does(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision has the start of a sha256 in the name of a file, Keras an md5 in its code."""
    from types import SimpleNamespace

    from tvmflow.sources.networks import keras_zoo as keras_networks
    from tvmflow.sources.networks import torch_zoo as torch_networks

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Served)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    right = {
        "torch": hashlib.sha256(_Served.body).hexdigest()[:8],
        "keras": hashlib.md5(_Served.body, usedforsecurity=False).hexdigest(),
    }
    network = {"torch": "torchvision/resnet18", "keras": "keras/vgg16"}[framework]
    try:
        for digest, is_right in ((right[framework], True), ("0" * len(right[framework]), False)):
            entry = SimpleNamespace(name="imagenet", url=f"{address}/resnet18-{digest}.pth")
            models = SimpleNamespace(get_model_weights=lambda _name, entry=entry: [entry])
            monkeypatch.setattr(torch_networks, "torchvision_models", lambda models=models: models)
            monkeypatch.setattr(keras_networks, "zoo_file", lambda _name, digest=digest: (f"{address}/w.h5", digest))
            limits = DownloadLimits(max_bytes=1000, attempts=1, timeout_s=5.0)
            request = WeightsRequest(
                framework,
                network,
                {"zoo": "imagenet"},
                tmp_path,
                limits,
                tmp_path / "downloads",
                FRONTENDS[framework].files,
            )
            if is_right:
                path = fetch_weights(request, tmp_path, None, lambda *_: None)
                assert path.read_bytes() == _Served.body and path.suffix == {"torch": ".pth", "keras": ".h5"}[framework]
                continue
            with pytest.raises(DigestError, match="has sha256" if framework == "torch" else "has md5"):
                fetch_weights(request, tmp_path, None, lambda *_: None)
    finally:
        server.shutdown()
        server.server_close()


def test_keras_tells_where_its_weights_are_and_their_hash() -> None:
    from tvmflow.sources.networks.keras_zoo import zoo_file

    url, digest = zoo_file("keras/vgg16")
    assert url.startswith("https://") and url.endswith("vgg16_weights_tf_dim_ordering_tf_kernels.h5")
    assert digest is not None and len(digest) == 32
    url, digest = zoo_file("keras/mobilenet_v2_050")
    assert "mobilenet_v2" in url and "0.5_224" in url and digest is None, "Keras has none for it: params.yaml must"


def test_unknown_networks_and_zoo_weights_list_the_legal_ones(tmp_path: Path) -> None:
    request = WeightsRequest(
        "torch",
        "torchvision/resnet18",
        {"zoo": "BEST"},
        tmp_path,
        _request(tmp_path).limits,
        tmp_path,
        FRONTENDS["torch"].files,
    )
    with pytest.raises(UnknownNameError, match="no weights 'BEST'") as error:
        fetch_weights(request, tmp_path, None, lambda *_: None)
    assert "IMAGENET1K_V1" in str(error.value)
    unknown = WeightsRequest(
        "torch", "torchvision/resnet1", {"seeded": 1}, tmp_path, request.limits, tmp_path, FRONTENDS["torch"].files
    )
    with pytest.raises(UnknownNameError, match="resnet1"):
        fetch_weights(unknown, tmp_path, None, lambda *_: None)


def test_labels_file_with_numbers_as_keys_in_json(tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text(json.dumps({str(i): f"n{i}" for i in range(1000)}))
    assert read_labels(tmp_path / "l.json")[999] == "n999"


def test_a_model_of_two_files_comes_by_url(tmp_path: Path) -> None:
    site, out = tmp_path / "site", tmp_path / "out"
    site.mkdir(), out.mkdir()
    (site / "net-symbol.json").write_text('{"nodes": []}')
    (site / "net-0000.params").write_bytes(b"parameters")
    sha256 = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in site.iterdir()}
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"

        def request(name: str | None) -> WeightsRequest:
            part = {"url": f"{at}/net-0000.params", "sha256": sha256["net-0000.params"], "name": name}
            weights = {"url": f"{at}/net-symbol.json", "sha256": sha256["net-symbol.json"], "parts": [part]}
            return WeightsRequest(
                "mxnet",
                None,
                weights,
                tmp_path,
                DownloadLimits(10**6, 1, 5.0),
                tmp_path / "downloads",
                FRONTENDS["mxnet"].files,
            )

        file = fetch_weights(request(None), out, None, lambda *_: None)
        assert file.read_bytes() == (site / "net-symbol.json").read_bytes()
        assert (out / "model-0000.params").read_bytes() == b"parameters"
        with pytest.raises(SourceError, match="plain relative file name"):
            fetch_weights(request("../../stolen"), out, None, lambda *_: None)
        server.shutdown()


def test_a_tool_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMFLOW_CACHE", str(tmp_path))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    with pytest.raises(TvmflowError, match=r"(?s)could not be made.*package index"):
        python_of("mxnet")
    assert not [path for path in (tmp_path / "tools").iterdir() if path.suffix != ".lock"], "nothing half-made stays"


def test_a_worker_ends_when_its_model_is_no_longer_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys\nfor line in sys.stdin:\n    print('{}', flush=True)\n    print('said', file=sys.stderr)"
    )
    monkeypatch.setitem(TOOL_ENVIRONMENTS, "echo", ToolEnvironment((), str(worker)))
    monkeypatch.setattr("tvmflow.toolchain.environments.python_of", lambda _name: sys.executable)
    before = set(psutil.Process().children())
    process = ToolProcess("echo", [])
    with pytest.raises(TvmflowError, match="without a reply"):
        process.arrays("run")
    assert len(set(psutil.Process().children()) - before) == 1
    del process
    assert set(psutil.Process().children()) - before == set()


def test_an_exporter_does_not_see_the_backend_of_our_keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text("import os, sys\nsys.exit(os.environ.get('KERAS_BACKEND'))")
    monkeypatch.setitem(TOOL_ENVIRONMENTS, "backend", ToolEnvironment((), str(worker)))
    monkeypatch.setattr("tvmflow.toolchain.environments.python_of", lambda _name: sys.executable)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    run_tool("backend", [])
