"""Mutate what a sandbox may leave or reply, and read it: `python -m tests.fuzz.fuzz_boundary SECONDS [SEED]`.

IR, weights, arrays, facts and replies, from valid ones. Prints how many were read, refused, or ended the process, which
only TVM's reader of IR does; ends with an error for anything but our own errors.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.ir.modules import calling, kernel_of, small_module
from tvmflow.evaluation.agreement import Agreement
from tvmflow.evaluation.conditioning import write_conditioning
from tvmflow.evaluation.imported_files import check_imported
from tvmflow.frontends.source_model import OutputSpec, write_outputs
from tvmflow.ir.relax.serialization import IR_NAME, WEIGHTS_NAME, load_module, load_others, save_module
from tvmflow.sandbox.process import Policy, Sandbox
from tvmflow.support.errors import TvmflowError
from tvmflow.support.files import load_arrays, save_arrays
from tvmflow.support.json_values import to_json

_ODD = (None, True, -1, 0, 1, 2, 7, 1 << 31, 1 << 62, 1e300, "", "float32", "relax.add", "a" * 300, "\x1b[2J", [], {})


def mutate_json(value: Any, chance: random.Random) -> Any:
    """Return JSON with one to three of its parts changed, moved, doubled or removed."""
    value = json.loads(json.dumps(value))
    for _ in range(chance.randint(1, 3)):
        places = list(_places(value))
        if not places:
            return chance.choice(_ODD)
        holder, key = chance.choice(places)
        other_holder, other_key = chance.choice(places)
        deed = chance.randrange(5)
        if deed == 0:
            del holder[key]
        elif deed == 1:
            holder[key] = other_holder[other_key] if other_holder is not holder else chance.choice(_ODD)
        elif deed == 2 and isinstance(holder[key], int):
            holder[key] += chance.choice((-2, -1, 1, 2, 40))
        elif deed == 3 and isinstance(holder, list):
            holder.insert(key, holder[key])
        else:
            holder[key] = chance.choice(_ODD)
        try:
            value = json.loads(json.dumps(value))  # no value within itself
        except ValueError:
            return []
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(changed), 600))
        changed[at] = chance.randrange(256)
    return bytes(changed[: len(changed) - chance.choice((0, 0, 0, 1, 40))])


def targets(folder: Path) -> dict[str, Callable[[random.Random], Any]]:
    """Return name -> function that mutates one kind of thing and reads it."""
    irs = []
    for module in (small_module(), calling(kernel_of("T.if_then_else(1 <= v, a[v - 1, w], T.float32(0))"))):
        save_module(module, folder, {"small": small_module(0.5)})
        irs.append((json.loads((folder / IR_NAME).read_text()), (folder / WEIGHTS_NAME).read_bytes()))
    save_arrays(folder / "reference.npz", golden=(np.ones((2, 3), np.float32),), evaluation=(np.ones(4, np.int8),))
    arrays = (folder / "reference.npz").read_bytes()
    outputs = [OutputSpec("y", (1, 3), "float32")]
    facts = {"golden": to_json(Agreement(1.0, 0.0, 0.0, 99.0, 1.0, 4)), "outputs": to_json(outputs)}
    facts |= {"noise": [], "warnings": []}

    def read_ir(chance: random.Random) -> None:
        graph, weights = chance.choice(irs)
        (folder / IR_NAME).write_text(json.dumps(mutate_json(graph, chance)))
        (folder / WEIGHTS_NAME).write_bytes(weights)
        load_module(folder)
        load_others(folder)

    def read_weights(chance: random.Random) -> None:
        graph, weights = chance.choice(irs)
        (folder / IR_NAME).write_text(json.dumps(graph))
        (folder / WEIGHTS_NAME).write_bytes(mutate_bytes(weights, chance))
        load_module(folder)

    def read_arrays(chance: random.Random) -> None:
        (folder / "reference.npz").write_bytes(mutate_bytes(arrays, chance))
        load_arrays(folder / "reference.npz", "golden")

    def read_facts(chance: random.Random) -> None:
        (folder / "reference.npz").write_bytes(arrays)
        write_outputs(folder, outputs)
        write_conditioning(folder, (), ())
        name = chance.choice(("outputs.json", "conditioning.json", "import.json", ""))
        (folder / "import.json").write_text(json.dumps(facts))
        if name:
            (folder / name).write_text(json.dumps(mutate_json(json.loads((folder / name).read_text()), chance)))
        check_imported(folder, facts if name else mutate_json(facts, chance))

    def read_reply(chance: random.Random) -> None:
        event = chance.choice(
            (
                {"reply": {"a": 1}},
                {"error": {"type": "ModelFileError", "found": "x", "expected": "y", "hint": ""}},
                {"progress": ["loading", 0, 4]},
                {"held": ["limits"]},
                {"broke": "KeyError", "at": "a"},
            )
        )
        line = json.dumps(mutate_json(event, chance)).encode()
        Replies(mutate_bytes(line, chance) if chance.random() < 0.3 else line).ask()

    return {"ir": read_ir, "weights": read_weights, "arrays": read_arrays, "facts": read_facts, "reply": read_reply}


class Replies(Sandbox):
    """A sandbox whose process wrote these bytes, and ended."""

    def __init__(self, data: bytes) -> None:
        self.policy, self.held, self._group, self._unread = Policy(5.0), [], None, b""
        self._own = Path("/nonexistent")
        self._replies, writer = os.pipe()
        os.write(writer, data + b"\n")
        os.close(writer)
        self._process = subprocess.Popen(["/bin/true"])

    def ask(self) -> Any:
        try:
            return self._ask(None, lambda *_: None)
        finally:
            os.close(self._replies)


def _in_a_fork(read: Callable[[random.Random], Any], seed: int) -> str:
    """Return how reading ended in a process of its own, since TVM's own reader and checks can crash."""
    pid = os.fork()
    if pid == 0:
        try:
            read(random.Random(seed))
            os._exit(0)
        except TvmflowError:
            os._exit(3)
        finally:
            os._exit(4)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return "crashed"
    if os.WEXITSTATUS(status) == 4:
        raise AssertionError(f"another error for seed {seed}")
    return "refused" if os.WEXITSTATUS(status) else "read"


def main(seconds: float, seed: int) -> int:
    chance, found = random.Random(seed), Counter[str]()
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        kinds = targets(Path(folder))
        while time.monotonic() < deadline:
            name = chance.choice(list(kinds))
            if name == "ir":
                found[f"ir {_in_a_fork(kinds[name], chance.randrange(1 << 30))}"] += 1
                continue
            try:
                kinds[name](chance)
                found[f"{name} read"] += 1
            except TvmflowError:
                found[f"{name} refused"] += 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
