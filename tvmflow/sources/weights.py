"""Fetch a model's weights into a folder from any source. Model files are untrusted: no code is unpickled."""

from __future__ import annotations

import errno
import glob
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.download import DownloadLimits, download
from tvmflow.support.errors import DigestError, ModelFileError, SourceError, UnknownNameError
from tvmflow.support.files import sha256_of
from tvmflow.support.plain_files import copy_plain, is_plain
from tvmflow.support.progress import Progress

MAX_MODEL_BYTES = 8 << 30
_SAVED_MODEL = "saved_model.pb"


def _alone(_path: Path) -> dict[str, Path]:
    return {}


@dataclass(frozen=True)
class WeightFiles:
    """The files of a model: suffixes of the first, and companion files.

    companions: path of a local model -> name in the stage's folder -> further file; raises ModelFileError. part_name:
    the name of a further file from a url, by default that at its source.
    """

    suffixes: tuple[str, ...]
    companions: Callable[[Path], dict[str, Path]] = _alone
    part_name: str | None = None


@dataclass(frozen=True)
class WeightsRequest:
    """A model's framework, network, and `weights:` entry. height: of its images, None for other inputs."""

    framework: str
    network: str | None
    weights: dict[str, Any]
    root: Path
    limits: DownloadLimits
    downloads: Path
    files: WeightFiles
    height: int | None = None


def fetch_weights(request: WeightsRequest, out: Path, train_on: Samples | None, progress: Progress) -> Path:
    """Fetch the weights file into `out` and return its path. Raises SourceError or ModelFileError."""
    source = next(kind for kind in ("url", "file", "zoo", "seeded", "train") if request.weights.get(kind) is not None)
    return _SOURCES[source](request, out, train_on, progress)


def local_file(request_file: str, root: Path) -> Path:
    """Return the path of a `file:` source (relative to the workspace); of a SavedModel folder its graph. Raises
    SourceError if it is no file.
    """
    path = root / request_file
    if (path / _SAVED_MODEL).is_file():
        path /= _SAVED_MODEL
    if not path.is_file():
        raise SourceError(f"no weights file {path}", "a file", "correct weights.file in params.yaml")
    if path.stat().st_size > MAX_MODEL_BYTES:
        raise ModelFileError(f"{path} holds {path.stat().st_size} bytes", f"at most {MAX_MODEL_BYTES}")
    return path


def _from_file(request: WeightsRequest, out: Path, _train_on: Samples | None, _progress: Progress) -> Path:
    path = local_file(request.weights["file"], request.root)
    pinned = request.weights.get("sha256")
    target = out / ("model" + _suffix(request, path.name))
    _copy(path, target, links=True)
    if pinned and (found := sha256_of(target)) != pinned:
        raise DigestError(
            f"{path} has sha256 {found}",
            f"sha256 {pinned}",
            "if the file was changed on purpose, write its new sha256 into params.yaml",
        )
    for name, part in request.files.companions(path).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(part, out / name, links=False)  # whoever made the folder chose it: a link may name any file
    return target


def _copy(path: Path, target: Path, links: bool) -> None:
    try:
        copy_plain(path, target, MAX_MODEL_BYTES, links)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        found = f"{path} cannot be copied: {error.strerror}"
        raise ModelFileError(found, f"a plain file of at most {MAX_MODEL_BYTES} bytes") from None


def factory_file(network: str | None) -> str | None:
    """Return the path in `path/to/file.py:function`, None for a built-in network."""
    match = re.fullmatch(r"([\w./-]+\.py):[A-Za-z_]\w*", network or "")
    return match[1] if match else None


def mxnet_parameters(path: Path) -> dict[str, Path]:
    """Return the parameters beside NAME-symbol.json: NAME-EPOCH.params of the last epoch."""
    stem = path.name.removesuffix("-symbol.json")
    parameters = sorted(path.parent.glob(f"{glob.escape(stem)}-[0-9][0-9][0-9][0-9].params"))
    if parameters and not is_plain(parameters[-1]):
        raise ModelFileError(
            f"{parameters[-1]} is no plain file", "the parameters themselves, no link", "copy the file there"
        )
    if not parameters:
        raise ModelFileError(
            f"no {stem}-0000.params next to {path}", "both files of an MXNet export", "copy the parameters there too"
        )
    return {"model-0000.params": parameters[-1]}


def _suffix(request: WeightsRequest, name: str) -> str:
    for suffix in request.files.suffixes:
        if name.lower().endswith(suffix):
            return suffix
    expected = f"a name that ends in {', '.join(request.files.suffixes)}"
    raise ModelFileError(f"{name!r} is not a {request.framework} file", expected)


def _from_url(request: WeightsRequest, out: Path, _train_on: Samples | None, progress: Progress) -> Path:
    url, sha256 = request.weights["url"], request.weights["sha256"]
    target = out / ("model" + _suffix(request, url.split("?")[0].split("#")[0]))
    _download(request, url, sha256, target, progress)
    for part in request.weights.get("parts") or ():
        name = part["name"] or request.files.part_name or Path(part["url"]).name
        place = (out / name).resolve()
        if not place.is_relative_to(out.resolve()) or place == target.resolve():
            raise SourceError(
                f"a part named {name!r}", "a plain relative file name", "correct weights.parts in params.yaml"
            )
        place.parent.mkdir(parents=True, exist_ok=True)
        _download(request, part["url"], part["sha256"], place, progress)
    return target


def _download(request: WeightsRequest, url: str, sha256: str, target: Path, progress: Progress) -> None:
    """Download outside the stage's folder, so that a partial download survives a failed stage and is resumed."""
    kept = request.downloads / sha256
    download(url, kept, request.limits, sha256, progress)
    shutil.move(kept, target)


def _from_zoo(request: WeightsRequest, out: Path, _train_on: Samples | None, progress: Progress) -> Path:
    network, name = request.network or "", request.weights["zoo"]
    if request.framework == "torch" and network.startswith("torchvision/"):
        return _torchvision_zoo(request, network.removeprefix("torchvision/"), name, out, progress)
    if request.framework == "keras" and network.startswith("keras/"):
        return _keras_zoo(request, network, name, out, progress)
    if request.framework == "mxnet":
        return _mxnet_export(request, "pretrained", out)
    raise SourceError(
        f"network {network!r} has no zoo",
        "a torchvision network, keras/NAME, or mxnet/NAME of Gluon's zoo",
    )


def _keras_zoo(request: WeightsRequest, network: str, name: str, out: Path, progress: Progress) -> Path:
    """Fetch a network's weights from Keras's URL, verified by Keras's hash or the sha256 in params.yaml."""
    from tvmflow.sources.networks.keras_zoo import zoo_file

    if name != "imagenet":
        raise UnknownNameError(f"no weights {name!r} for {network}", legal=["imagenet"])
    url, known = zoo_file(network)
    pinned = request.weights.get("sha256") or known
    if not pinned:
        raise SourceError(
            f"Keras has no hash for the weights of {network}",
            "sha256 next to zoo:",
            "download them once and add their sha256",
        )
    target = out / ("model" + _suffix(request, url))
    _download(request, url, pinned, target, progress)
    return target


def _mxnet_export(request: WeightsRequest, source: str, out: Path) -> Path:
    """Build a Gluon network in MXNet's tool environment and write its two files."""
    from tvmflow.toolchain.environments import run_tool

    network = request.network or ""
    if not re.fullmatch(r"mxnet/[a-z0-9_.]+", network):
        raise UnknownNameError(
            f"no mxnet network {network!r}", hint="name it mxnet/NAME, as Gluon's vision zoo does: mxnet/resnet18_v1"
        )
    sizes = dict.fromkeys((request.height, 299 if "inception" in network else 224))  # its own if it takes no other
    heights = [str(size) for size in sizes if size is not None]
    run_tool("mxnet", ["export", network.removeprefix("mxnet/"), source, str(out), *heights])
    return out / "model-symbol.json"


def _torchvision_zoo(request: WeightsRequest, model: str, name: str, out: Path, progress: Progress) -> Path:
    """Fetch a torchvision weight set; its file name contains the start of its sha256, which is verified."""
    from tvmflow.sources.networks.torch_zoo import torchvision_models

    legal = {entry.name: entry for entry in torchvision_models().get_model_weights(model)}
    if name not in legal:
        raise UnknownNameError(f"no weights {name!r} for torchvision/{model}", legal=legal)
    url = legal[name].url
    prefix = Path(url).stem.rsplit("-", 1)[-1]
    target = out / "model.pth"
    _download(request, url, request.weights.get("sha256") or prefix, target, progress)
    return target


def _from_seed(request: WeightsRequest, out: Path, _train_on: Samples | None, _progress: Progress) -> Path:
    if request.framework == "mxnet":
        return _mxnet_export(request, str(request.weights["seeded"]), out)
    seed = request.weights["seeded"]
    if request.framework == "keras":
        return save_weights("keras", _network(request, seed), out)
    from tvmflow.sources.networks.torch_zoo import build_seeded

    return save_weights("torch", build_seeded(request.network or "", seed, request.root), out)


def _from_training(request: WeightsRequest, out: Path, train_on: Samples | None, progress: Progress) -> Path:
    from tvmflow.sources.networks.training import train

    if train_on is None or train_on.y is None or train_on.y.ndim != 1:
        raise SourceError("no labelled training data", "a model with dataset: that has a class for each sample")
    training = request.weights["train"]
    network = _network(request, training["seed"])
    train(network, train_on, training, progress)
    return save_weights(request.framework, network, out)


def _network(request: WeightsRequest, seed: int) -> Any:
    if request.framework == "keras":
        from tvmflow.sources.networks.keras_zoo import build as build_keras

        return build_keras(request.network or "", seed)
    from tvmflow.sources.networks.torch_zoo import build as build_torch

    return build_torch(request.network or "", seed, request.root)


def save_weights(framework: str, network: Any, out: Path) -> Path:
    """Write the weights of a network without code: safetensors for torch, HDF5 for Keras."""
    if framework == "keras":
        path = out / "model.weights.h5"
        network.save_weights(path)
        return path
    from safetensors.torch import save_file

    path = out / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path)
    return path


_SOURCES = {"url": _from_url, "file": _from_file, "zoo": _from_zoo, "seeded": _from_seed, "train": _from_training}
