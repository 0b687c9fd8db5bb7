"""List the readers of files that others write, each with valid files of which mutants are made."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.bundle_parts import CELL, small_part
from tests.conftest import REPOSITORY
from tests.fuzz.seeds import params_bytes, symbol_json
from tests.manifests import manifest_of
from tests.tuning.test_record_format import ONE
from tvmflow.backends.manifest import MANIFEST_NAME
from tvmflow.backends.manifest import read_manifest as read_library_manifest
from tvmflow.config.params import load_params
from tvmflow.frontends.mxnet.files import read_params, read_symbol
from tvmflow.pipeline.record import Record, read_record, record_text
from tvmflow.shipping.bundle.abis import abi_of
from tvmflow.shipping.bundle.elf import check_shared_object
from tvmflow.shipping.bundle.manifest import read_manifest
from tvmflow.shipping.bundle.signing import envelope, new_keys, open_envelope, public_key, signing_key
from tvmflow.shipping.bundle.verify import Trust, check_contents
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.shipping.release_trust import keys_path, read_keys, sign_keys
from tvmflow.sources.data.datasets import load_named
from tvmflow.sources.data.labels import read_labels
from tvmflow.support.digests import OutputFile
from tvmflow.support.files import check_arrays, digest_of, load_arrays, save_arrays
from tvmflow.support.json_values import write_json
from tvmflow.tracking.app_releases import releases_in
from tvmflow.tuning.records.record import append_record, read_records

Read = Callable[[Path], Any]


@dataclass(frozen=True)
class Reader:
    """name: of the file that it reads. files: valid ones."""

    name: str
    files: tuple[bytes, ...]
    read: Read


def our_readers(folder: Path) -> dict[str, Reader]:
    """Return readers that run in the user's process. folder: an empty one, for their files."""
    arrays = {"arg:w": np.ones((2, 3), np.float32), "aux:m": np.ones(2, np.float16)}
    symbol = symbol_json([("null", "data", {}, []), ("relu", "a", {}, [0])], 1).encode()
    save_arrays(folder / "a.npz", golden=(np.ones((2, 3), np.float32),), evaluation=(np.ones(4, np.int8),))
    np.savez_compressed(folder / "b.npz", x=np.ones((4, 3), np.float32), labels=np.arange(4))
    recipe = {"params": {"a": 1}}
    record = Record("build", str(CELL), digest_of(recipe), recipe, {"x": OutputFile("0" * 64, "0" * 32, 1)})
    append_record(folder / "log.jsonl", ONE)
    write_json(folder / MANIFEST_NAME, manifest_of())
    library = folder / MANIFEST_NAME
    readers = {
        "MXNet's parameters": Reader("p", tuple(params_bytes(arrays, version) for version in range(4)), read_params),
        "MXNet's symbol": Reader("s", (symbol,), read_symbol),
        "arrays": Reader("a.npz", ((folder / "a.npz").read_bytes(),), _read_arrays),
        "a data set": Reader("b.npz", ((folder / "b.npz").read_bytes(),), lambda path: load_named(path, ["x"])),
        "labels": Reader("l.txt", (b'["cat", "dog"]', b"{0: 'cat', 1: 'dog'}", b"cat\ndog\n"), read_labels),
        "record.json": Reader("record.json", (record_text(record).encode(),), read_record),
        "a tuning log": Reader("log.jsonl", ((folder / "log.jsonl").read_bytes(),), read_records),
        "a library's manifest": Reader(
            MANIFEST_NAME, (library.read_bytes(),), lambda path: read_library_manifest(path.parent)
        ),
        "params.yaml": Reader(
            "params.yaml",
            tuple(path.read_bytes() for path in sorted((REPOSITORY / "examples").glob("*/params.yaml"))),
            load_params,
        ),
    }
    return readers | _shipped(folder / "shipped")


def _read_arrays(path: Path) -> None:
    check_arrays(path)
    load_arrays(path, "golden")


def _shipped(folder: Path) -> dict[str, Reader]:
    """Return the readers of what users of an app get."""
    part = small_part(folder / "cell")
    keys = new_keys(folder / "key")
    private, public = signing_key(keys.private), public_key(keys.public)
    write_bundle(folder / "b.zip", [part], BundleRequest("small", version=3), private)
    with zipfile.ZipFile(folder / "b.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = next(data for name, data in members.items() if name.endswith("manifest.json"))
    library = (folder / "cell" / "build" / "network.so").read_bytes()
    allowed = sign_keys(folder, "demo", private, [public], 90)
    library_of = {"cell": str(CELL), "abi": "linux-x86_64", "version": "1"}
    library_of |= {"library_sha256": "0" * 64, "network_sha256": "1" * 64}
    shipped = {"sha256": "0" * 64, "md5": "0" * 32, "size": 3, "signer": None}
    version = {"version": 1, "bundle": shipped, "evidence_sha256": "0" * 64, "cells": [library_of]}
    change = {"what": "release", "channel": "beta", "version": 1, "replaces": None, "when": "2026-01-01"}
    releases = {"app": "demo", "serial": 1, "versions": [version], "changes": [change]}
    network = part.manifest.network
    assert network is not None
    abi = abi_of("x86_64-linux-gnu")
    (own := folder / "keys").mkdir()

    def keys_of(path: Path) -> None:
        shutil.copy(path, keys_path(own, "demo"))
        read_keys(own, "demo", public, None)

    return {
        "a bundle": Reader(
            "b.zip", ((folder / "b.zip").read_bytes(),), lambda path: check_contents(path, Trust(public))
        ),
        "an unsigned bundle": Reader(
            "b.zip", ((folder / "b.zip").read_bytes(),), lambda path: check_contents(path, Trust(None))
        ),
        "a bundle's manifest": Reader("m.json", (manifest,), lambda path: read_manifest(path.read_bytes())),
        "an envelope": Reader(
            "e.json", (envelope(manifest, private),), lambda path: open_envelope(path.read_bytes(), None)
        ),
        "a library": Reader(
            "n.so", (library,), lambda path: check_shared_object(path, abi, network.soname, network.symbol)
        ),
        "the keys of an app": Reader("k.json", (allowed,), keys_of),
        "the releases of an app": Reader(
            "demo.yaml", (yaml.safe_dump(releases).encode(),), lambda path: releases_in(path, "demo")
        ),
    }


def model_files(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Return framework -> file name and a small valid file, for readers that run in a sandbox."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    x = torch.zeros(1, 1, 8, 8)
    torch.export.save(torch.export.export(network, (x,)), folder / "m.pt2")
    torch.jit.save(torch.jit.trace(network, x), folder / "m.pt")  # type: ignore[no-untyped-call]
    from onnx import helper, numpy_helper

    weights = [numpy_helper.from_array(np.ones((4, 1, 3, 3), np.float32), "w")]
    made = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", 1, (1, 1, 8, 8))],
        [helper.make_tensor_value_info("y", 1, (1, 4, 6, 6))],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    from bench.conformance.tflite_models import FileWriter

    writer = FileWriter()
    given = writer.tensor("x", (1, 8, 8, 1), "FLOAT32")
    out = writer.tensor("y", (1, 8, 8, 1), "FLOAT32")
    writer.operator("RELU", [given], [out])
    return {
        "torch": ("m.pt2", (folder / "m.pt2").read_bytes()),
        "torchscript": ("m.pt", (folder / "m.pt").read_bytes()),
        "onnx": ("m.onnx", model.SerializeToString()),
        "tensorflow": ("m.tflite", writer.content([given], [out])),
    }


def json_of(data: bytes) -> Any:
    """Return what JSON or YAML text means, None for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
