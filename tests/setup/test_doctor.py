"""Test that the doctor knows the pairs of incompatible versions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tvmflow.config.params import TargetEntry
from tvmflow.setup.doctor import check_versions, examine, open_devices
from tvmflow.toolchain.versions import attributes_beside, installed_version
from tvmflow.toolchain.versions import version as toolchain_version

GOOD = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1", "fastapi": "0.150.0", "sqlalchemy": "2.0.58"}


def test_what_is_known_to_work_is_ok() -> None:
    assert {finding.level for finding in check_versions(GOOD)} == {"ok"}


@pytest.mark.parametrize(
    ("name", "version"),
    [("apache-tvm-ffi", "0.1.15"), ("fastapi", "0.151.0"), ("fastapi", "0.165.0"), ("sqlalchemy", "2.1.9")],
)
def test_what_is_known_to_break_is_broken_and_says_what_to_install(name: str, version: str) -> None:
    broken = [finding for finding in check_versions({**GOOD, name: version}) if finding.level == "broken"]
    assert [finding.what for finding in broken] == [name]
    assert "pip install" in broken[0].hint


def test_an_unknown_tvm_is_a_warning() -> None:
    assert "warning" in {finding.level for finding in check_versions({**GOOD, "apache-tvm": "0.28.0"})}


@pytest.mark.parametrize(
    ("features", "flags", "attributes"),
    [
        ({"avx2", "amx-tile", "amx-int8"}, "fpu avx2", "-amx-tile,-amx-int8"),  # a virtual machine that hides tiles
        ({"avx2"}, "avx2 avx512_vnni amx_tile", "+avx512vnni,+amx-tile"),  # a name that LLVM guessed
        ({"avx2", "sse2"}, "avx2", ""),
    ],
)
def test_a_processor_is_what_linux_says_of_it(features: set[str], flags: str, attributes: str) -> None:
    assert attributes_beside(features, ["processor : 0", f"flags\t\t: {flags}"]) == attributes
    assert attributes_beside(features, ["Features : asimd"]) == ""  # of arm64 LLVM's names say all


def test_a_package_counts_under_either_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str, version: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    install("xgboost", "3.2.0")
    assert installed_version("xgboost-cpu") == toolchain_version("xgboost") == "3.2.0"
    assert installed_version("torch") == "absent"
    install("xgboost-cpu", "3.3.0")
    assert toolchain_version("xgboost") == "3.3.0", "an installation is seen"


def test_outside_a_workspace_the_machine_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TVMFLOW_ROOT", raising=False)
    monkeypatch.setattr("tvmflow.setup.doctor._runtime", lambda: iter(()))  # seconds, and nothing of the workspace
    monkeypatch.setattr("tvmflow.setup.doctor._sandbox", lambda: iter(()))
    findings = {finding.what: finding for finding in examine()}
    assert findings["workspace"].level == "ok" and findings["workspace"].hint == "tvmflow new DIR"
    assert "free disk" in findings and "params.yaml" not in findings
    assert not any("this workspace" in finding.found for finding in findings.values())
    assert {f.what: f.level for f in examine(tmp_path)}["params.yaml"] == "broken"  # one that was named must be there
    monkeypatch.setenv("TVMFLOW_ROOT", str(tmp_path))
    assert {f.what: f.level for f in examine()}["params.yaml"] == "broken"
    monkeypatch.delenv("TVMFLOW_ROOT")
    (tmp_path / "params.yaml").write_text("models: 3")
    assert {f.what: f.level for f in examine()}["params.yaml"] == "broken"


def test_open_devices_are_named_where_there_are_other_users() -> None:
    host = {"kind": "cpu", "mcpu": "x86-64-v3", "threads": 1}
    targets = {
        name: TargetEntry.model_validate({**host, "device": {"key": "k", **device}})
        for name, device in {
            "board": {"transport": "tracker", "host": "127.0.0.1", "port": 9190},
            "phone": {"transport": "tracker", "host": "127.0.0.1", "port": 9190, "secret_file": "phones.secret"},
            "here": {"transport": "local"},
        }.items()
    }
    [finding] = open_devices(targets, ["eve"])
    assert finding.level == "warning" and finding.found.startswith("board: ") and "(eve)" in finding.found
    assert list(open_devices(targets, [])) == []
