"""Test inputs from .npy, .npz and CSV files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tvmflow.sources.data.input_files import read_inputs
from tvmflow.sources.data.npz_files import read_arrays
from tvmflow.support.errors import SourceError

ONE, TWO = [("x", (1, 2, 3))], [("ids", (1, 4)), ("mask", (1, 4))]


def test_arrays_of_one_input(tmp_path: Path) -> None:
    wanted = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.save(tmp_path / "a.npy", wanted)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(wanted))
    np.savez(tmp_path / "named.npz", x=wanted, other=wanted)
    np.savez(tmp_path / "any.npz", wanted)
    for name in ("a.npy", "fortran.npy", "named.npz", "any.npz"):
        found = read_inputs(tmp_path / name, ONE)
        assert found.keys() == {"x"} and np.array_equal(found["x"], wanted)


def test_rows_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufeffa,b,c,d,e,f\n1,2,3,4,5,6\n\n7,8,9,10,11,12\n", encoding="utf-8")
    found = read_inputs(path, ONE)["x"]
    assert found.dtype == np.int64 and np.array_equal(found, np.arange(1, 13).reshape(2, 2, 3))
    path.write_text("1,2,3,4,5,6e-1\n")
    assert read_inputs(path, ONE)["x"].dtype == np.float64


def test_several_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", ids=np.ones((2, 4), np.int64), mask=np.zeros((2, 4), np.int64))
    assert read_inputs(tmp_path / "a.npz", TWO).keys() == {"ids", "mask"}
    np.save(tmp_path / "a.npy", np.ones((2, 4)))
    with pytest.raises(SourceError, match="holds one array"):
        read_inputs(tmp_path / "a.npy", TWO)


class _Code:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("hacked"),))


def test_what_is_no_array_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("object.npy", np.array([_Code()], object), allow_pickle=True)
    np.savez("objects.npz", np.array([_Code()], object))
    np.savez("wrong.npz", y=np.ones(3), z=np.ones(3))
    np.save("cut.npy", np.ones((9, 2, 3)))
    Path("cut.npy").write_bytes(Path("cut.npy").read_bytes()[:-8])
    for name, data in {
        "text.npy": b"no array",
        "empty.npz": b"",
        "short.csv": b"1,2,3\n",
        "words.csv": b"a,b,c,d,e,f\n1,2,3,4,5,x\n",
        "names.csv": b"a,b,c,d,e,f\n",
        "bytes.csv": b"\xff\xfe1",
        "nul.csv": b"1,2,3,4,5,6\0\n",
    }.items():
        Path(name).write_bytes(data)
    Path("link.npy").symlink_to("/dev/zero")
    for suffix in (".npy", ".npz", ".csv"):
        os.mkfifo(f"pipe{suffix}")  # would hold its reader
    names = [path for path in sorted(tmp_path.iterdir()) if path.suffix in (".npy", ".npz", ".csv")]
    assert len(names) == 15
    for path in [*names, tmp_path / "none.npy", tmp_path / "none.npz"]:
        with pytest.raises(SourceError) as error:
            read_inputs(path, ONE)
        assert path.name in str(error.value)
    with pytest.raises(SourceError, match="a pipe, not a plain file"):
        read_arrays(Path("pipe.npz"), ("x",), 1 << 20)
    assert not Path("hacked").exists()
