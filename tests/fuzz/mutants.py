"""Mutate files for every reader, and read them: `python -m tests.fuzz.mutants COUNT [--seed N] [--keep FOLDER]`.

Readers of ours run in this process; those of a framework, and TVM's of IR, in a fork of it; every so many of the
frameworks' in a real sandbox. A mutant that ends in anything but a result or one of our errors, takes longer than
_TIMEOUT_S, or leaves a file is kept in the folder and named; a reader in a fork may crash, which a sandbox turns into
an error, but TVM's of IR may not.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY
from tests.fuzz.fuzz_boundary import mutate_json, targets
from tests.fuzz.readers import Reader, json_of, model_files, our_readers
from tvmflow.frontends.operator_check import check_operators
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.sandbox.process import Policy, run_in_sandbox
from tvmflow.support.errors import TvmflowError

CORPUS = REPOSITORY / "tests" / "fuzz" / "corpus"
_TIMEOUT_S = 30
_INTERESTING = [
    value.to_bytes(size, "little") for size in (1, 2, 4, 8) for value in (0, 1, (1 << 8 * size) - 1, 1 << 8 * size - 1)
]
_IN_SANDBOX = 100  # every so many of a framework's mutants
_TOLD = 250  # so often
_SHARES = {"ours": 70, "boundary": 25, "frameworks": 5}


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return a file with some of it changed: a member of an archive, a part of JSON, or bytes anywhere."""
    if data[:2] == b"PK" and chance.random() < 0.7:
        return _mutate_archive(data, chance)
    value = json_of(data)
    if value is not None and chance.random() < 0.7:
        return json.dumps(mutate_json(value, chance)).encode()
    return _mutate_bytes(data, chance)


def _mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(changed) + 1)
        if chance.random() < 0.5:
            at = min(at, chance.randrange(600))
        deed = chance.randrange(6)
        if deed == 0:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif deed == 1:
            part = chance.choice(_INTERESTING)
            changed[at : at + len(part)] = part
        elif deed == 2:
            del changed[at : at + chance.choice((1, 2, 8, 100))]
        elif deed == 3:
            changed[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 32))))
        elif deed == 4:
            start = chance.randrange(len(changed) + 1)
            changed[at:at] = changed[start : start + chance.choice((4, 40, 400))]
        elif changed and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.1 else changed)


def _mutate_archive(data: bytes, chance: random.Random) -> bytes:
    """Mutate one member of a zip archive, which is written again."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as given, zipfile.ZipFile(made, "w") as archive:
        names = given.namelist()
        chosen = chance.choice(names)
        for name in names:
            content = given.read(name)
            if name == chosen:
                if chance.random() < 0.1:
                    continue
                content = mutate(content, chance)
            archive.writestr(name if chance.random() < 0.98 else f"../{name}", content)
    return made.getvalue()


@dataclass
class Run:
    """Counts outcomes by reader, and keeps the mutants of failures in a folder."""

    work: Path
    keep: Path
    found: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, int]:
        """Return how often each outcome was, over all readers."""
        total = Counter[str]()
        for name, count in self.found.items():
            total[name.rpartition(": ")[2]] += count
        return dict(total)

    def read(
        self, name: str, data: bytes, read: Callable[[], Any], *, forks: bool = False, may_crash: bool = True
    ) -> None:
        """Read a mutant, and count how that ended."""
        outcome = _in_a_fork(read) if forks else _here(read)
        left = [path.name for path in self.work.rglob("*") if path.is_file()]
        if left and not forks:  # a sandbox removes what a framework left in its own folder
            outcome = f"failed: left {left[:3]}"
        for path in self.work.rglob("*"):
            path.unlink() if path.is_file() else None
        if outcome == "crashed" and not may_crash:
            outcome = "failed: crashed"
        self.found[f"{name}: {outcome.partition(' ')[0].rstrip(':')}"] += 1
        if outcome.startswith("failed"):
            number = len(self.failures)
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{number}.{name.replace(' ', '-')}").write_bytes(data)
            self.failures.append(f"{number}. {name}: {outcome}")
            print(self.failures[-1], file=sys.stderr, flush=True)


def _here(read: Callable[[], Any]) -> str:
    try:
        with _limit():
            read()
    except TvmflowError as error:
        return _checked(error)
    except TimeoutError:
        return "failed: too long"
    except BaseException as error:  # what this looks for
        return f"failed: {type(error).__name__}: {error}"
    return "read"


def _checked(error: TvmflowError) -> str:
    """Return how a refusal counts: its text can be shown."""
    text = str(error)
    return "refused" if text.strip() and all(c.isprintable() or c in "\n\t" for c in text) else f"failed: {text!r}"


@contextmanager
def _limit() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, _TIMEOUT_S)  # of processor time: the machine may be busy
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _in_a_fork(read: Callable[[], Any]) -> str:
    """Return how reading ended in a process of its own, which may crash."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1), os.dup2(silent, 2)
        try:
            os.write(writer, _here(read).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + 20 * _TIMEOUT_S  # for code that no signal interrupts
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
            os.close(reader)
            return "failed: too long"
        time.sleep(0.002)
    with os.fdopen(reader, "rb") as said:
        text = said.read().decode("utf-8", "replace")
    return "crashed" if os.WIFSIGNALED(ended[1]) else text or "failed: said nothing"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("mutants"))
    parser.add_argument("--kinds", nargs="+", choices=list(_SHARES), default=list(_SHARES))
    given = parser.parse_args(arguments)
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("seeds", "work", "boundary", "temporary"):
            (folder / part).mkdir()
        tempfile.tempdir = str(folder / "work")
        run = Run(folder / "work", given.keep)
        try:
            _run(run, folder, given.count, random.Random(given.seed), given.kinds)
        finally:
            tempfile.tempdir = before
    for line in run.failures:
        print(line)
    print(json.dumps(dict(sorted(run.found.items()))))
    return 1 if run.failures else 0


def _run(run: Run, folder: Path, count: int, chance: random.Random, kinds: list[str]) -> None:
    ours = our_readers(folder / "seeds") if "ours" in kinds else {}
    boundary = targets(folder / "boundary")
    (folder / "models").mkdir()
    models = model_files(folder / "models") if "frameworks" in kinds else {}
    work = folder / "read"
    work.mkdir()

    def from_file(name: str, reader: Reader, data: bytes) -> None:
        path = work / reader.name
        path.write_bytes(data)
        run.read(name, data, lambda: reader.read(path))
        path.unlink()

    for name, reader in ours.items():
        for data in reader.files:
            from_file(name, reader, data)
        if run.found[f"{name}: read"] < len(reader.files):
            run.failures.append(f"{name}: a valid file is refused")  # mutants of it would test little
    for path in sorted(CORPUS.glob("*/*")) if ours else ():
        from_file(path.parent.name.replace("-", " "), ours[path.parent.name.replace("-", " ")], path.read_bytes())
    turns = {
        kind: itertools.cycle(names) for kind, names in (("ours", ours), ("boundary", boundary), ("models", models))
    }
    for name, (file, data) in models.items():
        _read_model(run, work / file, name, data)
        if not run.found[f"{name}: read"]:
            run.failures.append(f"{name}: a valid file is refused")
    for number in range(count):
        if number % _TOLD == 0:
            print(f"{number} of {count}: {json.dumps(run.summary())}", file=sys.stderr, flush=True)
        kind = chance.choices(kinds, [_SHARES[one] for one in kinds])[0]
        if kind == "ours":
            name = next(turns[kind])
            from_file(name, ours[name], mutate(chance.choice(ours[name].files), chance))
        elif kind == "boundary":
            name, own = next(turns[kind]), random.Random(chance.randrange(1 << 30))
            run.read(name, b"", lambda name=name, own=own: boundary[name](own), forks=name == "ir", may_crash=False)
        else:
            name = next(turns["models"])
            file, data = models[name]
            _read_model(run, work / file, name, mutate(data, chance), number % _IN_SANDBOX == 0)


def _read_model(run: Run, path: Path, framework: str, data: bytes, in_sandbox: bool = False) -> None:
    work, name = path.parent, path.name
    path.write_bytes(data)
    inputs = [{"name": "x", "shape": [1, 1, 8, 8], "dtype": "float32"}]
    arguments = {"folder": str(work), "framework": framework.replace("torchscript", "torch"), "file": name}
    arguments |= {"inputs": inputs, "fixed": []}
    if in_sandbox:
        policy = Policy(120.0, reads=(path,))
        function = f"{check_operators.__module__}:{check_operators.__name__}"
        run.read(f"{framework} in a sandbox", data, lambda: run_in_sandbox(function, arguments, policy))
    else:
        specs = (TensorSpec("x", (1, 1, 8, 8), "float32"),)
        source = SourceDescription(str(arguments["framework"]), None, name, specs)
        run.read(framework, data, lambda: load_source(work, source).to_relax(), forks=True)
    path.unlink()


if __name__ == "__main__":
    sys.exit(main())
