"""Define the types of values in params.yaml, with their bounds."""

from __future__ import annotations

import calendar
import re
from typing import Annotated

from pydantic import AfterValidator, Field

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
MAX_INPUT_VALUES = 1 << 27  # one batch: 512 MiB of float32
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of the week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ValueError(
            f"name {name!r} is not safe (names reach a shell and the file system); "
            "use letters, digits, '-' and '_', starting with a letter or digit, at most 64"
        )
    return name


def _check_line(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"one line of printable characters; found {text!r}")
    return text


def _check_program(name: str) -> str:
    if not re.fullmatch(r"[\w/.][\w/.+-]*", name, re.ASCII):
        raise ValueError(
            f"the name or path of a program, of letters, digits and ./_+-, without options; found {name!r}"
        )
    return name


def _check_host(name: str) -> str:
    if not re.fullmatch(r"[\w.:-]{1,253}", name, re.ASCII) or name.startswith("-"):
        raise ValueError(f"the name or address of a host; found {name!r}")
    return name


def check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape. Raises ValueError if it has too many values."""
    values = 1
    for size in shape:
        values *= size
    if values > MAX_INPUT_VALUES:
        raise ValueError(f"at most {MAX_INPUT_VALUES} values in one input; found {values}, a product of {list(shape)}")
    return shape


def _check_open_shape(shape: tuple[int | str, ...]) -> tuple[int | str, ...]:
    check_shape(tuple(size for size in shape if isinstance(size, int)))
    return shape


def _check_ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise ValueError(f"buckets in strictly ascending order; found {list(sizes)}")
    return sizes


def _numbers(text: str, field: tuple[str, int, int, tuple[str, ...]]) -> set[int]:
    """Return the numbers of a cron field: lists of `*`, N, N-M, each with an optional /STEP."""
    what, low, high, names = field
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\*|[0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?(?:/([0-9]{1,2}))?", part.lower())
        if not match or (match[1] == "*" and match[2]):
            raise ValueError(f"{part!r} is not a valid {what}")
        bounds = (str(low), str(high)) if match[1] == "*" else (match[1], match[2] or match[1])
        first, last = (_number(bound, what, names) for bound in bounds)
        if match[3] and match[2] is None:
            last = high
        if not low <= first <= last <= high or match[3] in ("0", "00"):
            raise ValueError(f"{part!r} is not a valid {what}: {low} to {high}")
        numbers.update(range(first, last + 1, int(match[3] or 1)))
    return numbers


def _number(text: str, what: str, names: tuple[str, ...]) -> int:
    if text.isdigit():
        return int(text)
    if text not in names:
        raise ValueError(f"{text!r} is not a valid {what}")
    return names.index(text)


def _check_cron(text: str) -> str:
    """Reject text that is no cron of five fields, and dates that no year has."""
    fields = text.split(" ")
    if len(fields) != len(_FIELDS):
        raise ValueError(f"a cron has five fields, 'minute hour day month weekday'; found {text!r}")
    try:
        _, _, days, months, _ = (_numbers(field, row) for field, row in zip(fields, _FIELDS, strict=True))
    except ValueError as error:
        raise ValueError(f"a cron such as '0 3 * * 6'; found {text!r}: {error}") from None
    if fields[4] == "*" and min(days) > max(calendar.monthrange(2024, month)[1] for month in months):
        raise ValueError(f"a date that exists; found {text!r}")
    return text


Name = Annotated[str, AfterValidator(_check_name)]
PathText = Annotated[str, Field(max_length=4000), AfterValidator(_check_line)]
Line = Annotated[str, Field(max_length=4000), AfterValidator(_check_line)]
Program = Annotated[str, Field(max_length=4000), AfterValidator(_check_program)]
Host = Annotated[str, AfterValidator(_check_host)]
BlockName = Annotated[
    str, Field(max_length=200, pattern=r"^[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*$")
]  # Prefect's type/name
Cron = Annotated[str, Field(max_length=200), AfterValidator(_check_cron)]
# Of git: a subset of the names that it takes, so that none is an option or a special reference.
BranchName = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_]+([./-][A-Za-z0-9_]+)*$")]
RemoteName = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Seed = Annotated[int, Field(ge=0, lt=1 << 31)]  # xgboost's and MXNet's are the narrowest
Positive = Annotated[int, Field(gt=0, le=10_000_000)]
NotNegative = Annotated[int, Field(ge=0, le=10_000_000)]
Parallel = Annotated[int, Field(gt=0, le=1024)]  # threads, processes, devices
Finite = Annotated[float, Field(ge=-1e9, le=1e9)]
PositiveFloat = Annotated[float, Field(ge=1e-30, le=1e9)]  # seconds too: the system's timers end near 9e9
NotNegativeFloat = Annotated[float, Field(ge=0, le=1e9)]
Size = Annotated[int, Field(gt=0, le=MAX_INPUT_VALUES)]
OpenShape = Annotated[  # sizes, and names of buckets; none for a scalar
    tuple[Size | Name, ...],
    Field(max_length=8, strict=False),
    AfterValidator(_check_open_shape),
]
Buckets = Annotated[
    tuple[Size, ...], Field(min_length=1, max_length=16, strict=False), AfterValidator(_check_ascending)
]
