"""Test that the code in the recipe key of each stage is the code that the stage may use."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tasks.table import STAGES
from tests.conftest import small_params
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.recipe_key import code_of

# What the code in the recipe key of each stage may be. What is not here would make the stage miss for nothing, and a
# file that is read through another door than an import would be missing: both are looked at here before they are
# believed.
CHECK = (
    "tasks/golden.py",
    "tvmflow/support/files.py",
    "tvmflow/support/json_values.py",
    "tvmflow/evaluation/agreement.py",
    "tvmflow/evaluation/buckets.py",
    "tvmflow/evaluation/conditioning.py",
    "tvmflow/evaluation/quality_warnings.py",
    "tvmflow/evaluation/source_layers.py",
    "tvmflow/frontends/source_model.py",
    "tvmflow/config/buckets.py",
)
IR = ("tvmflow/ir",)
SOFTWARE_GPUS = (
    "tvmflow/support/files.py",
    "tvmflow/toolchain/debian_packages.py",
    "tvmflow/toolchain/software_gpus.py",
    "tvmflow/toolchain/environments.py",
)
COMPILER = (  # the compiler of shaders lies with the drivers in software, where the system has none
    *IR,
    *SOFTWARE_GPUS,
    "tvmflow/backends",
    "tvmflow/codegen",
    "tvmflow/ir/tir",
    "tvmflow/passes",
    "tvmflow/targets",
    "tvmflow/gpu_codegen",
    "tvmflow/schedules",
    "tvmflow/tuning/records/traces.py",
    "tvmflow/vta/isa/config.py",
    "tvmflow/support/runtime_binding.py",
    "tvmflow/config/buckets.py",
)
DEVICE = (  # the agent and the emulated system lie in the cache folder
    "tasks/device.py",
    "tvmflow/backends",
    "tvmflow/devices",
    "tvmflow/support/runtime_binding.py",
    *SOFTWARE_GPUS,
    "tvmflow/targets",
    "tvmflow/vta/isa/config.py",
)
KERNELS = (  # beside the CPU's: what compiles them is left out, what reads them from their files is not
    "tasks/agreement.py",
    "tvmflow/ir/tir/kernel_schedules.py",
    "tvmflow/ir/relax/serialization.py",
    "tvmflow/ir/relax/allowed_ir.py",
    "tvmflow/ir/relax/derived_types.py",
    "tvmflow/ir/relax/index_bounds.py",
    "tvmflow/ir/relax/kernel_bounds.py",
    "tvmflow/ir/relax/recurrent.py",  # its operator is registered before a module is read
    "tvmflow/ir/relax/tensors.py",
    "tvmflow/ir/tvm_compat.py",
)
FRONTEND = (*IR, "tvmflow/frontends", "tvmflow/sources")
STREAMS = (  # the framework runs the samples of a model with states; no converter is needed for that
    "tvmflow/frontends/archives.py",
    "tvmflow/frontends/streams.py",
    "tvmflow/frontends/torch_arrays.py",
    *(
        f"tvmflow/frontends/pytorch/{name}.py"
        for name in "files fixed_inputs float_ends loading module_states running script_states scripts states".split()
    ),
    *(
        f"tvmflow/frontends/tensorflow/{name}.py"
        for name in "custom_operators custom_transforms litert tflite_files tflite_graph tflite_states variables "
        "written_operators".split()
    ),
)
CODE = {
    "fetch": (
        "tvmflow/support/files.py",
        "tvmflow/support/json_values.py",
        "tvmflow/frontends/source_model.py",
        "tvmflow/frontends/registry.py",
        "tvmflow/config/buckets.py",
        "tvmflow/sources",
        "tvmflow/toolchain/environments.py",
        *STREAMS,
    ),
    "import_model": (
        *CHECK,
        *COMPILER,
        *FRONTEND,
        "tvmflow/evaluation/first_difference.py",
        "tvmflow/evaluation/import_buckets.py",
        "tvmflow/evaluation/import_check.py",
        "tvmflow/evaluation/onnx_export.py",
        "tvmflow/evaluation/import_model.py",
        "tvmflow/evaluation/imported_files.py",
        "tvmflow/evaluation/source_noise.py",
        "tvmflow/evaluation/source_runs.py",
    ),
    "quantize": (
        *CHECK,
        *COMPILER,
        "tvmflow/evaluation/check_numpy_reference.py",
        "tvmflow/evaluation/source_noise.py",
        "tvmflow/quantization",
        "tvmflow/sources/data/datasets.py",
        "tvmflow/sources/data/npz_files.py",
    ),
    "graph_pack": (*CHECK, *COMPILER, "tvmflow/vta"),
    "tune": (  # what devices without TVM measure is linked as network.so is; whole networks are compared in turns
        *COMPILER,
        *DEVICE,
        "tvmflow/evaluation/machine_load.py",
        "tvmflow/evaluation/machine_state.py",
        "tvmflow/evaluation/turn_statistics.py",
        "tvmflow/evaluation/interleaved_timing.py",
        "tvmflow/support/files.py",
        "tvmflow/support/json_values.py",
        "tvmflow/frontends/source_model.py",
        "tvmflow/sources/data/images.py",
        "tvmflow/tuning",
        "tvmflow/vta",
    ),
    "build": (  # names of classes, and what is done to images, are in network.so
        *CHECK,
        *COMPILER,
        "tvmflow/vta",
        "tvmflow/sources/data/datasets.py",
        "tvmflow/sources/data/images.py",
        "tvmflow/sources/data/labels.py",
        "tvmflow/sources/data/npz_files.py",
        "tvmflow/sources/data/preprocessing.py",
    ),
    "deploy": (*CHECK, *DEVICE, *KERNELS),
    "evaluate": (*CHECK, *DEVICE, *FRONTEND, *KERNELS, "tvmflow/evaluation"),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_code_in_a_recipe_key_is_the_code_that_the_stage_may_use(name: str) -> None:
    allowed = (f"tasks/{name}.py", *CODE[name])
    strange = [
        f
        for f in code_of(STAGES[name].module, STAGES[name].runs)
        if not any(f == a or f.startswith(f"{a}/") for a in allowed)
    ]
    assert strange == [], f"{name} must not depend on {strange}: cut the import, or say here why it may"


@pytest.mark.parametrize(
    ("framework", "network", "file", "reads_states"),
    [
        ("torch", "torchvision/resnet18", "w.safetensors", False),  # packages keep nothing between runs
        ("keras", "keras/mobilenet_v2_050", "w.weights.h5", False),
        ("onnx", None, "model.onnx", False),
        ("torch", "nets.py:Net", "w.safetensors", True),
        ("torch", None, "model.pt2", True),
        ("tensorflow", None, "model.tflite", True),
    ],
)
def test_an_upgrade_fetches_models_again_only_if_other_bytes_may_result(
    framework: str, network: str | None, file: str, reads_states: bool, tmp_path: Path
) -> None:
    params = small_params()
    entry = {"framework": framework, "weights": {"file": file}, "input": {"name": "x", "shape": [1, 3, 8, 8]}}
    params["cells"] = {}
    params["models"] = {"one": entry | ({"network": network} if network else {})}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    for name in ("nets.py", file):
        (tmp_path / name).touch()
    fetch = STAGES["fetch"]
    settings = fetch.settings(Workspace(tmp_path), Cell(model="one", target="cpu", precision="float32"))
    code, tools = fetch.code(settings), fetch.toolchain(settings)
    loaders = [
        name for name in code if name.startswith(("tvmflow/frontends/pytorch/", "tvmflow/frontends/tensorflow/"))
    ]
    assert bool(loaders) is ("tvmflow/frontends/streams.py" in code) is reads_states
    assert reads_states is bool({"torch", "tflite"} & set(tools))
    assert not {"tvmflow/frontends/pytorch/converters.py", "tvmflow/ir/relax/graph.py"} & set(code)
