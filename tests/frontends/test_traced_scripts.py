"""Test TorchScript files: what torch.jit.trace writes (sizes as tensors, operators without defaults), and what
torch.jit.script does (loops and branches).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench.conformance.tflite import interpret
from tests.frontends import scripted_networks
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

pytestmark = pytest.mark.heavy


class Traced(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.up = nn.Conv2d(4, 6, 3, padding=1), nn.ConvTranspose2d(6, 4, 2, 2)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, channels, height, width = image.shape
        pairs = image.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        made = self.up(self.conv(pairs.reshape(batch, channels, height, width)))
        larger = nn.functional.interpolate(image * scale, size=(height * 2 - 1, width + 3), mode="nearest")
        smooth = nn.functional.interpolate(image, scale_factor=1.7, mode="bilinear")
        return made, larger, smooth, *torch.var_mean(image, 1)


def _load(folder: Path, script: Any, *inputs: tuple[Any, ...]) -> Any:
    script.save(str(folder / "model.pt"))
    specs = tuple(TensorSpec(*one) for one in inputs)
    return load_source(folder, SourceDescription("torch", None, "model.pt", specs))


def test_a_traced_network_equals_pytorch(tmp_path: Path) -> None:
    network, generator = Traced().eval(), torch.Generator().manual_seed(1)
    image, scale = torch.randn((2, 4, 5, 6), generator=generator), torch.randn((1, 4, 1, 1), generator=generator)
    script = torch.jit.trace(network, (image, scale))
    source = _load(tmp_path, script, ("scale", (1, 4, 1, 1)), ("image", (2, 4, 5, 6)))  # by name, not by place
    assert source.states == ()
    found = LocalRunner.of_plain(canonicalize(source.to_relax()), host_backend()).run(scale.numpy(), image.numpy())
    with torch.no_grad():
        expected = [one.numpy() for one in network(image, scale)]
    assert [one.shape for one in found] == [one.shape for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["script", "frozen", "traced"])
def test_loops_and_branches_by_sizes_are_followed(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = scripted_networks.Sizes().eval().requires_grad_(False)  # as it is before many exports
    x, divisor = torch.randn(2, 3, 4), torch.tensor([2, 3, 1, 5])
    script = (
        torch.jit.trace(network, (x, divisor), check_trace=False) if form == "traced" else torch.jit.script(network)
    )
    script = torch.jit.freeze(script) if form == "frozen" else script
    source = _load(tmp_path, script, ("x", (2, 3, 4)), ("divisor", (4,), "int64"))
    module = canonicalize(source.to_relax())
    found = interpret(module, [x.numpy(), divisor.numpy()])[0]
    with torch.no_grad():
        assert np.abs(found - network(x, divisor).numpy()).max() < 1e-5
    if form != "frozen":  # which makes constants of its weights
        assert [layer.name for layer in source.weighted_layers()][:2] == ["blocks.0", "blocks.1"]


def test_scripts_that_decide_by_values_are_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedOperatorError, match=r"by values of its inputs at scripted_networks.py:\d+ \(if"
    ) as found:
        _load(tmp_path, torch.jit.script(scripted_networks.Chooses()), ("x", (2, 3)))
    assert "split the model" in found.value.hint


def test_a_script_that_rejects_its_inputs_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"rejects inputs of zeros at .*view\(-1, 7\).*invalid for input of size 6"
    ):
        _load(tmp_path, torch.jit.script(scripted_networks.Rejects()), ("x", (2, 3)))


class Masked(nn.Module):  # type: ignore[misc]
    """Encoder layers and attention with masks, which PyTorch computes by one operator each without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation=kind, norm_first=kind == "gelu")
            for kind in ("relu", "gelu")
        )
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> tuple[torch.Tensor, ...]:
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        y = self.layers[1](self.layers[0](x, src_key_padding_mask=padded), src_mask=later)
        return self.attention(y, x, x, key_padding_mask=padded) + self.attention(
            y, y, y, attn_mask=later, key_padding_mask=padded, average_attn_weights=False
        )


def test_fused_layers_in_a_trace_without_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, x = Masked().eval(), torch.randn(2, 5, 8)
    padded = torch.tensor([[False] * 5, [False, False, False, True, True]])
    with torch.no_grad():
        expected = network(x, padded)
        script = torch.jit.trace(network, (x, padded), check_trace=False)
    code = str(script.inlined_graph)
    assert "_native_multi_head_attention" in code and "_transformer_encoder_layer_fwd" in code
    source = _load(tmp_path, script, ("x", (2, 5, 8)), ("padded", (2, 5), "bool"))
    found = interpret(canonicalize(source.to_relax()), [x.numpy(), padded.numpy()])
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs.numpy()).max() < 1e-5
