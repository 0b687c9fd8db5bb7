"""Estimate the cycles of executed blocks of instructions by LLVM's scheduling models (llvm-mca)."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_ITERATIONS = 20  # of a block, whose cycles without the start are those of half of them more
_SHARE = 0.999  # of the executed instructions, whose blocks are estimated; the rest has their cycles an instruction
_TOOLS = ("19", "20", "18", "")  # versions of LLVM, by preference
# Of a core without a model of its own: the one that LLVM has for the same or the next design.
MODELS = {
    "cortex-a53": "cortex-a53",
    "cortex-a55": "cortex-a55",
    "cortex-a76": "neoverse-n1",
    "cortex-x1": "neoverse-v1",
    "neoverse-n1": "neoverse-n1",
}


@dataclass(frozen=True)
class Block:
    """Instructions without a branch between them. count: how often they ran."""

    count: int
    instructions: int
    code: bytes

    @property
    def executed(self) -> int:
        return self.count * self.instructions


@dataclass(frozen=True)
class Estimate:
    """cycles: without what caches miss; share: of the executed instructions that the model knows."""

    cycles: float
    instructions: int
    share: float


def read_blocks(file: Path) -> list[Block]:
    """Return the blocks of a file of bench/emulator/blocks.c."""
    rows = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return [Block(int(count), int(instructions), bytes.fromhex(code)) for count, instructions, code in rows]


def estimate(blocks: Sequence[Block], triple: str, cpu: str) -> Estimate:
    """Return the cycles of blocks on a core of LLVM's. Raises RuntimeError without LLVM's tools."""
    total = sum(one.executed for one in blocks)
    most = sorted(blocks, key=lambda one: -one.executed)
    ends = itertools.accumulate(one.executed for one in most)
    chosen = [one for one, end in zip(most, ends, strict=True) if end - one.executed < _SHARE * total]
    known = [(one, text) for one in chosen if (text := _disassembled(one, triple))]
    each = _cycles([text for _, text in known], triple, cpu)
    found = [(one, cycles) for (one, _), cycles in zip(known, each, strict=True) if cycles is not None]
    seen = sum(one.executed for one, _ in found)
    if not seen:
        raise RuntimeError(f"llvm-mca knows no block for {cpu}")
    cycles = sum(one.count * cycles for one, cycles in found)
    return Estimate(cycles * total / seen, total, seen / total)


def _tool(name: str) -> str:
    found = next((path for version in _TOOLS if (path := shutil.which(f"{name}-{version}".rstrip("-")))), None)
    if found is None:
        raise RuntimeError(f"no {name} of LLVM 18 to 20 on PATH: apt-get install llvm-19")
    return found


@functools.cache
def _disassembled(block: Block, triple: str) -> tuple[str, ...]:
    """Return the instructions of a block as text; none if not all are known."""
    command = [_tool("llvm-mc"), "--disassemble", f"--triple={triple}"]
    command += ["--mattr=+all"] if triple.startswith("aarch64") else []
    line = " ".join(f"0x{byte:02x}" for byte in block.code)
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
    text = [one.strip() for one in done.stdout.splitlines() if one.strip() and not one.strip().startswith(".")]
    return tuple(text) if len(text) == block.instructions else ()


def _cycles(texts: Sequence[Sequence[str]], triple: str, cpu: str) -> list[float | None]:
    """Return the cycles of one iteration of each text in a loop, None where the model lacks an instruction."""
    lines = []
    for at, text in enumerate(texts):
        lines += [f"# LLVM-MCA-BEGIN {at}", *text, f"# LLVM-MCA-END {at}"]
    command = [
        _tool("llvm-mca"),
        f"--mtriple={triple}",
        f"--mcpu={cpu}",
        "--json",
        "--skip-unsupported-instructions=any",
    ]
    command += ["--all-views=false", "--summary-view"]
    counts = []
    for iterations in (_ITERATIONS, 2 * _ITERATIONS):
        done = subprocess.run(
            [*command, f"--iterations={iterations}"],
            input="\n".join([*lines, ""]),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"llvm-mca ends with {done.returncode}: {done.stderr.strip()[-300:]}")
        counts.append(_cycles_by_region(done.stdout))
    few, many = counts
    return [
        (many[str(at)] - few[str(at)]) / _ITERATIONS if str(at) in few and str(at) in many else None
        for at in range(len(texts))
    ]


def _cycles_by_region(text: str) -> dict[str, int]:
    regions = json.loads(text)["CodeRegions"]
    return {one["Name"]: int(one["SummaryView"]["TotalCycles"]) for one in regions if "SummaryView" in one}
