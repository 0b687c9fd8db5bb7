"""Instructions of AVX-512 on 16 values of float32, and polynomials of pieces by them."""

from __future__ import annotations

from typing import Any

from tvm import tirx

WIDE = "float32x16"
_AS_SET = 4  # the rounding that the processor is set to
_SMALLER_SIZE = 0x0A  # the operand of the smaller size, without its sign
FLOOR = 0x01  # rounding of `remainder`


def scale(value: Any, exponent: Any) -> Any:
    """Return value * 2**floor(exponent)."""
    return _masked("scalef", value, exponent)


def remainder(value: Any, rounding: int) -> Any:
    """Return what values exceed their rounded ones by; infinities give 0.

    rounding: FLOOR, or 0 for the nearest; in bits 4 to 7 the binary digits behind the point.
    """
    return _masked("reduce", value, tirx.const(rounding, "int32"))


def size_up_to(value: Any, end: float) -> Any:
    """Return the smaller of |value| and an end, the end for NaN."""
    return _masked("range", value, tirx.const(end, WIDE), tirx.const(_SMALLER_SIZE, "int32"))


def piecewise(size: Any, pieces: tuple[tuple[float, ...], ...], digits: int) -> Any:
    """Return the polynomials of 16 pieces, coefficients lowest first, at numbers from 0 to below 15.5 pieces.

    Piece k is around k / 2**digits, from where its polynomial counts. One instruction takes the coefficient of each
    lane's piece.
    """
    rest, piece = tirx.Var("rest", WIDE), tirx.Var("piece", "int32x16")

    def coefficients(power: int) -> Any:
        table = tirx.Shuffle([tirx.const(row[power], "float32") for row in pieces], list(range(len(pieces))))
        return tirx.call_llvm_pure_intrin(WIDE, "llvm.x86.avx512.permvar.sf.512", table, piece)

    highest = len(pieces[0]) - 1
    found = coefficients(highest)
    for power in reversed(range(highest)):
        found = found * rest + coefficients(power)
    nearest = tirx.const(
        1.5 * 2.0 ** (23 - digits), WIDE
    )  # added, it leaves the number of the piece in the lowest bits
    found = tirx.Let(piece, tirx.reinterpret("int32x16", size + nearest), found)
    return tirx.Let(rest, remainder(size, digits << 4), found)


def _masked(name: str, *arguments: Any) -> Any:
    """Return an instruction on all lanes."""
    all_lanes, as_set = tirx.const(-1, "int16"), tirx.const(_AS_SET, "int32")
    return tirx.call_llvm_pure_intrin(
        WIDE, f"llvm.x86.avx512.mask.{name}.ps.512", *arguments, tirx.const(0.0, WIDE), all_lanes, as_set
    )
