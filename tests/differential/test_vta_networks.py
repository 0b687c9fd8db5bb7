"""Test quantized networks with regions on VTA."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.differential.vta_cases import (
    CONFIG,
    Array,
)
from tvmflow.frontends.source_model import one_input
from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.compiler import compile_region
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.runtime.audit import check_ran
from tvmflow.vta.runtime.runtime import program_to_blob
from tvmflow.vta.runtime.summary import Part, summarize

# -- from a quantized network -----------------------------------------------------------------------------------------


def quantized_module(scale: str, pooled: bool = True) -> tuple[Any, Array]:
    """A network with residual sums, a max pool and a dense layer, in vta_int8; and samples."""
    import torch

    from tvmflow.config.stage_params import VtaInt8Params
    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.quantization.post_training import quantize_vta

    class Block(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.one, self.two = (
                torch.nn.Conv2d(inputs, outputs, 3, stride, 1),
                torch.nn.Conv2d(outputs, outputs, 3, 1, 1),
            )
            self.down = torch.nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else torch.nn.Identity()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.two(torch.relu(self.one(x))) + self.down(x))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 16, 3, 1, 1)
            self.blocks = torch.nn.Sequential(Block(16, 16, 1), Block(16, 40, 2))
            self.pool = torch.nn.MaxPool2d(3, 2, 1) if pooled else torch.nn.Identity()
            self.last, self.head = torch.nn.Conv2d(40, 20, 1), torch.nn.Linear(20, 7)

        def forward(self, x: Any) -> Any:
            return self.head(self.last(self.pool(self.blocks(torch.relu(self.first(x))))).mean((2, 3)))

    torch.manual_seed(0)
    module = canonicalize(ExportedModel(Net().eval(), one_input("input", (1, 3, 18, 14))).to_relax())
    samples = np.random.default_rng(0).standard_normal((4, 3, 18, 14), dtype=np.float32)
    return quantize_vta(module, samples, None, VtaInt8Params(scale=scale, keep_float=("first",)))[0], samples


@pytest.mark.few(2)
@pytest.mark.parametrize("scale", ["global", "calibrated"])
@pytest.mark.parametrize("config", [CONFIG, VtaConfig(log_batch=1)], ids=lambda config: config.name)
def test_a_quantized_network_computes_the_same_with_the_accelerator(scale: str, config: VtaConfig) -> None:
    from tvmflow.passes import run_pass
    from tvmflow.passes.layout.pack_channels import PackChannels
    from tvmflow.vta.compiler.offload import offload_vta

    module, samples = quantized_module(scale)
    offloaded, parts = offload_vta(module, config)
    offloaded = run_pass(PackChannels(16), offloaded)
    layers = parts.offloaded
    assert [name.rstrip("0123456789") for name in layers].count("conv") == 6
    assert {"add0", "add1", "max_pool2d0"} <= set(layers)
    check_forms(config, module, offloaded, samples)


def check_forms(config: VtaConfig, module: Any, offloaded: Any, samples: Array) -> list[dict[str, Any]]:
    """Compile the regions, run the quantized, offloaded and compiled module, and compare; return the programs'
    summaries.
    """
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.vta.compiler.offload import blobs_of, regions_of, replace_blobs
    from tvmflow.vta.runtime.runtime import register

    runtime = register(config)
    programs = [compile_region(config, region, "optimized") for region in regions_of(offloaded)]
    assert all(lint(program) == [] for program in programs)
    new = [program_to_blob(program) for program in programs]
    compiled = replace_blobs(offloaded, dict(zip(blobs_of(offloaded), new, strict=True)))
    runners = [LocalRunner(stage, host_backend()) for stage in (module, offloaded, compiled)]
    for sample in samples:
        plain, defined, run = (runner.run(sample[None])[0] for runner in runners)
        assert np.array_equal(plain, defined) and np.array_equal(plain, run)
    assert runtime.runs == 2 * len(samples) * len(programs)
    parts = [
        Part(f"vta{at}", program, blob[:32].hex()) for at, (program, blob) in enumerate(zip(programs, new, strict=True))
    ]
    regions: list[dict[str, Any]] = summarize(config, "optimized", parts, {})["regions"]
    ran = json.loads(runtime.counters())
    assert check_ran(regions, {region["digest"]: ran[region["digest"]] for region in regions})["runs"] == len(samples)
    return regions


def pieces_module() -> tuple[Any, Array]:
    """A network that VTA computes in pieces: between them what it cannot, each kind once."""
    import torch

    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.quantization.post_training import VtaInt8Params, quantize_vta

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = torch.nn.Conv2d
            self.one, self.two, self.three, self.four = (
                conv(16, 16, 3, 1, 1),
                conv(16, 16, 3, 1, 1),
                conv(16, 24, 3, 1, 1),
                conv(40, 16, 1),
            )
            self.up = torch.nn.ConvTranspose2d(16, 16, 4, 2, 1)

        def forward(self, x: Any) -> Any:
            function = torch.nn.functional
            x = torch.relu(self.up(torch.relu(self.one(x))))
            y = function.leaky_relu(self.two(x), 0.1)
            z = torch.relu(self.three(function.interpolate(y, scale_factor=2)))
            return self.four(torch.cat([function.max_pool2d(z, 2), y], 1)).mean((2, 3))

    torch.manual_seed(0)
    module = canonicalize(ExportedModel(Net().eval(), one_input("input", (1, 16, 8, 8))).to_relax())
    samples = np.random.default_rng(0).standard_normal((2, 16, 8, 8), dtype=np.float32)
    return quantize_vta(module, samples, None, VtaInt8Params(scale="calibrated", keep_float=()))[0], samples


def test_a_network_in_several_regions_computes_the_same() -> None:
    from tvmflow.vta.compiler.offload import offload_vta

    module, samples = pieces_module()
    offloaded, parts = offload_vta(module, CONFIG)
    assert parts.layers == (("conv0", "conv_transpose0", "conv1"), ("conv2", "max_pool2d0"), ("conv3",))
    regions = check_forms(CONFIG, module, offloaded, samples)
    assert [region["name"] for region in regions] == ["vta0", "vta1", "vta2"]
    assert all(region["cycles"] > 0 and region["counters"]["gemm_counter"] > 0 for region in regions)


def generator_module() -> tuple[Any, Array]:
    """DCGAN's generator in small: a dense layer, transposed convolutions of both kinds with batch norms, no plain
    ones.
    """
    import torch

    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.quantization.post_training import VtaInt8Params, quantize_vta

    up = torch.nn.ConvTranspose2d
    net = torch.nn.Sequential(
        up(20, 32, 4, 1, 0, bias=False),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        up(32, 16, 4, 2, 1),
        torch.nn.ReLU(),
        up(16, 24, 3, 2, 1, output_padding=1),
        torch.nn.ReLU6(),
        up(24, 3, 4, 2, 1),
    )
    torch.manual_seed(0)
    module = canonicalize(ExportedModel(net.eval(), one_input("input", (1, 20, 1, 1))).to_relax())
    samples = np.random.default_rng(0).standard_normal((3, 20, 1, 1), dtype=np.float32)
    return quantize_vta(module, samples, None, VtaInt8Params(scale="calibrated", keep_float=("first",)))[0], samples


def test_transposed_convolutions_of_a_generator_are_computed() -> None:
    from tvmflow.ir.relax.graph import read_graph
    from tvmflow.ir.relax.numpy_interpreter import run_graph
    from tvmflow.vta.compiler.offload import offload_vta

    module, samples = generator_module()
    offloaded, parts = offload_vta(module, CONFIG)
    assert parts.layers == (("conv_transpose0", "conv_transpose1", "conv_transpose2", "conv_transpose3"),)
    assert parts.reasons == {}, "the batch norm is in the first layer's weights"
    check_forms(CONFIG, module, offloaded, samples)
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner

    graph, runner = read_graph(module), LocalRunner(module, host_backend())
    for sample in samples:
        assert np.allclose(run_graph(graph, sample[None]), runner.run(sample[None])[0], rtol=0, atol=1e-6)


def test_every_layer_that_stays_on_the_cpu_has_its_reason() -> None:
    from tvmflow.support.errors import UnknownNameError
    from tvmflow.vta.compiler.offload import offload_vta

    module, _ = pieces_module()
    reasons = offload_vta(module, CONFIG)[1].reasons
    for layer, text in (
        ("leakyrelu", "leakyrelu"),
        ("resize2d", "image.resize2d"),
        ("concat", "concat"),
        ("mean", "average"),
    ):
        assert any(name.startswith(layer) and text in why for name, why in reasons.items()), (layer, reasons)
    parts = offload_vta(module, CONFIG, "image.resize2d", "concat")[1]
    assert parts.layers == (("conv2", "max_pool2d0"),)
    assert {parts.reasons[name] for name in ("conv0", "conv_transpose0", "conv1", "conv3")} == {
        "outside of start and stop"
    }
    assert offload_vta(module, CONFIG, "relax.nn.max_pool2d")[1].layers == (("conv3",),)
    assert offload_vta(module, CONFIG, "auto", "max_pool2d")[1].offloaded == (
        "conv0",
        "conv_transpose0",
        "conv1",
        "conv2",
    )
    assert offload_vta(module, CONFIG, "leakyrelu0", "mean")[1].offloaded == ("conv2", "max_pool2d0", "conv3")
    pooled = offload_vta(module, CONFIG, "leakyrelu0", "nn.global_avg_pool2d")[1]
    assert pooled.offloaded == ("conv2", "max_pool2d0", "conv3")
    with pytest.raises(UnknownNameError, match=r"no layer 'nn\.global_max_pool2d'"):
        offload_vta(module, CONFIG, "auto", "nn.global_max_pool2d")


def test_only_an_average_of_whole_images_is_a_global_pool() -> None:
    import torch

    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.quantization.post_training import VtaInt8Params, quantize_vta
    from tvmflow.vta.compiler.offload import offload_vta

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Conv2d(16, 16, 3, 1, 1), torch.nn.Conv2d(16, 16, 1)

        def forward(self, x: Any) -> Any:
            x = self.one(x)
            return self.two(x - x.mean(1, keepdim=True)).mean((2, 3))

    torch.manual_seed(0)
    module = canonicalize(ExportedModel(Net().eval(), one_input("input", (1, 16, 8, 8))).to_relax())
    samples = np.random.default_rng(0).standard_normal((2, 16, 8, 8), dtype=np.float32)
    quantized = quantize_vta(module, samples, None, VtaInt8Params(keep_float=()))[0]
    assert "conv1" in offload_vta(quantized, CONFIG, "auto", "nn.global_avg_pool2d")[1].offloaded


def test_layers_between_start_and_stop() -> None:
    from tvmflow.support.errors import UnknownNameError
    from tvmflow.vta.compiler.offload import offload_vta

    module, _ = quantized_module("global")
    layers = offload_vta(module, CONFIG)[1].offloaded
    assert offload_vta(module, CONFIG, layers[2], layers[4])[1].offloaded == layers[2:4]
    for part in range(1, len(layers)):  # wherever it is cut, the pieces fit
        assert offload_vta(module, CONFIG, layers[0], layers[part])[1].offloaded == layers[:part]
        assert offload_vta(module, CONFIG, layers[part])[1].offloaded == layers[part:]
    with pytest.raises(UnknownNameError, match="no layer 'conv77'"):
        offload_vta(module, CONFIG, "conv77")
    with pytest.raises(ProgramError, match="no layers between"):
        offload_vta(module, CONFIG, layers[4], layers[2])


def test_a_float_network_has_nothing_for_the_accelerator() -> None:
    from tvmflow.frontends.pytorch.exported_program import ExportedModel
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.sources.networks.torch_zoo import build
    from tvmflow.vta.compiler.offload import offload_vta

    model = ExportedModel(build("digits_cnn", 3), one_input("input", (1, 1, 8, 8)))
    with pytest.raises(ProgramError, match="nothing in this network that VTA can compute"):
        offload_vta(canonicalize(model.to_relax()), CONFIG)
