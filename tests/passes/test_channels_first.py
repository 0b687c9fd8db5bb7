"""Test ChannelsFirst on a step of a streaming network: its state stays channels-last, with equal outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import axes_of_permutation, read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.canonicalize.channels_first import ChannelsFirst

_TIME, _CHANNELS = 5, 8
_TO_FIRST = [0, 3, 1, 2]
Array = np.ndarray[Any, Any]


def _conv(data: Any, weight: Array, groups: int = 1) -> Any:
    return relax.op.nn.conv2d(
        data, constant(weight, "float32"), groups=groups, data_layout="NHWC", kernel_layout="OHWI"
    )


def _step(pointwise: Array, over_time: Array, steps: int) -> Any:
    """Return a network that appends new values to a state, convolves all of them over time and keeps the last ones."""
    builder = relax.BlockBuilder()
    state = relax.Var("state", relax.TensorType((1, _TIME - steps, 1, _CHANNELS), "float32"))
    x = relax.Var("x", relax.TensorType((1, steps, 1, 4), "float32"))
    with builder.function("main", [state, x]):
        with builder.dataflow():
            new = builder.emit(_conv(x, pointwise))
            joined = builder.emit(relax.op.concat([state, new], axis=1))
            kept = builder.emit(relax.op.strided_slice(joined, [1], [steps], [_TIME]))
            output = builder.emit(_conv(joined, over_time, _CHANNELS))
            output = builder.emit(relax.op.reshape(output, (1, _CHANNELS)))
            result = builder.emit_output(relax.Tuple([output, kept]))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(("steps", "moved"), [(1, 1), (2, 3)])
def test_a_state_that_one_step_is_appended_to_is_moved_once(steps: int, moved: int) -> None:
    """Of a pixel all layouts are the same: state and kept part stay channels-last, as the file has them."""
    rng = np.random.default_rng(4)
    shapes = (
        (_CHANNELS, 1, 1, 4),
        (_CHANNELS, _TIME, 1, 1),
        (1, _TIME - steps, 1, _CHANNELS),
        (1, steps, 1, 4),
    )
    pointwise, over_time, state, x = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    graph = read_graph(ChannelsFirst()(_step(pointwise, over_time, steps)))
    convolutions = [step for step in graph.steps if step.op == "relax.nn.conv2d"]
    assert [str(step.call.attrs.data_layout) for step in convolutions] == ["NCHW", "NCHW"]
    permutations = [axes_of_permutation(step) for step in graph.steps if step.op == "relax.permute_dims"]
    assert len(permutations) == moved, permutations
    joined = np.concatenate([state, x @ pointwise[:, 0, 0].T], axis=1)
    output, kept = run_all(graph, [state, x])
    np.testing.assert_allclose(kept, joined[:, steps:], rtol=1e-5)
    np.testing.assert_allclose(output[0], np.einsum("tc,ct->c", joined[0, :, 0], over_time[:, :, 0, 0]), rtol=1e-4)


def test_images_that_are_in_both_layouts_are_concatenated_channels_first() -> None:
    """Each was transposed for a convolution already: the concat needs no third transposition."""
    builder, weight = relax.BlockBuilder(), np.ones((8, 1, 1, 4), np.float32)
    images = [relax.Var(name, relax.TensorType((1, 6, 6, 4), "float32")) for name in ("one", "other")]
    with builder.function("main", images):
        with builder.dataflow():
            outputs = [builder.emit(_conv(image, weight)) for image in images]
            joined = builder.emit(relax.op.concat(images, axis=3))
            outputs.append(builder.emit(_conv(joined, np.ones((8, 1, 1, 8), np.float32))))
            result = builder.emit_output(relax.Tuple(outputs))
        builder.emit_func_output(result)
    steps = read_graph(ChannelsFirst()(builder.get())).steps
    moved = [step.refs for step in steps if step.op == "relax.permute_dims" and axes_of_permutation(step) == _TO_FIRST]
    assert moved == [("one",), ("other",)]
