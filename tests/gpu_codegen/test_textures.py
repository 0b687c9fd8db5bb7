"""Test the choice of textures in random plans: kernels get the kind of memory that they are compiled for."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu_codegen.test_networks import gpu_backend
from tests.gpu_codegen.test_opencl_faults import INPUTS, opencl_driver
from tests.runtime.test_network import Branches
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.plan import Step, Value
from tvmflow.codegen.network.textures import MOST_EXTENT, VECTOR, choose_textures, texture_for
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.compilers import Command

SHAPES = [(1, 4, 6, 6, 4), (1, 2, 6, 12, 4), (144, 4), (576,), (1, 4, 5, 5, 4)]


@given(st.lists(st.integers(1, 600), min_size=0, max_size=4), st.booleans())
def test_a_texture_holds_a_tensor_and_fits_every_device(extents: list[int], packed: bool) -> None:
    shape = (*extents, VECTOR) if packed else (*extents, VECTOR * 3)
    vectors, texture = math.prod(shape) // VECTOR, texture_for(shape)
    possible = any(
        vectors % width == 0 and vectors // width <= MOST_EXTENT for width in range(1, min(vectors, MOST_EXTENT) + 1)
    )
    assert (texture is not None) == possible
    if texture:
        assert texture.width * texture.height == vectors and max(texture.width, texture.height) <= MOST_EXTENT


@given(st.data())
def test_a_functions_textures_have_rows_of_one_length(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    values = [
        Value(
            at,
            data.draw(st.sampled_from([0, 0, 0, 64])),
            data.draw(st.sampled_from(SHAPES)),
            data.draw(st.sampled_from(["float32", "int8"])),
        )
        for at in range(count)
    ]
    values.append(Value(0, 0, data.draw(st.sampled_from(SHAPES)), "float32"))  # another view of a memory
    functions = {name: data.draw(st.lists(st.booleans(), min_size=2, max_size=2)) for name in "fgh"}
    use = st.tuples(
        st.sampled_from(sorted(functions)), st.lists(st.integers(0, count), min_size=2, max_size=2).map(tuple)
    )
    uses = data.draw(st.lists(use, max_size=8))
    copies = data.draw(st.lists(st.tuples(st.integers(0, count), st.integers(0, count)), max_size=1))
    sizes = [max(value.offset + value.size for value in values if value.memory == at) for at in range(count)]
    calls = [Step(name, given_values, 0, launch=None) for name, given_values in uses]
    found = choose_textures(sizes, values, calls, copies, functions)
    widths = defaultdict(set)
    for function, given_values in uses:
        for parameter, at in enumerate(given_values):
            texture = found.get(values[at].memory)
            widths[function, parameter].add(texture.width if texture else 0)
            assert not texture or functions[function][parameter]
    assert all(len(one) == 1 for one in widths.values())
    assert not {values[at].memory for copy in copies for at in copy} & set(found)
    for value in values:
        if texture := found.get(value.memory):
            assert not value.offset and texture.width * texture.height * VECTOR == math.prod(value.shape)
    assert set(found) <= {values[at].memory for _, given_values in uses for at in given_values}


def test_a_driver_without_images_is_named(tmp_path: Path) -> None:
    backend = gpu_backend("opencl", textures=True)
    module = canonicalize(ExportedModel(Branches(0).eval(), INPUTS).to_relax())
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    network = Network("any@opencl:any", INPUTS, ("scores", "features"), 1)
    assert write_network(tmp_path / "network.so", scheduled, network, Command(("g++",))).textures > 4
    binding = network_binding()
    with pytest.raises(
        binding.NetworkError, match=r"no image of [0-9]+ x [0-9]+ vectors of four numbers of 32 bits: error -10"
    ):
        binding.Network(tmp_path / "network.so", gpu=binding.Gpu(opencl_driver(tmp_path, "-")))
