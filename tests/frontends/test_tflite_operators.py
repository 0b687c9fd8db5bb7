"""Check the table of TFLite operators against the format's list, and each operator against LiteRT."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.conformance.tflite import (
    CELLS,
    DOCS,
    interpret,
    judge,
    parse,
    reference,
    render,
    run_file,
)
from bench.conformance.tflite_models import Description, FileWriter, quantize_weight
from bench.conformance.tflite_operators import descriptions, formats_of
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.file_headers import read_header
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.frontends.tensorflow.operator_table import CONVERTERS, INLINED, REFUSED
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.setup.preflight import MAX_BYTES
from tvmflow.support.errors import UnsupportedOperatorError

Array = np.ndarray[Any, Any]
CASES = [(description, name) for description in descriptions() for name in formats_of(description)]
ELSEWHERE = {  # tested below: they need constants, or several operators
    "BITCAST", "BROADCAST_ARGS", "COMPLEX_ABS", "DENSIFY", "DEQUANTIZE", "IMAG", "RANGE", "REAL", "RFFT2D",
    "SPARSE_TO_DENSE",
}  # fmt: skip


def test_the_table_has_every_operator_of_the_format() -> None:
    import tflite
    from ai_edge_litert import schema_py_generated as schema

    names = {name for kind in (tflite.BuiltinOperator, schema.BuiltinOperator) for name in vars(kind) if name.isupper()}
    assert set(CONVERTERS) | set(REFUSED) | INLINED == names
    assert not set(CONVERTERS) & set(REFUSED)


def test_every_imported_operator_is_described_for_litert() -> None:
    assert {description.operator for description, _ in CASES} | ELSEWHERE == set(CONVERTERS)
    assert not {description.operator for description, _ in CASES} & ELSEWHERE


def test_the_documented_table_is_current() -> None:
    text = DOCS.read_text(encoding="utf-8")
    states = parse(text)
    assert render(states) == text
    assert set(states) == set(CONVERTERS) | INLINED
    assert not [row for row, cells in states.items() if {"wrong", "raw"} & set(cells.values())]


@pytest.mark.few(16)
@pytest.mark.parametrize(
    ("description", "number_format"), CASES, ids=[f"{case.name}-{name.replace(' ', '-')}" for case, name in CASES]
)
def test_operator_equals_litert(description: Description, number_format: str) -> None:
    verdict = judge(description, number_format, interpret)
    assert verdict.state in ("passed", "refused", "absent"), verdict
    documented = parse(DOCS.read_text(encoding="utf-8"))[description.operator][number_format]
    assert CELLS[verdict.state] == documented or documented == "yes", verdict


def _equals(content: bytes, inputs: list[Array], bound: float = 2e-5) -> list[Array]:
    """Check the import of a file against LiteRT, and return its outputs."""
    made, expected = run_file(content, inputs, interpret), reference(content, inputs, False)
    for value, (wanted, (scale, zero)) in zip(made, expected, strict=True):
        real = (wanted - np.float32(zero)) * np.float32(scale) if scale else wanted
        assert value.shape == real.shape
        assert np.abs(value - real).max() <= bound * max(np.abs(real).max(), 1e-6)
    return made


def test_shapes_computed_in_the_file_are_known() -> None:
    """SHAPE -> STRIDED_SLICE -> PACK -> RESHAPE, and the other operators of constants."""
    writer = FileWriter()
    x = writer.tensor("x", (2, 3, 4), "FLOAT32")
    shape, first = writer.tensor("shape", (3,), "INT32"), writer.tensor("first", (), "INT32")
    ends = [writer.tensor(f"end{at}", (1,), "INT32", np.asarray([at], np.int32)) for at in (0, 1)]
    minus = writer.tensor("minus", (), "INT32", np.asarray(-1, np.int32))
    packed, made = writer.tensor("packed", (2,), "INT32"), writer.tensor("made", (2, 12), "FLOAT32")
    slices = {"beginMask": 0, "endMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 1}
    writer.operator("SHAPE", [x], [shape], "ShapeOptions", {"outType": 2})
    writer.operator("STRIDED_SLICE", [shape, ends[0], ends[1], ends[1]], [first], "StridedSliceOptions", slices)
    writer.operator("PACK", [first, minus], [packed], "PackOptions", {"axis": 0, "valuesCount": 2})
    writer.operator("RESHAPE", [x, packed], [made], "ReshapeOptions")
    numbers = [writer.tensor(f"n{at}", (), "INT32", np.asarray(at, np.int32)) for at in (0, 12, 1)]
    steps, real = writer.tensor("steps", (12,), "INT32"), writer.tensor("real", (12,), "FLOAT32")
    both, out = writer.tensor("both", (2,), "INT32"), writer.tensor("out", (2, 12), "FLOAT32")
    wide = writer.tensor("wide", (2, 12), "FLOAT32")
    writer.operator("RANGE", numbers, [steps], "RangeOptions")
    writer.operator("CAST", [steps], [real], "CastOptions", {"inDataType": 2, "outDataType": 0})
    one = writer.tensor("one", (2,), "INT32", np.asarray([1, 12], np.int32))
    writer.operator("BROADCAST_ARGS", [packed_known(writer), one], [both])
    writer.operator("BROADCAST_TO", [real, both], [wide], "BroadcastToOptions")
    writer.operator("ADD", [made, wide], [out], "AddOptions")
    values = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    _equals(writer.content([x], [out]), [values])


def packed_known(writer: FileWriter) -> int:
    return writer.tensor("two", (2,), "INT32", np.asarray([2, 1], np.int32))


def test_spectra() -> None:
    writer = FileWriter()
    x = writer.tensor("x", (3, 1, 20), "FLOAT32")
    lengths = writer.tensor("lengths", (2,), "INT32", np.asarray([1, 16], np.int32))
    spectrum = writer.tensor("spectrum", (3, 1, 9), "COMPLEX64")
    outputs = [writer.tensor(name, (3, 1, 9), "FLOAT32") for name in ("real", "imaginary", "magnitude")]
    writer.operator("RFFT2D", [x, lengths], [spectrum], "Rfft2dOptions")
    for name, output in zip(("REAL", "IMAG", "COMPLEX_ABS"), outputs, strict=True):
        writer.operator(name, [spectrum], [output])
    _equals(writer.content([x], outputs), [np.random.default_rng(0).standard_normal((3, 1, 20)).astype(np.float32)])


def test_bits_and_sparse_lists_of_constants() -> None:
    writer = FileWriter()
    x = writer.tensor("x", (4,), "FLOAT32")
    ints = writer.tensor("ints", (4,), "INT32", np.asarray([1.0, -2, 3, 4], np.float32).view(np.int32))
    bits, dense = writer.tensor("bits", (4,), "FLOAT32"), writer.tensor("dense", (4,), "FLOAT32")
    given = [
        writer.tensor("places", (2,), "INT32", np.asarray([1, 3], np.int32)),
        writer.tensor("size", (1,), "INT32", np.asarray([4], np.int32)),
        writer.tensor("values", (2,), "FLOAT32", np.asarray([5, 6], np.float32)),
        writer.tensor("rest", (), "FLOAT32", np.asarray(0.5, np.float32)),
    ]
    total, out = writer.tensor("total", (4,), "FLOAT32"), writer.tensor("out", (4,), "FLOAT32")
    writer.operator("BITCAST", [ints], [bits], "BitcastOptions")
    writer.operator("SPARSE_TO_DENSE", given, [dense], "SparseToDenseOptions")
    writer.operator("ADD", [x, bits], [total], "AddOptions")
    writer.operator("MUL", [total, dense], [out], "MulOptions")
    _equals(writer.content([x], [out]), [np.asarray([1, 2, 3, 4], np.float32)])


def test_sparse_weights_in_blocks() -> None:
    """Blocks of 1 x 2, of which each row lists the columns that have values, as MediaPipe's detectors have."""
    writer = FileWriter()
    schema = writer.schema
    dense = np.zeros((4, 6), np.float32)
    dense[0, 2:4], dense[2, 0:2], dense[2, 4:6] = [1, 2], [3, 4], [5, 6]
    columns = schema.DimensionMetadataT(
        format=1,
        denseSize=3,
        arraySegmentsType=schema.SparseIndexVector.Int32Vector,
        arraySegments=schema.Int32VectorT(values=np.asarray([0, 1, 1, 3, 3], np.int32)),
        arrayIndicesType=schema.SparseIndexVector.Int32Vector,
        arrayIndices=schema.Int32VectorT(values=np.asarray([1, 0, 2], np.int32)),
    )
    axes = [schema.DimensionMetadataT(format=0, denseSize=4), columns, schema.DimensionMetadataT(format=0, denseSize=2)]
    sparsity = schema.SparsityParametersT(
        traversalOrder=np.asarray([0, 1, 2], np.int32), blockMap=np.asarray([1], np.int32), dimMetadata=axes
    )
    kept = np.asarray([1, 2, 3, 4, 5, 6], np.float32)
    weight = writer.tensor("weight", (4, 6), "FLOAT32", kept, sparsity=sparsity)
    x, full = writer.tensor("x", (4, 6), "FLOAT32"), writer.tensor("full", (4, 6), "FLOAT32")
    out = writer.tensor("out", (4, 6), "FLOAT32")
    writer.operator("DENSIFY", [weight], [full], "DensifyOptions")
    writer.operator("ADD", [x, full], [out], "AddOptions")
    (made,) = _equals(writer.content([x], [out]), [np.zeros((4, 6), np.float32)])
    assert np.array_equal(made, dense)


def test_composites_are_replaced_by_their_operators() -> None:
    """Two calls of one graph: each has tensors of its own."""
    from flatbuffers import flexbuffers

    writer = FileWriter()
    schema, main = writer.schema, writer.graph
    inner = schema.SubGraphT(tensors=[], inputs=[], outputs=[], operators=[], name="inner")
    writer.model.subgraphs.append(inner)
    writer.graph = inner
    a, squared, made = (writer.tensor(name, (2, 3), "FLOAT32") for name in ("a", "squared", "made"))
    half = writer.tensor("half", (1,), "FLOAT32", np.asarray([0.5], np.float32))
    writer.operator("MUL", [a, a], [squared], "MulOptions")
    writer.operator("ADD", [squared, half], [made], "AddOptions")
    inner.inputs, inner.outputs = np.asarray([a], np.int32), np.asarray([made], np.int32)
    writer.graph = main
    x, once, twice = (writer.tensor(name, (2, 3), "FLOAT32") for name in ("x", "once", "twice"))
    attributes = np.frombuffer(flexbuffers.Dumps({}), np.uint8)
    fields = {"name": "test.square", "decompositionSubgraphIndex": 1, "compositeAttributes": attributes}
    for given, result in ((x, once), (once, twice)):
        writer.operator("STABLEHLO_COMPOSITE", [given], [result], "StableHLOCompositeOptions", fields)
    values = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    (made_value,) = _equals(writer.content([x], [twice]), [values])
    assert np.allclose(made_value, (values**2 + 0.5) ** 2 + 0.5)


def _custom_file() -> tuple[bytes, Array]:
    writer = FileWriter()
    generator = np.random.default_rng(0)
    x = writer.tensor("x", (1, 4, 4, 3), "FLOAT32")
    weight = writer.tensor("w", (2, 2, 2, 3), "FLOAT32", generator.standard_normal((2, 2, 2, 3)).astype(np.float32))
    bias = writer.tensor("b", (2,), "FLOAT32", np.asarray([1, -1], np.float32))
    out = writer.tensor("out", (1, 8, 8, 2), "FLOAT32")
    options = struct.pack("<iii", 1, 2, 2)
    writer.operator("CUSTOM:Convolution2DTransposeBias", [x, weight, bias], [out], custom=options)
    return writer.content([x], [out]), generator.standard_normal((1, 4, 4, 3)).astype(np.float32)


def test_the_transposed_convolution_of_mediapipe(tmp_path: Path) -> None:
    content, x = _custom_file()
    (tmp_path / "model.tflite").write_bytes(content)
    described = SourceDescription("tensorflow", None, "model.tflite", (TensorSpec("x", (1, 4, 4, 3)),))
    source = load_source(tmp_path, described)  # LiteRT runs it, too
    (made,) = interpret(canonicalize(source.to_relax()), [x])
    assert np.abs(made - source.run(x)[0]).max() < 1e-5
    assert made.shape == (1, 8, 8, 2)


def test_the_header_names_inputs_as_the_import_does(tmp_path: Path) -> None:
    """TensorFlow's converter decorates the names of a signature's inputs."""
    writer = FileWriter()
    first, second = (writer.tensor(f"serving_default_{name}:0", (2, 3), "FLOAT32") for name in ("first", "second"))
    out = writer.tensor("StatefulPartitionedCall:0", (2, 3), "FLOAT32")
    writer.operator("SUB", [first, second], [out], "SubOptions")
    path = tmp_path / "model.tflite"
    path.write_bytes(writer.content([first, second], [out]))
    header = read_header(str(path), MAX_BYTES)
    assert header is not None and [one["name"] for one in header["inputs"]] == ["first", "second"]
    specs = tuple(TensorSpec(one["name"], one["shape"], one["dtype"]) for one in reversed(header["inputs"]))
    source = load_source(tmp_path, SourceDescription("tensorflow", None, path.name, specs))
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 3, np.float32)
    (made,) = interpret(canonicalize(source.to_relax()), [b, a])
    assert np.array_equal(made, a - b) and np.array_equal(source.run(b, a)[0], a - b)


def test_all_refused_operators_are_in_one_error(tmp_path: Path) -> None:
    """LiteRT cannot load the file: it is not asked. `tvmflow add` reads no more than the header."""
    writer = FileWriter()
    x = writer.tensor("x", (2, 3), "FLOAT32")
    outputs = [writer.tensor(f"made{at}", (2, 3), "FLOAT32") for at in range(4)]
    writer.operator("CUSTOM:Landmarks", [x], [outputs[0]])
    writer.operator("RELU", [x], [outputs[1]])
    writer.operator("WHERE", [x], [outputs[2]], "WhereOptions")
    writer.operator("WHERE", [x], [outputs[3]], "WhereOptions")
    path = tmp_path / "model.tflite"
    path.write_bytes(writer.content([x], outputs))
    described = SourceDescription("tensorflow", None, path.name, (TensorSpec("x", (2, 3)),))
    message = r"Landmarks \(at 'made0'.*WHERE \(2 times, first at 'made2'"
    with pytest.raises(UnsupportedOperatorError, match=message):
        load_source(tmp_path, described)
    with pytest.raises(UnsupportedOperatorError, match=message):
        read_header(str(path), MAX_BYTES)


def test_a_refused_use_names_its_node() -> None:
    writer = FileWriter()
    x, shape = writer.tensor("x", (2, 3), "FLOAT32"), writer.tensor("shape", (2,), "INT32")
    out = writer.tensor("out", (3, 2), "FLOAT32")
    writer.operator("RESHAPE", [x, shape], [out], "ReshapeOptions")
    values = [np.zeros((2, 3), np.float32), np.asarray([3, 2], np.int32)]
    with pytest.raises(UnsupportedOperatorError, match=r"RESHAPE \(output 'out'\) whose shape depends on data"):
        run_file(writer.content([x, shape], [out]), values, interpret)


def _int8_network() -> bytes:
    """Return conv -> average pool of 2 x 2, of which a quarter of the sums is halfway between integers."""
    writer = FileWriter()
    generator = np.random.default_rng(3)
    weight, scales = quantize_weight(generator.uniform(-1, 1, (8, 3, 3, 3)).astype(np.float32), 0)
    grid = (0.05, -3, 0)
    x = writer.tensor("x", (1, 16, 16, 3), "INT8", None, (0.02, 5, 0))
    w = writer.tensor("w", weight.shape, "INT8", weight, (scales, np.zeros(8), 0))
    b = writer.tensor("b", (8,), "INT32", np.zeros(8, np.int32), (scales * np.float32(0.02), np.zeros(8), 0))
    made = writer.tensor("conv", (1, 16, 16, 8), "INT8", None, grid)
    out = writer.tensor("out", (1, 8, 8, 8), "INT8", None, grid)
    stride = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "padding": 0}
    writer.operator("CONV_2D", [x, w, b], [made], "Conv2DOptions", stride)
    pool = {"strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2, "padding": 1}
    writer.operator("AVERAGE_POOL_2D", [made], [out], "Pool2DOptions", pool)
    return writer.content([x], [out])


def test_int8_average_pools_round_as_litert(tmp_path: Path) -> None:
    content, x = _int8_network(), np.random.default_rng(0).uniform(-2, 2, (1, 16, 16, 3)).astype(np.float32)
    ((wanted, (scale, zero)),) = reference(content, [x], True)
    (made,) = run_file(content, [x], interpret)
    steps = np.rint(made / scale) + zero - wanted
    assert np.abs(steps).max() <= 1 and np.mean(steps != 0) < 0.01
    (tmp_path / "model.tflite").write_bytes(content)
    described = SourceDescription("tensorflow", None, "model.tflite", (TensorSpec("x", (1, 16, 16, 3)),))
    module = canonicalize(load_source(tmp_path, described).to_relax())
    quantized, report = quantize_int8(module, x, None, Int8Params(max_drop=None))
    (made,) = interpret(quantized, [x])
    steps = made / scale + zero - wanted
    assert np.abs(steps).max() <= 1.01 and {layer.kind: layer.dtype for layer in report.layers}["conv"] == "uint8"
    assert read_graph(quantized).outputs
