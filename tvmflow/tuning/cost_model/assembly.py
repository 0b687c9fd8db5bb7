"""What the compiler made of a kernel: the loops of its assembly in which it multiplies and adds, counted by kind of
instruction.

x86-64 in AT&T's syntax and arm64, as LLVM prints them.
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
_DOTS = (
    ("dpbusd", 1.0),
    ("bfmmla", 1.0),
    ("mmla", 2.0),
    ("bfdot", 0.5),
    ("dot", 1.0),
    ("dpbf16ps", 0.5),
    ("dpwssd", 0.5),
    ("pmaddwd", 0.5),
)  # products for each byte of a register; the first that is part of the name
_JUMP = re.compile(r"j\w+|b(\.\w+)?|cbn?z|tbn?z")
_TARGET = re.compile(r"(\.L\w+)\s*$")
_REGISTER = re.compile(r"%([xyz])mm\d+|\b[vq](\d+)\b")
_STEP = re.compile(r"\$(-?\d{1,18}), (%\w+)")
_BYTES = {"x": 16, "y": 32, "z": 64}


@dataclass
class Loop:
    """An innermost loop. counts: instructions by kind (`multiply_add`, `load`, `store`, `vector`, `other`; `spill`:
    stores to the stack, among the others); chain: the most multiply-adds into one register; accumulators: registers
    that they add to; width: bytes of a register; products: of one multiply-add; trips: None where the code does not
    say.
    """

    counts: Counter[str] = field(default_factory=Counter)
    chain: int = 0
    accumulators: int = 0
    width: int = 16
    products: float = 4.0
    trips: int | None = None


def hot_loops(assembly: str) -> list[Loop]:
    """Return the innermost loops that multiply and add, those with the most first; a straight kernel is one loop.

    Where nothing is multiplied and added, as in pools, sums and comparisons of vectors count.
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
    added: Counter[str] = Counter()  # registers to which sums of pairs are added by an instruction of its own
    for name, operands in code[first : last + 1]:
        parts = operands.split(", ") if operands else []
        is_x86 = "%" in operands or name.startswith("v") or name.startswith("mov")
        memory = "(" in operands or "[" in operands
        if work.fullmatch(name) and _REGISTER.search(operands):
            loop.counts["multiply_add"] += 1
            if "pmaddwd" not in name:
                sums[parts[-1] if is_x86 else parts[0]] += 1
            loop.counts["load"] += memory
            kinds[next((each for kind, each in _DOTS if kind in name), 0.5 if ".8h" in operands else 0.25)] += 1
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
    loop.products = loop.width * max(kinds, key=lambda each: kinds[each], default=0.25)
    loop.trips = _trips(code, first, last)
    return loop


def _trips(code: list[tuple[str, str]], first: int, last: int) -> int | None:
    """Return how often a loop of x86-64 runs that counts a register from one constant to another; None for others."""
    for at in range(last - 1, first - 1, -1):
        name, operands = code[at]
        counted = _STEP.fullmatch(operands)
        if counted is None or not name.startswith(("add", "sub", "cmp")):
            continue
        amount, register = int(counted[1]), counted[2]
        start = _start(code[max(first - 16, 0) : first], register)
        if start is None or amount == 0:
            return None
        if not name.startswith("cmp"):
            return max(1, abs(start // amount))
        steps = [int(step[1]) for _, text in code[first:at] if (step := _STEP.fullmatch(text)) and step[2] == register]
        by = steps[-1] if steps else 1
        return max(1, (amount - start) // by) if by > 0 else None
    return None


def _start(before: list[tuple[str, str]], register: str) -> int | None:
    """Return the constant that a register holds behind these instructions."""
    for name, operands in reversed(before):
        if name.startswith("xor") and _same(operands, register):
            return 0
        moved = _STEP.fullmatch(operands) if name.startswith("mov") else None
        if moved is not None and _same(moved[2], register):
            return int(moved[1])
    return None


def _same(operands: str, register: str) -> bool:
    """Whether operands name a register, its 32-bit name included: %rbx and %ebx, %r8 and %r8d."""
    names = {register, register.replace("%r", "%e", 1), f"{register}d"}
    return any(part.strip() in names for part in operands.split(","))
