"""Test dynamic sizes of one library: any length and batch up to the largest, over shared weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.sized_models import TOKENS, Encoder, Images
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.manifest import NetworkFile
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.bucket_tables import Bucket, SizedOutputs
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.config.buckets import Axis, Sizes
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.pipeline import canonicalize
from tvmflow.toolchain.compilers import Command
from tvmflow.tuning.winograd_choice import extend_to_buckets

BACKEND = host_backend()


def _library(
    model: nn.Module, specs: tuple[TensorSpec, ...], sized: SizedOutputs, outputs: tuple[str, ...], path: Path
) -> NetworkFile:
    scheduled = []
    for at, sizes in enumerate(sized.sizes.all):
        shapes = sized.sizes.shapes([spec.shape for spec in specs], sizes)
        here = tuple(TensorSpec(spec.name, shape, spec.dtype) for spec, shape in zip(specs, shapes, strict=True))
        packed = PackChannels(16)(canonicalize(ExportedModel(model.eval(), here).to_relax()))
        scheduled.append(build_scheduled(packed, BACKEND, {}, prefix=f"at{at}_"))
    network = Network("any@host:float32", specs, outputs, 2, sized=sized)
    buckets = [Bucket(sizes, one) for sizes, one in zip(sized.sizes.all[:-1], scheduled[:-1], strict=True)]
    return write_network(path, scheduled[-1], network, Command(("g++",)), buckets)


def test_any_length_up_to_the_largest(tmp_path: Path) -> None:
    sizes = Sizes(("length",), ((16, 40),), (Axis(0, 1, 0), Axis(1, 1, 0)), (3, 0))
    specs = (TensorSpec("ids", (1, 40), "int64"), TensorSpec("mask", (1, 40), "int64"))
    model, names = Encoder(), ("states", "first")
    made = _library(model, specs, SizedOutputs(sizes, (Axis(0, 1, 0),)), names, tmp_path / "network.so")
    assert made.constant_bytes < 1.1 * sum(p.nbytes for p in model.parameters()), "weights lie once"
    network = OpenedNetwork(tmp_path / "network.so", 2)
    assert network.network.sizes == (("length", (16, 40)),)
    draw = np.random.default_rng(0)
    for length in (*range(1, 41), 5, 16, 40, 17):
        ids, mask = draw.integers(0, TOKENS, (1, length)), np.ones((1, length), np.int64)
        mask[0, length - length // 4 :] = 0  # as well as what is filled up
        with torch.no_grad():
            expected = [y.numpy() for y in model(torch.from_numpy(ids), torch.from_numpy(mask))]
        by_name = network.network({"mask": mask, "ids": ids})
        assert [a.tobytes() for a in by_name] == [a.tobytes() for a in network.run(ids, mask)]
        for a, b in zip(network.run(ids, mask), expected, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, atol=1e-4)
    with pytest.raises(ValueError, match="length is 41, and this network takes 1 to 40"):
        network.run(np.zeros((1, 41), np.int64), np.zeros((1, 41), np.int64))
    with pytest.raises(ValueError, match="size 1 of input mask is 5, and not 4, the other inputs' length"):
        network.run(np.zeros((1, 4), np.int64), np.zeros((1, 5), np.int64))


def test_any_batch_up_to_the_largest(tmp_path: Path) -> None:
    model = Images().eval()
    sizes = Sizes(("batch",), ((1, 4),), (Axis(0, 0, 0),), (0,))
    specs = (TensorSpec("x", (4, 3, 16, 16)),)
    made = _library(model, specs, SizedOutputs(sizes, (Axis(0, 0, 0),)), ("scores",), tmp_path / "network.so")
    assert made.constant_bytes < 1.1 * sum(p.nbytes for p in model.parameters())
    network = OpenedNetwork(tmp_path / "network.so", 2)
    for batch in (3, 1, 4, 2, 1):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 16, 16), dtype=np.float32)
        with torch.no_grad():
            expected = model(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(network.run(x)[0], expected, atol=1e-4)


def test_winograd_in_one_batch_is_winograd_in_all() -> None:
    """Transformed weights and plain ones would lie in the library side by side."""
    torch.manual_seed(3)
    layer = nn.Conv2d(64, 64, 3, padding=1).eval()
    packed = {
        batch: PackChannels(16)(canonicalize(ExportedModel(layer, (TensorSpec("x", (batch, 64, 24, 24)),)).to_relax()))
        for batch in (4, 1)
    }
    (large,), (small,) = (list_convolution_keys(packed[batch]) for batch in (4, 1))
    assert large != small and extend_to_buckets({large: 4}, packed[4], [packed[1]]) == {large: 4, small: 4}
    assert extend_to_buckets({}, packed[4], [packed[1]]) == {}


def test_a_dictionary_that_does_not_fit_the_inputs_is_refused(tmp_path: Path) -> None:
    spec = TensorSpec("image", (1, 3, 16, 16))
    scheduled = build_scheduled(
        PackChannels(16)(canonicalize(ExportedModel(Images().eval(), (spec,)).to_relax())), BACKEND, {}
    )
    write_network(
        tmp_path / "network.so", scheduled, Network("one@host:float32", (spec,), ("y",), 2), Command(("g++",)), []
    )
    network = OpenedNetwork(tmp_path / "network.so", 2).network
    x = np.ones(spec.shape, np.float32)
    assert np.array_equal(network({"image": x}), network(x))
    with pytest.raises(ValueError, match="no image and unknown picture in a dictionary for the inputs image"):
        network({"picture": x})
