"""Generate the signed statement of a bundle: in-toto with SLSA provenance as predicate.

Its subjects are the digests of all files of the bundle. It contains no time and no host, so equal records give equal
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tvmflow.shipping.bundle.manifest import File, Manifest
from tvmflow.shipping.bundle.part import Part
from tvmflow.support.errors import BundleError
from tvmflow.support.version import __version__

_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"
_BUILD_TYPE = "urn:tvmflow:bundle:1"
# Source files of a cell in DVC: stage -> files.
_SOURCES = {
    "fetch": ("golden.npz", "labels.json"),
    "import_model": ("model.json", "weights.safetensors"),
    "quantize": ("reference.npz",),
    "graph_pack": ("model.json", "weights.safetensors"),
    "tune": ("best.json",),
    "build": ("library.so", "network.so", "manifest.json"),
    "evaluate": ("scorecard.json",),
}


def statement(manifest: Manifest, files: Mapping[str, File], parts: Sequence[Part]) -> bytes:
    """Return the statement about these files: all of the bundle except the envelope."""
    value = {
        "_type": _TYPE,
        "subject": [{"name": name, "digest": {"sha256": files[name].sha256}} for name in sorted(files)],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {
                    "name": manifest.name,
                    "version": manifest.version,
                    "cells": [part.cell for part in parts],
                    "abis": list(manifest.abis),
                },
                "internalParameters": {
                    part.cell: {
                        stage: {"recipe": record.key, "toolchain": record.recipe["toolchain"], "made": record.created}
                        for stage, record in part.records.items()
                    }
                    for part in parts
                },
                "resolvedDependencies": [one for part in parts for one in _dependencies(part)],
            },
            "runDetails": {"builder": {"id": "urn:tvmflow:builder", "version": {"tvmflow": manifest.tvmflow}}},
        },
    }
    return json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"


def plain_statement(digests: Mapping[str, str]) -> bytes:
    """Return the statement about files that are of no cell: the runtime. digests: sha256."""
    value = {
        "_type": _TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {"buildType": _BUILD_TYPE, "externalParameters": {}, "internalParameters": {}},
            "runDetails": {"builder": {"id": "urn:tvmflow:builder", "version": {"tvmflow": __version__}}},
        },
    }
    return json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"


def _dependencies(part: Part) -> list[dict[str, Any]]:
    sources = {**_SOURCES, "fetch": (*_SOURCES["fetch"], part.source.weights_file)}
    return [
        {
            "name": f"{part.cell} {stage}/{name}",
            "uri": f"urn:dvc:md5:{file.md5}",
            "digest": {"sha256": file.sha256, "md5": file.md5},
        }
        for stage, names in sources.items()
        if stage in part.records
        for name in names
        if (file := part.records[stage].outputs.get(name)) is not None
    ]


def subjects(data: bytes) -> dict[str, str]:
    """Return name -> sha256 of a statement's files. Raises BundleError."""
    try:
        value = json.loads(data)
        if (value["_type"], value["predicateType"]) != (_TYPE, _PREDICATE):
            raise ValueError("another type")
        digests = {str(one["name"]): str(one["digest"]["sha256"]) for one in value["subject"]}
        if len(digests) != len(value["subject"]):
            raise ValueError("a name twice")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BundleError("the bundle's statement is damaged", "an in-toto statement as tvmflow writes it") from None
    return digests
