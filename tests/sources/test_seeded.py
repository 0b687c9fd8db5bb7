"""Test that networks with seeded weights give different outputs for different inputs, reproducibly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import small_params
from tvmflow.evaluation.agreement import check_varies, spread_of
from tvmflow.sources.data.datasets import varied_inputs
from tvmflow.sources.networks.keras_zoo import build as build_keras
from tvmflow.sources.networks.seeded_weights import settle, varies
from tvmflow.sources.networks.torch_zoo import NETWORKS, build_seeded, torchvision_models

pytestmark = pytest.mark.heavy

SMALL = ("mobilenet_v3_small", "squeezenet1_1", "mnasnet0_5")


def _outputs(network: nn.Module, shape: tuple[int, ...], count: int = 4) -> np.ndarray:  # type: ignore[type-arg]
    x = torch.from_numpy(varied_inputs(count, shape, np.random.default_rng(11)))
    with torch.inference_mode():
        return np.asarray(network(x).numpy())


def _assert_varies(outputs: np.ndarray) -> None:  # type: ignore[type-arg]
    spread = check_varies(outputs)
    assert spread.inputs is not None and spread.classes is not None
    assert spread.inputs > 0.15 * spread.classes
    assert len(set(outputs.argmax(axis=1).tolist())) > 1


@pytest.mark.parametrize("name", [*NETWORKS, *(f"torchvision/{name}" for name in SMALL)])
def test_seeded_torch_networks_vary_and_are_the_same_every_time(name: str) -> None:
    shape = (1, 8, 8) if name in NETWORKS else (3, 224, 224)
    first = build_seeded(name, 5)
    _assert_varies(_outputs(first, shape))
    if name.endswith(("cnn", "small")):
        again = build_seeded(name, 5).state_dict()
        assert all(torch.equal(value, again[key]) for key, value in first.state_dict().items())


def _named_by_the_project() -> list[str]:
    models = small_params()["models"].values()
    return sorted({m["network"].split("/")[1] for m in models if m["framework"] == "torch" and "/" in m["network"]})


@pytest.mark.parametrize("name", [*_named_by_the_project(), "alexnet", "densenet121", "googlenet"])
@pytest.mark.slow
def test_every_torch_network_that_params_names_varies(name: str) -> None:
    size = 299 if name == "inception_v3" else 224
    _assert_varies(_outputs(build_seeded(f"torchvision/{name}", 3), (3, size, size)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_b_32", {"image_size": 64, "num_layers": 3}),
        ("convnext_tiny", {}),
        ("swin_t", {}),
        ("efficientnet_b0", {}),
        ("regnet_x_400mf", {}),
        ("resnet18", {"zero_init_residual": True}),
    ],
)
def test_zero_heads_gammas_and_scales_are_opened_at_small_sizes(name: str, options: dict[str, int]) -> None:
    """ViT's head and some norms start at zero, ConvNeXt's blocks count for 1e-6: what they hide, no check could see."""
    torch.manual_seed(0)
    if name == "vit_b_32":
        network = torchvision_models().VisionTransformer(64, 32, 3, 4, 128, 256).eval()
    else:
        network = torchvision_models().get_model(name, weights=None, **options).eval()
    settle(network, (3, 64, 64), 1)
    outputs = _outputs(network, (3, 64, 64), 6)
    _assert_varies(outputs)
    closed = [
        key
        for key, value in network.named_parameters()
        if value.abs().max() < 1e-3 and (value.ndim > 1 or key.endswith("weight"))
    ]
    assert not closed
    assert 1e-5 < spread_of(outputs).smaller < 1e3


def test_scales_are_opened_whatever_their_name() -> None:
    """timm's are gamma, gamma_1, ls1.gamma, layer_scale1.scale, skipinit_gain."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(12, 12)
            self.gamma_1 = nn.Parameter(torch.full((12,), 1e-5))
            self.gain = nn.Parameter(torch.zeros(()))
            self.shift = nn.Parameter(torch.linspace(-1e-4, 1e-4, 12))
            self.bias = nn.Parameter(torch.zeros(12))
            self.factor = nn.Parameter(torch.full((12,), 0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1)
            return x + self.gamma_1 * self.dense(x) * self.factor + self.gain * x + self.shift + self.bias

    torch.manual_seed(0)
    block = Block()
    before = {name: value.clone() for name, value in block.named_parameters()}
    settle(block, (3, 2, 2), 0)
    after = dict(block.named_parameters())
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"gamma_1", "gain"}
    assert after["gamma_1"].unique().tolist() == [0.5] == after["gain"].unique().tolist()


def test_a_network_that_varies_is_left_as_it_is() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    before = [p.clone() for p in network.parameters()]
    settle(network, (3, 4, 4), 0)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_what_counts_as_varying() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn((8, 10), generator=generator)
    assert varies(y) and varies(y + 1e3)
    assert not varies(y * 1e-9) and not varies(y[:1].expand(8, 10)) and not varies(torch.zeros(8, 10))
    assert not varies(y * 0.01 + torch.arange(10))  # classes differ, inputs hardly


def test_a_seeded_keras_network_varies() -> None:
    model = build_keras("keras/mobilenet_v3_small", 2)
    x = np.random.default_rng(0).standard_normal((4, *model.input_shape[1:]), dtype=np.float32)
    with torch.no_grad():
        _assert_varies(np.asarray(model(x).numpy()))
