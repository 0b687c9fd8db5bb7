"""Test bundles with GPU libraries: their system requirements have an allowlist of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_codegen.test_networks import gpu_backend
from tests.manifests import manifest_of
from tests.runtime.test_network import Branches
from tvmflow.backends.manifest import MANIFEST_NAME, LibraryFile
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.config.params import Cell
from tvmflow.evaluation.loaded_library import LoadedLibrary
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.shipping.bundle.abis import ABIS
from tvmflow.shipping.bundle.elf import check_shared_object
from tvmflow.support.errors import BundleError, UsageError
from tvmflow.support.files import sha256_of
from tvmflow.support.json_values import write_json
from tvmflow.toolchain.compilers import Command, compiler_for, compiler_named


@pytest.mark.few(2)
@pytest.mark.parametrize("api", ["opencl", "vulkan"])
@pytest.mark.parametrize(
    ("abi", "triple"), [("arm64-v8a", "aarch64-linux-android"), ("x86_64-linux-gnu", "x86_64-linux-gnu")]
)
def test_a_network_of_a_gpu_asks_for_no_more_than_its_list(api: str, abi: str, triple: str, tmp_path: Path) -> None:
    inputs = (TensorSpec("x", (1, 3, 16, 16)),)
    module = canonicalize(ExportedModel(Branches(0).eval(), inputs).to_relax())
    backend = gpu_backend(api)
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    network = Network(f"any@{api}:any", inputs, ("scores", "features"), 1)
    path = tmp_path / network.soname
    compiler = compiler_named(compiler_for(triple)).command(triple) if "android" in triple else Command(("g++",))
    made = write_network(path, scheduled, network, compiler)
    assert made.gpu == api
    found = ABIS[abi]
    facts = check_shared_object(path, found.with_gpu, network.soname, network.symbol)
    assert "dlopen" in facts["undefined"]
    with pytest.raises(BundleError, match="dlopen"):
        check_shared_object(path, found, network.soname, network.symbol)


def test_a_network_of_a_gpu_is_not_loaded_as_one_of_the_cpu(tmp_path: Path) -> None:
    """No GPU is looked for: the library's form says it."""
    library = tmp_path / "library.so"
    library.write_bytes(b"any")
    manifest = manifest_of(
        Cell(model="any", target="local-vulkan", precision="float32"),
        library=LibraryFile("library.so", sha256_of(library), 3, "main"),
        target=gpu_backend("vulkan").target,
    )
    write_json(tmp_path / MANIFEST_NAME, manifest)
    with pytest.raises(UsageError, match=r"any@local-vulkan:float32 runs on a GPU"):
        LoadedLibrary(tmp_path)
