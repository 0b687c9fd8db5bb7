"""Test that the code in the recipe key of each stage is the code that the stage may use."""

from __future__ import annotations

import pytest

from tasks.table import STAGES
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
STREAMS = (  # the framework runs the samples of a model with states; PyTorch's files call converted operators only
    "tvmflow/frontends/archives.py",
    "tvmflow/frontends/emitter.py",
    "tvmflow/frontends/pytorch",
    "tvmflow/frontends/recurrent.py",
    "tvmflow/frontends/streams.py",
    "tvmflow/frontends/torch_arrays.py",
    "tvmflow/frontends/torch_variants.py",
    "tvmflow/ir",
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
    ),
    "quantize": (
        *CHECK,
        *COMPILER,
        "tvmflow/evaluation/check_numpy_reference.py",
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
