"""Test the registries: a backend, a transport, a frontend and a tuner need one file and one entry each; unknown names
get a suggestion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.quantize import STAGE as QUANTIZE
from tasks.quantize import options_of
from tests.config.test_params import _set
from tests.conftest import small_params
from tvmflow.backends.registry import backend_for
from tvmflow.config.params import Cell, Params, TargetEntry
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.check_params import check_rows
from tvmflow.support.errors import ParamsError, UsageError
from tvmflow.targets.cpu_features import cpu_features_of
from tvmflow.targets.processors import architecture_of
from tvmflow.toolchain.triples import WASM, Triple
from tvmflow.toolchain.versions import ARCHITECTURES, known_processors

LOCAL = {"transport": "local", "key": "local-cpu"}


def _entry(**fields: Any) -> TargetEntry:
    return TargetEntry.model_validate({"kind": "llvm", "mcpu": "host", "threads": 2, "device": LOCAL, **fields})


def _refused(change: Callable[[dict[str, Any]], None]) -> str:
    params = small_params()
    change(params)
    with pytest.raises(ParamsError) as error:
        check_rows(Params.model_validate(params))
    return str(error.value)


def test_what_is_shipped_is_in_the_tables() -> None:
    check_rows(Params.model_validate(small_params()))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("targets/local-cpu/kind", "metal", "targets.local-cpu.kind: no 'metal'; legal: apple, llvm, opencl, vta"),
        (
            "targets/local-cpu/device/transport",
            "bluetooth",
            "device.transport: no 'bluetooth'; legal: adb, agent, direct, emulated, local, local-agent, no-device",
        ),
        ("models/digits_torch/framework", "caffe", "framework: no 'caffe'; legal: keras, mxnet"),
        ("models/digits_torch/framework", "onnx", "weights: a model of onnx comes from {file: ...}"),
        ("tune/tuner", "annealing", "tune.tuner: no 'annealing'; legal: ga, grid, random, static, xgb"),
        (
            "targets/rk3399/device/prt",
            1,
            "targets.rk3399.device.prt: unknown key (did you mean 'port'?); legal here: cpu_mask, host, "
            "key, max_celsius, port, priority, secret_file, session_timeout_s, transport",
        ),
        ("targets/rk3399/device/host", "a b", "address of a host"),
        ("targets/rk3399/device/port", 70000, "targets.rk3399.device.port"),
        ("targets/local-cpu/device/host", "h", "device.host: unknown key; legal here: key, transport"),
        ("targets/vta-sim/vta/config", {"log_block": 12}, "log_block 12"),
        (
            "targets/vta-sim/vta/mod",
            "x",
            "targets.vta-sim.vta.mod: unknown key (did you mean 'mode'?); "
            "legal here: bitstream, config, mode, start, stop",
        ),
        ("targets/local-cpu/mcpu", "znver9", "targets.local-cpu: mcpu 'znver9'"),
        ("targets/rk3399/mtriple", "nonsense", "targets.rk3399: mtriple 'nonsense'"),
    ],
)
def test_a_name_that_is_in_no_table_is_told_with_its_place(path: str, value: Any, says: str) -> None:
    assert says in _refused(_set(path, value))


def test_a_block_of_another_backend_is_refused() -> None:
    for fields in ({"vta": {}}, {"kind": "vta", "vta": 3}, {"kind": "mcpu"}, {"kind": ["vta"]}):
        with pytest.raises((ValueError, UsageError), match=r"vta|kind|options|mcpu"):
            backend_for(_entry(**fields))


# -- names of processors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mcpu": "znver9"}, "did you mean znver"),
        ({"mcpu": "cortex-a72", "mtriple": "x86_64-linux-gnu"}, "it is one of aarch64"),
        ({"mcpu": "host", "mtriple": "aarch64-linux-gnu"}, "it is one of x86_64"),
        ({"mcpu": "native"}, "no such x86_64 processor"),
        ({"mcpu": "pentium3", "mtriple": "x86_64-linux-gnu"}, "no such x86_64 processor"),
        ({"mattr": ["+avx512vni"]}, "did you mean avx512vnni"),
        ({"mattr": ["avx2"]}, "as +avx2"),
        ({"mattr": ["+neon"], "mcpu": "x86-64-v3"}, "no such feature of x86_64"),
        ({"mattr": ["-neon"], "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}, "without vectors"),
        ({"mtriple": "riscv64-linux-gnu", "mcpu": "generic"}, "no schedules for the architecture 'riscv64'"),
        ({"mtriple": "x86_64"}, "no system"),
        ({"mtriple": "x86_64-linux-gnu-gnu"}, "no system"),
        ({"mtriple": "aarch64-linux-android20", "mcpu": "cortex-a72"}, "API level from 21 on"),
        ({"mtriple": "armv7a-linux-gnu", "mcpu": "cortex-a7"}, "armv7a-linux-gnueabihf"),
        ({"mtriple": "armv7a-linux-android", "mcpu": "cortex-a7"}, "armv7a-linux-androideabi"),
        ({"mtriple": "armv7a-linux-gnueabihf", "mcpu": "cortex-m4"}, "no such armv7a processor"),
        ({"mtriple": "armv7a-linux-gnueabihf", "mcpu": "cortex-a7", "mattr": ["-neon"]}, "without vectors"),
    ],
)
def test_a_processor_that_llvm_does_not_know_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        backend_for(_entry(**fields))
    assert says in str(error.value)


@pytest.mark.parametrize(
    "mtriple",
    [
        "x86_64-linux-gnu",
        "x86_64-pc-linux-gnu",
        "aarch64-unknown-linux-musl",
        "aarch64-linux-android29",
        "armv7a-linux-gnueabihf",
        "armv7a-unknown-linux-musleabihf",
        "armv7a-linux-androideabi24",
    ],
)
def test_triples_that_are_compiled_for(mtriple: str) -> None:
    assert architecture_of(mtriple) == mtriple.split("-")[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_processor_that_llvm_knows_has_vectors(architecture: str) -> None:
    """Nothing unknown gets four lanes: each name either says what its registers hold, or is refused."""
    lanes = {}
    cpus, features = known_processors(architecture)
    if architecture == WASM:  # vectors are an option there
        assert set(cpus) >= {"generic", "mvp"} and {"simd128", "relaxed-simd"} <= features
        kinds = {mcpu: {"kind": "wasm", "mcpu": mcpu, "threads": 1} for mcpu in cpus}
    else:
        assert len(cpus) > 30 and len(features) > 100
        ending = Triple(architecture, "gnu").ending
        kinds = {mcpu: {"mcpu": mcpu, "mtriple": f"{architecture}-linux-{ending}"} for mcpu in cpus}
    for mcpu, changed in kinds.items():
        lanes[mcpu] = cpu_features_of(backend_for(_entry(**changed)).target).lanes
    expected = {
        "x86_64": {"x86-64": 4, "haswell": 8, "znver5": 16, "x86-64-v3": 8},
        "aarch64": {"cortex-a53": 4, "neoverse-v2": 4},
        "armv7a": {"cortex-a8": 4, "cortex-a76": 4},
        WASM: {"generic": 4, "mvp": 4},
    }
    assert {name: lanes[name] for name in expected[architecture]} == expected[architecture]


@pytest.mark.parametrize(
    ("mcpu", "architecture", "activations"),
    [
        ("cortex-a53", "aarch64", "int8"),
        ("cortex-a76", "aarch64", "int8"),
        ("neoverse-v1", "aarch64", "uint8"),
        ("cortex-a76", "armv7a", "int8"),
        ("znver4", "x86_64", "uint8"),
    ],
)
def test_8_bit_values_get_the_dtype_that_the_processor_multiplies(
    mcpu: str, architecture: str, activations: str, tmp_path: Path
) -> None:
    params = small_params()
    entry = {
        "kind": "llvm",
        "mcpu": mcpu,
        "mtriple": f"{architecture}-linux-{Triple(architecture, 'gnu').ending}",
        "threads": 1,
        "device": LOCAL,
    }
    params["targets"] = {"any": entry}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for wanted, found in (("auto", activations), ("uint8", "uint8"), ("int8", "int8")):
        cell = Cell(model=next(iter(params["models"])), target="any", precision="int8")
        settings = QUANTIZE.settings(Workspace(tmp_path), cell)
        assert settings.options.activations == "auto"
        options = settings.options.model_copy(update={"activations": wanted})
        processor = settings.processor if wanted == "auto" else None
        assert options_of(replace(settings, options=options, processor=processor)).activations == found
