"""Test malicious, truncated and oversized model files of every format: one clear error, no code run, bounded memory."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.fuzz.seeds import params_bytes, symbol_json
from tvmflow.frontends.mxnet.files import read_params, read_symbol
from tvmflow.frontends.mxnet.frontend import import_symbol
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.support.errors import ModelFileError, TvmflowError, UnsupportedOperatorError

FILES = settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _describe(framework: str, file: str, shape: tuple[int, ...] = (1, 1, 8, 8)) -> SourceDescription:
    return SourceDescription(framework, None, file, one_input("input", shape))


# -- MXNet ------------------------------------------------------------------------------------------------------------


def test_every_version_of_the_array_format_is_read(tmp_path: Path) -> None:
    arrays = {"arg:w": np.arange(6, dtype=np.float32).reshape(2, 3), "aux:m": np.array([1, 2], np.int64)}
    for version in (0, 1, 2, 3):
        (tmp_path / "p").write_bytes(params_bytes(arrays, version))
        read = read_params(tmp_path / "p")
        assert set(read) == {"w", "m"} and np.array_equal(read["w"], arrays["arg:w"]) and read["m"].dtype == np.int64


@FILES
@given(cut=st.integers(0, 300), flips=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4))
def test_torn_and_altered_mxnet_parameters(tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(params_bytes({"arg:w": np.ones((2, 3), np.float32), "aux:m": np.ones(2, np.float32)}, 2))
    for at, value in flips:
        data[at % len(data)] = value
    (tmp_path / "p").write_bytes(bytes(data[: len(data) - cut % len(data)]))
    try:
        read_params(tmp_path / "p")
    except ModelFileError:
        pass


@pytest.mark.parametrize(
    "announced",
    [struct.pack("<QQQ", 0x112, 0, 2**60), struct.pack("<QQQIiIqq", 0x112, 0, 1, 0xF993FAC9, 0, 2, 2**31, 2**31)],
)
def test_announced_sizes_are_not_believed(tmp_path: Path, announced: bytes) -> None:
    (tmp_path / "p").write_bytes(announced + b"\0" * 64)
    with pytest.raises(ModelFileError, match="left"):
        read_params(tmp_path / "p")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 500) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["nodes", "heads", "op", "name", "inputs", "attrs"]), inner, max_size=5)
    ),
    max_leaves=20,
)


@FILES
@given(JSON)
def test_any_json_is_a_symbol_or_one_clear_error(tmp_path: Path, value: Any) -> None:
    (tmp_path / "s").write_text(json.dumps(value))
    try:
        read_symbol(tmp_path / "s")
    except ModelFileError:
        pass


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"nodes": [], "heads": []}', '{"nodes": [{"op": "null"}], "heads": [[0,0,0]]}']
)
def test_damaged_symbols(tmp_path: Path, text: str) -> None:
    (tmp_path / "s").write_text(text)
    with pytest.raises(ModelFileError, match="not an MXNet symbol"):
        read_symbol(tmp_path / "s")


def test_a_cycle_in_a_symbol_is_refused(tmp_path: Path) -> None:
    text = symbol_json([("null", "data", {}, []), ("relu", "a", {}, [2]), ("relu", "b", {}, [1])], 2)
    (tmp_path / "s").write_text(text)
    with pytest.raises(ModelFileError, match="legal: 0 to 0"):
        read_symbol(tmp_path / "s")


def test_missing_mxnet_operators_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "s").write_text(
        symbol_json([("null", "data", {}, []), ("Warp", "a", {}, [0]), ("Weft", "b", {}, [1])], 2)
    )
    with pytest.raises(UnsupportedOperatorError, match="Warp, Weft"):
        import_symbol(read_symbol(tmp_path / "s"), {}, "data", (1, 3))


ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        ["kernel", "stride", "pad", "num_filter", "num_group", "axis", "shape", "p", "act_type", "slope", "dim"]
    ),
    st.sampled_from(
        ["(1, 1)", "(-1, 2)", "()", "(", "0", "-7", "9999999999999", "nan", "relu", "__import__('os')", "None"]
    ),
    max_size=4,
)


@FILES
@given(
    op=st.sampled_from(
        [
            "Convolution",
            "Pooling",
            "FullyConnected",
            "Reshape",
            "Activation",
            "Concat",
            "mean",
            "slice_axis",
            "LRN",
            "BatchNorm",
        ]
    ),
    attrs=ATTRIBUTES,
)
def test_absurd_attributes_never_raise_anything_else(tmp_path: Path, op: str, attrs: dict[str, str]) -> None:
    nodes = [("null", "data", {}, []), ("null", "w", {}, []), (op, "a", attrs, [0, 1])]
    (tmp_path / "s").write_text(symbol_json(nodes, 2))
    try:
        import_symbol(read_symbol(tmp_path / "s"), {"w": np.ones((4, 3, 1, 1), np.float32)}, "data", (1, 3, 8, 8))
    except TvmflowError:
        pass


# -- Torn files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.pt2", "model.torchscript", "model.tflite", "model.zip"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\0\0\0\0TFL3", b"\x18\0\0\0TFL3" + b"\xff" * 200])
def test_torn_files_of_every_kind(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    framework = "tensorflow" if name in ("model.tflite", "model.zip") else "torch"
    with pytest.raises(ModelFileError):
        load_source(tmp_path, _describe(framework, name))


def test_a_zip_that_leaves_its_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("../outside", b"x")
    with pytest.raises(ModelFileError, match=r"the name '\.\./outside'"):
        load_source(tmp_path, _describe("tensorflow", "model.zip"))
    assert not (tmp_path.parent / "outside").exists()
