"""Count the instructions of a kernel's hot loops, by kind, in its assembly.

Reads x86-64 (AT&T syntax) and arm64 as LLVM prints them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_LABEL = re.compile(r"^(\.?\w[\w.$]*):")
_MULTIPLY_ADD = re.compile(
    r"v?(fn?madd|fmsub|pdpbusd|pdpwssd|dpbf16ps|pmaddwd)\w*|fmla|fmlal\d?|sdot|udot|usdot|s?smmla|ummla|usmmla|bfdot|bfmmla|smlal2?|umlal2?|sadalp|mla|vpmaddubsw"
)
_OTHER_WORK = re.compile(
    r"v(max|min|add|mul)[ps][sd]|vp(max|min|add)\w+|f(max|min)(nm)?|fcmg[te]|fadd|fmul|[su](max|min)|add"
)
_MACS_PER_BYTE = (
    ("dpbusd", 1.0),
    ("bfmmla", 1.0),
    ("mmla", 2.0),
    ("bfdot", 0.5),
    ("dot", 1.0),
    ("dpbf16ps", 0.5),
    ("dpwssd", 0.5),
    ("pmaddwd", 0.5),
)  # multiply-accumulates per byte of a register; the first name that matches
_JUMP = re.compile(r"j\w+|b(\.\w+)?|cbn?z|tbn?z")
_TARGET = re.compile(r"(\.L\w+)\s*$")
_REGISTER = re.compile(r"%([xyz])mm\d+|\b[vq](\d+)\b")
_STEP = re.compile(r"\$(-?\d{1,18}), (%\w+)")
_BYTES = {"x": 16, "y": 32, "z": 64}


@dataclass
class Loop:
    """An innermost loop.

    counts: instructions by kind (`multiply_add`, `load`, `store`, `vector`, `other`; `spill`: stores to the stack, also
    counted as stores). chain: most multiply-adds into one register. accumulators: registers that are added to. width:
    bytes of a register. macs: multiply-accumulates of one instruction. trips: trip count, None if it is not constant.
    """

    counts: Counter[str] = field(default_factory=Counter)
    chain: int = 0
    accumulators: int = 0
    width: int = 16
    macs: float = 4.0
    trips: int | None = None


def find_hot_loops(assembly: str) -> list[Loop]:
    """Return the innermost loops with multiply-adds, most multiply-adds first; a kernel without loops counts as one
    loop.

    A kernel without multiply-adds (pooling, sums) is judged by its vector arithmetic and comparisons instead.
    """
    lines = [line.split("#")[0].split("//")[0].rstrip() for line in assembly.splitlines()]
    code: list[tuple[str, str]] = []  # mnemonic, operands
    labels: dict[str, int] = {}
    for line in lines:
        if match := _LABEL.match(line):
            labels[match[1]] = len(code)
        elif line.startswith("\t") and not line.startswith("\t."):
            name, _, operands = line.strip().partition("\t")
            code.append((name, operands))
    spans = sorted(
        {
            (labels[target[1]], at)
            for at, (name, operands) in enumerate(code)
            if _JUMP.fullmatch(name) and (target := _TARGET.search(operands)) and labels.get(target[1], len(code)) <= at
        },
        key=lambda span: span[1] - span[0],
    )
    innermost: list[tuple[int, int]] = []
    for first, last in spans:
        if not any(first <= a and b <= last for a, b in innermost):
            innermost.append((first, last))
    spans = innermost or [(0, len(code) - 1)]
    loops = [_loop(code, first, last, _MULTIPLY_ADD) for first, last in spans]
    if not any(loop.counts["multiply_add"] for loop in loops):
        loops = [_loop(code, first, last, _OTHER_WORK) for first, last in spans]
    return sorted(
        (loop for loop in loops if loop.counts["multiply_add"]), key=lambda loop: -loop.counts["multiply_add"]
    )


def _loop(code: list[tuple[str, str]], first: int, last: int, work: re.Pattern[str]) -> Loop:
    loop, sums, kinds = Loop(), Counter[str](), Counter[float]()
    added: Counter[str] = Counter()  # accumulators of pmaddwd, which a separate vpaddd adds to
    for name, operands in code[first : last + 1]:
        parts = operands.split(", ") if operands else []
        is_x86 = "%" in operands or name.startswith("v") or name.startswith("mov")
        memory = "(" in operands or "[" in operands
        if work.fullmatch(name) and _REGISTER.search(operands):
            loop.counts["multiply_add"] += 1
            if "pmaddwd" not in name:
                sums[parts[-1] if is_x86 else parts[0]] += 1
            loop.counts["load"] += memory
            kinds[
                next((each for kind, each in _MACS_PER_BYTE if kind in name), 0.5 if ".8h" in operands else 0.25)
            ] += 1
        elif is_x86 and memory and not name.startswith(("lea", "prefetch", "nop")):
            kind = "store" if "(" in parts[-1] else "load"
            loop.counts[kind] += 1
            loop.counts["spill"] += kind == "store" and "%rsp" in parts[-1]
        elif memory and name.startswith(("ld", "st")):
            count = 2 if name.startswith(("ldp", "stp")) else 1
            kind = "load" if name.startswith("ld") else "store"
            loop.counts[kind] += count
            loop.counts["spill"] += count * (kind == "store" and "[sp" in operands)
        elif _REGISTER.search(operands):
            loop.counts["vector"] += 1
        elif not name.startswith(("nop", "prefetch")):
            loop.counts["other"] += 1
        if name in ("paddd", "vpaddd"):
            added[parts[-1]] += 1
        for match in _REGISTER.finditer(operands):
            loop.width = max(loop.width, _BYTES.get(match[1] or "", 16))
    sums = sums or added
    loop.chain, loop.accumulators = max(sums.values(), default=0), len(sums)
    loop.macs = loop.width * max(kinds, key=lambda each: kinds[each], default=0.25)
    loop.trips = _trips(code, first, last)
    return loop


def _trips(code: list[tuple[str, str]], first: int, last: int) -> int | None:
    """Return the trip count of an x86-64 loop that counts a register between two constants, None for other loops."""
    for at in range(last - 1, first - 1, -1):
        name, operands = code[at]
        counted = _STEP.fullmatch(operands)
        if counted is None or not name.startswith(("add", "sub", "cmp")):
            continue
        amount, register = int(counted[1]), counted[2]
        start = _initial_value(code[max(first - 16, 0) : first], register)
        if start is None or amount == 0:
            return None
        if not name.startswith("cmp"):
            return max(1, abs(start // amount))
        steps = [int(step[1]) for _, text in code[first:at] if (step := _STEP.fullmatch(text)) and step[2] == register]
        by = steps[-1] if steps else 1
        return max(1, (amount - start) // by) if by > 0 else None
    return None


def _initial_value(before: list[tuple[str, str]], register: str) -> int | None:
    """Return the constant that a register holds after these instructions, None if it is not constant."""
    for name, operands in reversed(before):
        if name.startswith("xor") and _names_register(operands, register):
            return 0
        move = _STEP.fullmatch(operands) if name.startswith("mov") else None
        if move is not None and _names_register(move[2], register):
            return int(move[1])
    return None


def _names_register(operands: str, register: str) -> bool:
    """Return whether operands name a register, also by its 32-bit name: %rbx and %ebx, %r8 and %r8d."""
    names = {register, register.replace("%r", "%e", 1), f"{register}d"}
    return any(part.strip() in names for part in operands.split(","))
