"""Compile our own C sources once per command, sources and compiler; check what is reused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvmflow.support.errors import StageError
from tvmflow.toolchain.compiled_objects import compile_once
from tvmflow.toolchain.compilers import Command

GCC = Command(("gcc",))


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TVMFLOW_CACHE", str(tmp_path / "cache"))
    return []


def _compile(built: list[str], compiler: Command = GCC, option: str = "-O2", sources: str = "digest") -> bytes:
    def build(path: Path) -> None:
        built.append(option)
        path.write_bytes(f"{compiler.words} {option} {sources}".encode())

    return compile_once(compiler, [option, "-c", "x.c"], sources, ".o", build).read_bytes()


def test_the_same_request_is_built_once_and_any_other_again(built: list[str]) -> None:
    assert _compile(built) == _compile(built) and len(built) == 1
    others = [_compile(built, option="-O3"), _compile(built, sources="other"), _compile(built, Command(("g++",)))]
    assert len(built) == 4 and len({*others, _compile(built)}) == 4 and len(built) == 4


def test_a_damaged_file_is_built_again(built: list[str], tmp_path: Path) -> None:
    sound = _compile(built)
    [kept] = (tmp_path / "cache" / "compiled").glob("*.o")
    kept.write_bytes(b"torn")
    assert _compile(built) == sound and len(built) == 2
    assert [path.read_bytes() for path in (tmp_path / "cache" / "compiled").glob("*.o")] == [sound]


def test_a_build_that_fails_leaves_nothing(built: list[str], tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        path.write_bytes(b"half")
        raise StageError("gcc refuses it")

    with pytest.raises(StageError, match="refuses"):
        compile_once(GCC, ["-c", "x.c"], "digest", ".o", refuse)
    assert not [*(tmp_path / "cache" / "compiled").iterdir()]
    assert _compile(built)


def test_a_cache_that_cannot_be_written_to_is_replaced(built: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    assert _compile(built) == _compile(built) and len(built) == 1
