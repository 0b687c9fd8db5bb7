"""Test that indices outside of a tensor mean the nearest place; IR whose indices may lie outside is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.ir.indexed import CASES, Indexed, module_of
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.ir.relax.serialization import IR_NAME, load_module, save_module
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import ModelFileError

_HOSTILE = np.array([2**62, -1, 1, -(2**63), 0, 4, -4, 5, 2, -6, 2**31, 3, -(2**31) - 1])
_DEFINED = [name for name, case in CASES.items() if case.expected is not None]


def _drawn(case: Indexed, hostile: bool) -> list[Any]:
    chance = np.random.default_rng(7)
    made = []
    for shape, dtype in case.inputs.values():
        if dtype == "float32":
            made.append(chance.standard_normal(shape, dtype=np.float32))
        else:
            numbers = np.resize(_HOSTILE, shape) if hostile else chance.integers(0, 4, shape)
            made.append(numbers.astype(dtype))
    return made


@pytest.mark.parametrize("name", _DEFINED)
def test_an_index_outside_means_the_nearest_place(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.expected is not None
    save_module(canonicalize(module_of(case)), tmp_path)
    module = load_module(tmp_path)
    runner = LocalRunner.of_plain(module, host_backend())
    for hostile in (False, True):
        inputs = _drawn(case, hostile)
        for found in (runner.run(*inputs), run_all(read_graph(module), tuple(inputs))):
            np.testing.assert_allclose(found[0], case.expected(*inputs), rtol=1e-6)


_KERNELS = ("grid_sample", "roi_pool")
_AS_TVM_IMPORTS = [name for name in CASES if name.partition(",")[0] not in _KERNELS and name != "take of int32"]


@pytest.mark.parametrize("name", _AS_TVM_IMPORTS)
def test_ir_with_indices_that_are_not_bounded_is_refused(name: str, tmp_path: Path) -> None:
    save_module(module_of(CASES[name]), tmp_path)
    with pytest.raises(ModelFileError, match=r"indices that may lie outside|checks no index"):
        load_module(tmp_path)


@pytest.mark.parametrize("name", _KERNELS)
def test_operators_that_are_kernels_after_the_import_are_refused(name: str, tmp_path: Path) -> None:
    save_module(module_of(next(case for key, case in CASES.items() if key.startswith(name))), tmp_path)
    with pytest.raises(ModelFileError, match=name):
        load_module(tmp_path)


def _gather(make_index: Any) -> Any:
    def make(x: Any, i: Any, j: Any) -> Any:
        return relax.op.gather_nd(x, make_index(i, j), 0)

    return module_of(Indexed({"x": ((4, 5), "float32"), "i": ((6, 2), "int64"), "j": ((6, 2), "int64")}, make))


def _const(*values: int) -> Any:
    return relax.const(np.array(values, np.int64), "int64")


def _between(index: Any, least: Any, most: Any) -> Any:
    return relax.op.minimum(relax.op.maximum(index, least), most)


@pytest.mark.parametrize(
    ("make_index", "is_read"),
    [
        (lambda i, _: _between(i, _const(0, 0), _const(3, 4)), True),
        (lambda i, _: relax.op.maximum(relax.op.minimum(i, _const(3, 4)), _const(0)), True),
        (lambda i, _: _between(i, _const(0), _const(3)), True),
        (lambda i, _: _between(i, _const(0, 0), _const(4, 3)), False),
        (lambda i, _: _between(i, _const(0, 0), _const(4, 4)), False),
        (lambda i, _: _between(i, _const(0, -1), _const(3, 4)), False),
        (lambda i, _: relax.op.maximum(i, _const(0)), False),
        (lambda i, _: relax.op.minimum(relax.op.minimum(i, _const(3)), _const(3)), False),
        (lambda i, j: _between(i, _const(0), j), False),
        (lambda i, _: relax.op.add(_between(i, _const(0), _const(3)), _const(1)), False),
        (lambda *_: relax.const(np.array([[0, 0], [3, 4]], np.int64), "int64"), True),
        (lambda *_: relax.const(np.array([[0, 0], [4, 4]], np.int64), "int64"), False),
        (lambda *_: relax.const(np.array([[0, -1]], np.int64), "int64"), False),
    ],
)
def test_only_constants_bound_an_index(make_index: Any, is_read: bool, tmp_path: Path) -> None:
    save_module(_gather(make_index), tmp_path)
    if is_read:
        load_module(tmp_path)
        return
    with pytest.raises(ModelFileError, match="indices that may lie outside"):
        load_module(tmp_path)


def test_a_region_that_may_be_no_number_is_refused(tmp_path: Path) -> None:
    def make(x: Any, rois: Any) -> Any:
        most = relax.const(np.array([1, 9, 9, 9, 9], np.float32))
        return relax.op.vision.roi_align(x, _between(rois, relax.const(np.zeros(5, np.float32)), most), (2, 2), 1.0, 2)

    save_module(module_of(Indexed(CASES["roi_align"].inputs, make)), tmp_path)
    with pytest.raises(ModelFileError, match="roi_align with indices"):
        load_module(tmp_path)


_X = ((4, 5), "float32")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda x: relax.op.strided_slice(x, [0], [90], [95], assume_inbound=True), "slice that checks no bound"),
        (lambda x: relax.op.nn.pad(x, [4, 0, 0, 0], "reflect"), "a reflection by"),
        (lambda x: relax.op.nn.pad(x, [0, 0, 1, 9], "reflect"), "a reflection by"),
        (lambda x: relax.op.nn.pad(x, [3, 3, 4, 4], "reflect"), ""),
        (lambda x: relax.op.strided_slice(x, [0], [90], [-95], [-1]), ""),
    ],
)
def test_constant_places_outside_are_refused(make: Any, says: str, tmp_path: Path) -> None:
    save_module(module_of(Indexed({"x": _X}, make)), tmp_path)
    if not says:
        load_module(tmp_path)
        return
    with pytest.raises(ModelFileError, match=says):
        load_module(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"hidden": 6', '"hidden": 3'),
        ('"hidden": 6', '"hidden": "x"'),
        ('"clip": 0.0', '"clip": "T.call_packed()"'),
        ('"clip": 0.0', '"clip": NaN'),
        ('"kind": "gru"', '"kind": "lstm"'),
        ('"sigmoid"', '"exec"'),
        ('"lengths"]', '"peephole"]'),
        ('"lengths"]', '"hidden"]'),
        ('"lengths"]', '"gates"]'),
        ('"packed_times": 0', '"packed_times": 2'),
        ('"reverse": [false, true]', '"reverse": []'),
    ],
)
def test_recurrent_layers_of_other_attributes_are_refused(old: str, new: str, tmp_path: Path) -> None:
    case = CASES["lengths of a recurrent layer"]
    save_module(canonicalize(module_of(case)), tmp_path)
    load_module(tmp_path)
    text, escaped = (tmp_path / IR_NAME).read_text(), [json.dumps(part)[1:-1] for part in (old, new)]
    assert escaped[0] in text
    (tmp_path / IR_NAME).write_text(text.replace(*escaped))
    with pytest.raises(ModelFileError, match=r"recurrent layer|hidden|clip"):
        load_module(tmp_path)
