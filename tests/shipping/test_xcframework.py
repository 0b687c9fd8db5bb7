"""Test archives for Apple's systems and Swift packages: what LIEF and zig's linker say of them. Nothing runs them."""

from __future__ import annotations

import plistlib
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import lief
import pytest
import tree_sitter
import tree_sitter_swift

from tests.bundle_parts import apple_part
from tests.conftest import REPOSITORY
from tvmflow.backends.apple import AppleBackend
from tvmflow.codegen.network.macho_objects import archive_of, members_of
from tvmflow.setup.target_presets import presets
from tvmflow.shipping.bundle.abis import ABIS
from tvmflow.shipping.bundle.archive import write_archive
from tvmflow.shipping.bundle.elf import check_shared_object
from tvmflow.shipping.bundle.manifest import Manifest
from tvmflow.shipping.bundle.repackage import packages_of
from tvmflow.shipping.bundle.signing import new_keys, public_key, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.shipping.bundle.xcframework import write_xcframework
from tvmflow.support.errors import BundleError, SignatureError, StageError, UsageError
from tvmflow.toolchain.compilers import Command

TARGETS = {"ios-arm64": "IOS", "ios-arm64-simulator": "IOS_SIMULATOR", "macos-arm64": "MACOS"}
APP = """
#include "CCamera.h"
#include <stdio.h>
int main(void) { printf("%s %s\\n", cCamera_one()->network, cCamera_two()->network); return 0; }
"""


def _backend(target: str) -> AppleBackend:
    return AppleBackend(AppleBackend.resolve(presets()[target].target))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("apple")
    return [apple_part(folder / f"{model}.{target}", target, model) for target in TARGETS for model in ("one", "two")]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return new_keys(tmp_path_factory.mktemp("keys") / "key")


@pytest.fixture(scope="module")
def package(parts: list[Any], keys: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("package")
    return write_xcframework(folder, parts, BundleRequest("camera"), signing_key(keys.private))


def _objects(path: Path, folder: Path) -> list[Any]:
    """Return the objects of an archive, read by LIEF."""
    found = []
    for name, data in members_of(path.read_bytes()).items():
        (folder / name).write_bytes(data)
        found.append(lief.MachO.parse(str(folder / name)).at(0))
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_archives_are_objects_of_their_system(parts: list[Any], target: str, tmp_path: Path) -> None:
    part = next(one for one in parts if one.cell == f"one@{target}:float32")
    network, defined, undefined = part.manifest.network, set(), set()
    objects = _objects(part.path("build", "network.so"), tmp_path)
    for one in objects:
        assert one.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
        assert one.header.file_type == lief.MachO.Header.FILE_TYPE.OBJECT
        assert one.build_version.platform.name == TARGETS[target]
        external = [symbol for symbol in one.symbols if symbol.raw_type & 1]
        defined |= {symbol.name for symbol in external if symbol.raw_type & 0xE}
        undefined |= {symbol.name for symbol in external if not symbol.raw_type & 0xE}
    assert f"_{network.symbol}" in defined and "_tvmflow_network" not in defined
    suffix = network.symbol.removeprefix("tvmflow_network")
    assert [name for name in defined if not name.endswith(suffix)] == []
    assert _in_system(undefined - defined) == undefined - defined and "_pthread_create" in undefined
    sections = {(section.segment_name, section.name) for one in objects for section in one.sections}
    assert ("__TEXT", "__const") in sections and not any("init" in name for _, name in sections)


def _in_system(names: set[str]) -> set[str]:
    """Return those that libSystem has, by zig's list of it."""
    import ziglang

    folder = Path(next(iter(ziglang.__path__))) / "lib" / "libc" / "darwin"
    known = (folder / "libSystem.tbd").read_text()
    words = set(known.replace(",", " ").replace("'", " ").split())
    return {name for name in names if name in words}


def test_two_networks_are_linked_into_one_program(package: tuple[Path, Manifest], tmp_path: Path) -> None:
    with zipfile.ZipFile(package[0]) as archive:
        archive.extractall(tmp_path)
    place = tmp_path / "CCamera.xcframework" / "macos-arm64"
    (tmp_path / "app.c").write_text(APP)
    compiler = _backend("macos-arm64").target.compiler
    include = f"-I{place / 'Headers' / 'CCamera'}"
    source, compiled = str(tmp_path / "app.c"), str(tmp_path / "app.o")
    subprocess.run(
        compiler.line("-O2", "-Wall", "-Werror", include, "-c", source, "-o", compiled), check=True, cwd=tmp_path
    )
    _link(compiler, tmp_path / "app", compiled, str(place / "libCCamera.a"))
    program = lief.MachO.parse(str(tmp_path / "app")).at(0)
    assert [one.name for one in program.libraries] == ["/usr/lib/libSystem.B.dylib"]
    assert {"_tvmflow_network_one_macos_arm64_float32", "_tvmflow_network_two_macos_arm64_float32"} <= {
        symbol.name for symbol in program.exported_symbols
    }
    objects = members_of((place / "libCCamera.a").read_bytes())
    (tmp_path / "again.o").write_bytes(objects["0-plan.o"])
    with pytest.raises(AssertionError, match="duplicate symbol"):
        _link(compiler, tmp_path / "no", compiled, str(tmp_path / "again.o"), str(tmp_path / "again.o"))


def _link(compiler: Command, path: Path, *files: str) -> None:
    """Link a program for macOS by zig's linker, without the functions that zig compiles for each program."""
    words = [*compiler.words[: compiler.words.index("cc")], "build-exe", *files, "-target", "aarch64-macos.12.0", "-lc"]
    options = ["-fno-compiler-rt", "-fno-ubsan-rt", f"-femit-bin={path}"]
    done = subprocess.run([*words, *options], cwd=path.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_package_has_a_slice_for_each_system(package: tuple[Path, Manifest], tmp_path: Path) -> None:
    with zipfile.ZipFile(package[0]) as archive:
        archive.extractall(tmp_path)
    root = tmp_path / "CCamera.xcframework"
    info = plistlib.loads((root / "Info.plist").read_bytes())
    assert info["CFBundlePackageType"] == "XFWK" and info["XCFrameworkFormatVersion"] == "1.0"
    slices = {one["LibraryIdentifier"]: one for one in info["AvailableLibraries"]}
    assert slices.keys() == TARGETS.keys()
    assert slices["ios-arm64-simulator"]["SupportedPlatformVariant"] == "simulator"
    assert [one["SupportedPlatform"] for one in slices.values()] == ["ios", "ios", "macos"]
    for name, one in slices.items():
        headers = root / name / one["HeadersPath"] / "CCamera"
        assert (root / name / one["LibraryPath"]).is_file() and one["SupportedArchitectures"] == ["arm64"]
        module = (headers / "module.modulemap").read_text()
        assert all((headers / line.split('"')[1]).is_file() for line in module.splitlines() if "header" in line)
        assert f"tvmflow_network_one_{name.replace('-', '_')}_float32" in (headers / "CCamera.h").read_text()
    text = (tmp_path / "Package.swift").read_text()
    assert '.iOS("15.0"), .macOS("12.0")' in text and 'path: "CCamera.xcframework"' in text
    for path in tmp_path.rglob("*.swift"):
        _check_swift(path)


def _check_swift(path: Path) -> None:
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language()))
    tree = parser.parse(path.read_bytes())
    assert not tree.root_node.has_error, f"{path}: {tree.root_node}"


def test_the_swift_of_the_repository_is_swift(tmp_path: Path) -> None:
    for path in (*REPOSITORY.glob("runtime/swift/*.swift"), *REPOSITORY.glob("examples/apps/swift/**/*.swift")):
        _check_swift(path)
    (tmp_path / "broken.swift").write_text("func f( { }")
    with pytest.raises(AssertionError):
        _check_swift(tmp_path / "broken.swift")


def test_verify_checks_package_bundle_and_signature(package: tuple[Path, Manifest], keys: Any, tmp_path: Path) -> None:
    trust = Trust(public_key(keys.public))
    checked = verify(package[0], trust)
    assert {one.abi for one in checked.libraries} == TARGETS.keys() and checked.signer
    assert {one.ran for one in checked.libraries} == {f"not run here: it is for {abi}" for abi in TARGETS}
    with zipfile.ZipFile(package[0]) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    bundle = package[0].with_name("camera-0-bundle.zip")
    (tmp_path / bundle.name).write_bytes(bundle.read_bytes())
    path = tmp_path / package[0].name
    write_archive(path, files)
    with pytest.raises(SignatureError, match=r"no camera-0-swift\.zip\.dsse\.json"):
        verify(path, trust)
    library = "CCamera.xcframework/ios-arm64/libCCamera.a"
    changes = {
        "Sources/Camera/Run.swift": b"import Darwin",
        library: files[library][:-1] + b"x",
        "Package.swift": files["Package.swift"] + b"// more",
    }
    for name, data in changes.items():
        write_archive(path, {**files, name: data})
        with pytest.raises(BundleError, match=name.replace(".", r"\.")):
            verify(path, Trust(None, unsigned=True))
    write_archive(path, {name: data for name, data in files.items() if name != library})
    with pytest.raises(BundleError, match="is not in the Swift package"):
        verify(path, Trust(None, unsigned=True))


def test_a_release_makes_the_same_package_of_its_bundle(
    parts: list[Any], package: tuple[Path, Manifest], keys: Any, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "camera.zip", parts, BundleRequest("camera"), signing_key(keys.private))
    [path] = packages_of(tmp_path / "camera.zip", ["xcframework"], tmp_path / "out", signing_key(keys.private), "com.a")
    assert path.read_bytes() == package[0].read_bytes()
    assert path.with_name(f"{path.name}.dsse.json").is_file()


def test_networks_have_to_be_on_every_system(parts: list[Any], tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"one, two on ios-arm64 and one on macos-arm64"):
        write_xcframework(tmp_path, [*parts[:2], parts[4]], BundleRequest("camera"), None)


def test_the_check_refuses_what_tvmflow_does_not_compile(parts: list[Any], tmp_path: Path) -> None:
    part = parts[0]
    network, abi = part.manifest.network, ABIS["ios-arm64"]
    content = part.path("build", "network.so").read_bytes()
    objects = members_of(content)
    path = tmp_path / network.soname

    def refused(data: bytes, text: str, kind: str = "ios-arm64", symbol: str = network.symbol) -> None:
        path.write_bytes(data)
        with pytest.raises(BundleError, match=text):
            check_shared_object(path, ABIS[kind], network.soname, symbol)

    path.write_bytes(content)
    assert check_shared_object(path, abi, network.soname, network.symbol)["needed"] == ["libSystem"]
    refused(content, r"for the platforms \[2\]", "macos-arm64")
    refused(content, "does not define its function", symbol="tvmflow_network_other")
    refused(content[:-8], "not an archive of whole objects")
    plan = objects["plan.o"]
    assert plan.count(b"__const\0") and plan.count(b"_pthread") == 0
    started = plan.replace(b"__const\0", b"__objc_\0", 1)
    refused(archive_of({**objects, "plan.o": started}), "'__objc_'")
    at = plan.index(b"__const\0") + 64
    initializers = plan[:at] + struct.pack("<I", 9) + plan[at + 4 :]
    refused(archive_of({**objects, "plan.o": initializers}), "of type 0x9")
    linker = plan[:32] + struct.pack("<I", 0x2D) + plan[36:]
    refused(archive_of({**objects, "plan.o": linker}), "the load command 0x2d")
    network_object = objects["network.o"]
    refused(
        archive_of({**objects, "network.o": network_object.replace(b"\0_snprintf\0", b"\0_xysystem\0")}), "_xysystem"
    )
    foreign = plan.replace(b"_plan_api_one_ios_arm64_float32\0", b"_plan_api_one_ios_arm64_float33\0")
    refused(archive_of({**objects, "plan.o": foreign}), "names that end in _one_ios_arm64_float32")


def test_damaged_archives_are_one_error(parts: list[Any], tmp_path: Path) -> None:
    import numpy as np

    part, abi = parts[0], ABIS["ios-arm64"]
    network = part.manifest.network
    objects = members_of(part.path("build", "network.so").read_bytes())
    path, draw, refused = tmp_path / network.soname, np.random.default_rng(0), 0
    for _ in range(150):
        changed = bytearray(objects["plan.o"])
        for at in draw.integers(0, 1500, 3):
            changed[at] = draw.integers(256)
        try:
            path.write_bytes(archive_of({**objects, "plan.o": bytes(changed)}))
            check_shared_object(path, abi, network.soname, network.symbol)
        except BundleError as error:
            refused += 1
            assert error.found.startswith(network.soname)
        except (StageError, struct.error, ValueError, IndexError):
            continue  # `archive_of` itself reads the names
    assert refused > 20


def test_targets_that_cannot_be() -> None:
    target = presets()["ios-arm64"].target
    for changed, text in (
        ({"mtriple": "aarch64-linux-gnu"}, "of a target of kind apple"),
        ({"mtriple": None}, "mtriple: none"),
        ({"mtriple": "x86_64-apple-ios15.0"}, "no system 'apple-ios15.0'"),
        ({"mtriple": "aarch64-apple-macos12.0-simulator"}, "no system"),
        ({"mcpu": "host"}, "mcpu: host"),
    ):
        with pytest.raises(UsageError, match=text):
            AppleBackend.resolve(target.model_copy(update=changed))
