"""Generate the bill of materials of a bundle (CycloneDX 1.6): the parts of each library and the tools."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tvmflow.shipping.bundle.manifest import Library, Manifest
from tvmflow.shipping.bundle.part import Part

_SPACE = uuid.UUID("6f1d2c52-3f0e-5b0b-9f0a-6d3c7a1e2b40")  # of the serial numbers; any fixed one will do


def sbom(manifest: Manifest, parts: Sequence[Part]) -> bytes:
    """Return sbom.cdx.json. The serial number is derived from the files, so equal bundles have equal ones."""
    whole = {"type": "application", "name": manifest.name, "version": str(manifest.version or 0), "bom-ref": "bundle"}
    components, dependencies = [], [{"ref": "bundle", "dependsOn": [library.soname for library in manifest.libraries]}]
    for library, part in zip(manifest.libraries, parts, strict=True):
        own = _components(library, part, manifest)
        components += own
        dependencies += [{"ref": library.soname, "dependsOn": [one["bom-ref"] for one in own[1:]]}]
    digests = json.dumps({name: file.sha256 for name, file in manifest.files.items()}, sort_keys=True)
    value = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, digests)}",
        "version": 1,
        "metadata": {
            "component": whole,
            "tools": {
                "components": [
                    {"type": "application", "name": "tvmflow", "version": manifest.tvmflow},
                    *_tools(manifest.libraries),
                ]
            },
        },
        "components": components,
        "dependencies": dependencies,
    }
    return json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"


def _components(library: Library, part: Part, manifest: Manifest) -> list[dict[str, Any]]:
    """Return a library and its parts: kernels, weights, runtime."""
    name, made = library.soname, library.made
    weights = part.records["graph_pack"].outputs["weights.safetensors"].sha256
    source = part.records["fetch"].outputs.get(part.source.weights_file)
    return [
        {
            "type": "library",
            "bom-ref": name,
            "name": name,
            "version": made.version or "0",
            "description": f"the network {library.cell}",
            "hashes": _sha256(manifest.files[library.file].sha256),
            "properties": _properties({"abi": library.abi, "mcpu": made.mcpu, "recipe": made.recipe["build"]}),
        },
        {
            "type": "library",
            "bom-ref": f"{name}#kernels",
            "name": "kernels",
            "version": made.toolchain.get("tvm", "unknown"),
            "description": "machine code that Apache TVM generated; nothing of TVM itself",
            "properties": _properties(made.toolchain),
        },
        {
            "type": "machine-learning-model",
            "bom-ref": f"{name}#weights",
            "name": part.source.network or part.source.weights_file,
            "description": f"weights, {library.constant_bytes} bytes in the library",
            "hashes": _sha256(weights),
            "properties": _properties(
                {"framework": part.source.framework, "source.sha256": source.sha256 if source else "unknown"}
            ),
        },
        {
            "type": "library",
            "bom-ref": f"{name}#runtime",
            "name": "tvmflow-runtime",
            "version": str(library.abi_version),
            "description": "the runtime in C",
            "hashes": _sha256(made.runtime),
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        },
    ]


def _tools(libraries: Sequence[Library]) -> list[dict[str, str]]:
    tools = sorted({item for library in libraries for item in library.made.toolchain.items()})
    return [{"type": "application", "name": name, "version": version} for name, version in tools]


def _sha256(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def _properties(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": f"tvmflow:{name}", "value": value} for name, value in sorted(values.items())]
