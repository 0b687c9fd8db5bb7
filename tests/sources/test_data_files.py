"""Test malicious and damaged data sets and labels: one clear error, bounded memory, nothing evaluated."""

from __future__ import annotations

import io
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
from tvmflow.sources.data import datasets, npz_files
from tvmflow.sources.data.labels import read_labels
from tvmflow.support.errors import SourceError, StoreError

FILES = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _npy(header: dict[str, Any] | str, data: bytes = b"", version: int = 1) -> bytes:
    text = (header if isinstance(header, str) else repr(header)).encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def _header(shape: tuple[int, ...], descr: Any = "<f4") -> dict[str, Any]:
    return {"descr": descr, "fortran_order": False, "shape": shape}


LABELS = _npy(_header((3,), "<i8"), np.arange(3).tobytes())
IMAGES = _npy(_header((3, 2, 2)), np.zeros(12, np.float32).tobytes())


def _zip(path: Path, images: bytes = IMAGES, labels: bytes = LABELS, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", labels)


@pytest.mark.parametrize("savez", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i2", ">f4", "?"])
def test_what_numpy_writes_is_read(tmp_path: Path, savez: Any, dtype: str) -> None:
    images = np.asfortranarray(np.arange(12).reshape(3, 2, 2) % 2).astype(dtype)
    savez(tmp_path / "d.npz", images=images, labels=np.arange(3), other=np.array(["text"]))
    samples = datasets.load_dataset("d.npz", tmp_path)
    assert (
        np.array_equal(samples.x[:, 0], images.astype(np.float32))
        and samples.y is not None
        and samples.y.tolist() == [0, 1, 2]
    )


def test_images_need_no_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", images=np.zeros((3, 2, 2)))
    samples = datasets.load_dataset("d.npz", tmp_path)
    assert samples.y is None and samples.x.shape == (3, 1, 2, 2)
    parts = datasets.split(samples, datasets.SplitSizes(1, 1, 0))
    assert parts.calibration.y is None


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (_npy(_header((1 << 46,))), "announces"),  # 256 TiB
        (_npy(_header((1 << 40, 1 << 40))), "announces"),
        (_npy(_header((-3, 2, 2))), "not real numbers"),
        (_npy(_header((3, 2, 2), "|O"), b"cos\nsystem\n(S'touch hacked'\ntR."), "not real numbers"),
        (_npy(_header((3, 2, 2), "<c8"), b"\0" * 96), "not real numbers"),
        (_npy(_header((3, 2, 2), "<U4"), b"\0" * 192), "not real numbers"),
        (_npy(_header((3, 2, 2), "<M8[s]"), b"\0" * 96), "not real numbers"),
        (_npy(_header((3, 2, 2), [("a", "<f4")]), b"\0" * 48), "not real numbers"),
        (_npy(_header((3, 2, 2), "|V1000000")), "not real numbers"),
        (_npy(_header((3, 2, 2)), b"\0" * 47), "announces"),
        (_npy(_header((3, 2, 2)), b"\0" * 49), "announces"),
        (_npy("__import__('os').system('touch hacked')"), "cannot be read"),
        (_npy("{" * 3000), "cannot be read"),
        (_npy("x" * 60_000), "cannot be read"),
        (_npy(_header((3, 2, 2)), b"\0" * 48, version=9), "version"),
        (b"", "cannot be read"),
        (b"\x80\x04cos\nsystem", "cannot be read"),
        (_npy(_header((3, 2, 2)), np.full(12, np.inf, np.float32).tobytes()), "not finite"),
        (_npy(_header((3, 2, 2)), np.full(12, np.nan, np.float32).tobytes()), "not finite"),
        (_npy(_header((3, 2, 2), "<f8"), np.full(12, 1e300).tobytes()), "not finite"),
        (_npy(_header((3,) + (1,) * 31)), "announces"),
    ],
)
def test_images_that_are_none(tmp_path: Path, images: bytes, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _zip(tmp_path / "d.npz", images)
    with pytest.raises(SourceError, match=says):
        datasets.load_dataset("d.npz", tmp_path)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "labels",
    [
        np.array([0, 1, -1]),
        np.array([0, 1, 2**63], np.uint64),
        np.array([0.0, np.inf, 1.0]),
        np.array([True, False, True]),
        np.arange(4),
    ],
)
def test_labels_that_are_no_class_numbers(tmp_path: Path, labels: np.ndarray[Any, Any]) -> None:
    np.savez(tmp_path / "d.npz", images=np.zeros((3, 2, 2)), labels=labels)
    with pytest.raises(SourceError):
        datasets.load_dataset("d.npz", tmp_path)


def test_encrypted_and_foreign_compression(tmp_path: Path) -> None:
    _zip(tmp_path / "d.npz")
    whole = (tmp_path / "d.npz").read_bytes()
    for at, value in ((6, 1), (8, 99)):  # flags and method in the local header; two more bytes into the directory
        data = bytearray(whole)
        for start in (whole.index(b"PK\x03\x04"), whole.index(b"PK\x01\x02") + 2):
            data[start + at] = value
        (tmp_path / "d.npz").write_bytes(bytes(data))
        with pytest.raises(SourceError, match="cannot be read"):
            datasets.load_dataset("d.npz", tmp_path)
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        _zip(tmp_path / "d.npz", compression=method)
        with pytest.raises(SourceError, match="compressed by method"):
            datasets.load_dataset("d.npz", tmp_path)


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "MAX_DATASET_BYTES", 1 << 20)
    _zip(tmp_path / "d.npz", _npy(_header((3, 1 << 10, 1 << 10)), b"\0" * (12 << 20)), compression=zipfile.ZIP_DEFLATED)
    assert (tmp_path / "d.npz").stat().st_size < 1 << 16
    with pytest.raises(SourceError, match="unpacks to"):
        datasets.load_dataset("d.npz", tmp_path)
    with pytest.raises(SourceError, match="random inputs"):
        datasets.random_inputs(1000, [datasets.RandomInput((3, 224, 224))], 0)
    monkeypatch.setattr(datasets, "MAX_DATASET_BYTES", 1 << 31)
    monkeypatch.setattr(npz_files, "_ALWAYS_BYTES", 1 << 20)
    with pytest.raises(SourceError, match="store them unpacked"):  # small files that take much memory
        datasets.load_dataset("d.npz", tmp_path)


@FILES
@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=5), st.integers(0, 2000))
def test_altered_data_sets_are_read_or_one_clear_error(tmp_path: Path, flips: list[tuple[int, int]], cut: int) -> None:
    _zip(tmp_path / "d.npz")
    data = bytearray((tmp_path / "d.npz").read_bytes())
    for at, value in flips:
        data[at % len(data)] = value
    (tmp_path / "d.npz").write_bytes(bytes(data[: len(data) - (cut % len(data) if cut % 2 else 0)]))
    try:
        datasets.load_dataset("d.npz", tmp_path)
    except SourceError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        "{1e999: 'a'}",
        '{"Infinity": "a"}',
        "{float('inf'): 'a'}",
        "{0.0: 'a'}",
        "{True: 'a', 0: 'b'}",
        '{"0": "a", "00": "b"}',
        '{"1e9": "a"}',
        "{(0,): 'a'}",
        "{[0]: 'a'}",
        "[Infinity]",
        "[1e999]",
        '{"-0": "a"}',
        "['a', b'c']",
        "{0: 'a'" + ", 1" * 2000,
        "[" * 100_000,
        "{'a'" * 500,
        '{"' + "9" * 5000 + '": "a"}',
        "[" + "9" * 5000 + "]",
        '["\\u001b[2J"]',
        "a\x00b",
        "-" * 9000 + "1",
        "[" + "-" * 9000 + "1]",
    ],
)
def test_labels_of_every_odd_kind_are_one_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels").write_text(text)
    with pytest.raises(SourceError) if text[0] in "[{a" else _nothing():
        read_labels(tmp_path / "labels")


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...


def test_a_labels_file_that_is_a_folder_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        read_labels(tmp_path)
    (tmp_path / "labels").write_text("a\n" * 3_000_000)
    with pytest.raises(SourceError, match="6000000 bytes"):
        read_labels(tmp_path / "labels")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers(-1, 3) | st.text(max_size=3) | st.floats(), inner, max_size=3)
    ),
    max_leaves=10,
)


@FILES
@given(VALUES, st.booleans())
def test_any_literal_is_labels_or_one_clear_error(tmp_path: Path, value: Any, as_json: bool) -> None:
    try:
        text = json.dumps(value) if as_json else repr(value)
        (tmp_path / "labels").write_text(text, encoding="utf-8")
    except (TypeError, UnicodeEncodeError, ValueError):
        return
    try:
        names = read_labels(tmp_path / "labels")
    except SourceError:
        return
    assert all(isinstance(name, str) and name.isprintable() for name in names)


def test_samples_of_ours_need_no_unpickling(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([{"a": 1}], dtype=object))
    (tmp_path / "s.npz").write_bytes(buffer.getvalue())
    with pytest.raises(StoreError, match="object"):
        datasets.Samples.load(tmp_path / "s.npz")
