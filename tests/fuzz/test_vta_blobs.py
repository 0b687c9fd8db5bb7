"""Alter and re-sign programs, regions and configurations of VTA: each gives one clear error, or runs."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from tests.conftest import examples
from tests.differential.vta_cases import CONFIG, image, random_conv
from tvmflow.support.errors import ParamsError, ProgramError, TvmflowError
from tvmflow.vta.compiler.compiler import compile_region
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.program import Program
from tvmflow.vta.isa.region import (
    Conv,
    MaxPool,
    Region,
    Sum,
    Tail,
    from_blob,
    pack,
    packed_shape,
    region_from,
    region_to_blob,
)
from tvmflow.vta.machine.execution import order_instructions
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.runtime.device import SimulatorDriver
from tvmflow.vta.runtime.runtime import Runtime, program_from, program_to_blob

SHAPE = (1, 16, 6, 6)
REGION = Region(
    {"x": SHAPE},
    (
        random_conv("a", "x", (16, 16), 3),
        MaxPool("p", "a", (2, 2), (2, 2), (0,) * 4),
        Sum("s", ("p",), (0,), Tail()),
        Conv("t", "s", image((16, 16, 2, 2)), Tail(None, 0, 8, 4), (2, 2), transposed=True),
    ),
    ("t", "p"),
)
PROGRAM = compile_region(CONFIG, REGION, "optimized")
BLOBS = {
    "region": region_to_blob(REGION, {"layers": ["a"], "reasons": {"q": "why"}}),
    "program": program_to_blob(PROGRAM),
}


def signed(description: bytes, arrays: dict[str, Any]) -> bytes:
    payload = save({**arrays, "description": np.frombuffer(description, np.uint8)})
    return hashlib.sha256(payload).digest() + payload


def read(blob: bytes) -> Any:
    text, arrays = from_blob(blob)
    return (region_from if text.get("kind") == "region" else program_from)(text, arrays)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where every value of a description is."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, item in inner for path in paths(item, (*at, key)))]


HOSTILE = [
    True,
    False,
    None,
    -1,
    0,
    1,
    7,
    2**16,
    2**31,
    2**63,
    10**40,
    -(10**40),
    1.5,
    1e300,
    "",
    "x",
    "a",
    "\0",
    "y" * 1000,
    [],
    [0],
    [1, 2],
    [True] * 4,
    [1] * 6,
    [2**20] * 4,
    [[]],
    {},
    {"a": 1},
    "GEMM",
    [None],
    [["a", 1]],
    [10**40] * 6,
]
ARRAYS = [
    np.zeros(0, np.uint8),
    np.zeros((3, 3), np.uint64),
    np.zeros((2, 2), np.uint64),
    np.zeros(5, np.int32),
    np.zeros((1, 1, 1, 1), np.int8),
    np.zeros((0, 0, 0, 0), np.int8),
    np.zeros(7, np.float32),
    np.zeros((), np.uint8),
    np.full((1, 2), 2**64 - 1, np.uint64),
]


@st.composite
def altered(draw: st.DrawFn) -> bytes:
    """A program or a region with one to three things changed in its description, or one of its arrays."""
    text, arrays = from_blob(BLOBS[draw(st.sampled_from(sorted(BLOBS)))])
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 4)) == 0 and arrays:
            name = draw(st.sampled_from(sorted(arrays)))
            arrays[draw(st.sampled_from([name, "other"]))] = draw(st.sampled_from(ARRAYS))
            if draw(st.booleans()):
                del arrays[name]
            continue
        path = draw(st.sampled_from([path for path in paths(text) if path]))
        holder = text
        for key in path[:-1]:
            holder = holder[key]
        if draw(st.integers(0, 5)) == 0:
            del holder[path[-1]]
        else:
            holder[path[-1]] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))
    return signed(json.dumps(text).encode(), arrays)


def run(program: Any) -> None:
    if isinstance(program, Program):
        if lint(program) == []:
            inputs = [np.zeros(tensor.shape, np.int8) for tensor in program.inputs if tensor.nbytes < 1 << 20]
            SimulatorDriver().load(program).run(inputs)
    else:
        program.shapes()


@settings(max_examples=examples(400), deadline=None)
@given(altered())
def test_altered_programs_and_regions_are_one_error_or_run(blob: bytes) -> None:
    try:
        run(read(blob))
    except TvmflowError as error:
        assert "\n" not in error.found and len(error.found) < 2000


@settings(max_examples=examples(100), deadline=None)
@given(
    st.binary(max_size=300) | st.sampled_from(sorted(BLOBS.values())),
    st.integers(0, 10**6),
    st.binary(min_size=1, max_size=8),
)
def test_altered_bytes_are_one_error(data: bytes, at: int, patch: bytes) -> None:
    place = at % (len(data) + 1)
    payload = (data[:place] + patch + data[place + len(patch) :])[32:]
    with pytest.raises(TvmflowError):
        read(data[:32][::-1] + payload)  # another digest
    try:
        run(read(hashlib.sha256(payload).digest() + payload))
    except TvmflowError:
        pass


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 2**64 - 1))
def test_altered_instructions_never_break_the_linter_or_the_simulator(at: int, word: int) -> None:
    text, arrays = from_blob(BLOBS["program"])
    words = arrays["instructions"].copy()
    words.reshape(-1)[at % words.size] ^= np.uint64(word)
    try:
        program = program_from(text, {**arrays, "instructions": words})
        lint(program)
        for launch in program.launches:
            sum(1 for _ in order_instructions(launch))
        run(program)
    except ProgramError:
        pass


DESCRIPTIONS = [
    b"",
    b"[]",
    b"1",
    b"null",
    b'"program"',
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"kind": "region", "kind": "program"}',
    b'{"kind": NaN}',
    b'{"kind": -Infinity}',
    b'{"kind": ["region"]}',
    b'{"kind": "abacus"}',
    b'{"kind": ' + b"9" * 5000 + b"}",
    b"{}",
]


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda text: text[:24].decode("latin-1"))
def test_descriptions_that_are_none(description: bytes) -> None:
    with pytest.raises(ProgramError):
        read(signed(description, {"instructions": ARRAYS[2]}))


def test_what_is_there_more_than_once_or_too_much_is_refused() -> None:
    text, arrays = from_blob(BLOBS["program"])
    cases: list[dict[str, Any]] = [
        {"surprise": 1},
        {"inputs": ["x", "x"]},
        {"outputs": []},
        {"launches": [*text["launches"], ["more", 1]]},
        {"launches": text["launches"][:-1]},
        {"values": [*text["values"], text["values"][0]]},
        {"dram_bytes": True},
        {"constants_at": 4095},
        {"dram_bytes": 2**40},
        {"values": [{**v, "address": text["constants_at"]} for v in text["values"]]},
    ]
    for change in cases:
        with pytest.raises(ProgramError):
            program_from({**text, **change}, arrays)
    with pytest.raises(ProgramError):
        program_from(text, {**arrays, "more": ARRAYS[0]})


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        "sim",
        3,
        {"log_block": True},
        {"log_block": 4.0},
        {"log_block": None},
        {"LOG_BLOCK": 4, "log_block": 5},
        {"target": 1},
        {"target": ["sim"]},
        {"hw_ver": 2},
        {"log_block": 10**40},
        {"log_inp_buff_size": -(10**40)},
        {"log_block": [4]},
        {3: 4},
        {"log_wgt_buff_size": 10**9},
        {"target": "sim\0"},
        {"log_batch": -1},
    ],
)
def test_hostile_configurations_are_one_error(fields: Any) -> None:
    with pytest.raises(TvmflowError) as caught:
        VtaConfig.from_json(fields)
    assert "\n" not in caught.value.found
    if isinstance(fields, dict) and all(isinstance(key, str) for key in fields):
        with pytest.raises((ParamsError, TvmflowError, TypeError)):
            VtaConfig(**fields)


def test_calls_with_other_tensors_are_one_error() -> None:
    x, out = np.zeros(packed_shape(CONFIG, SHAPE), np.int8), np.zeros((1, 1, 6, 6, 1, 16), np.int8)
    pooled = np.zeros((1, 1, 3, 3, 1, 16), np.int8)
    good = [pack(CONFIG, image(SHAPE)), out, pooled]
    for name, blob in BLOBS.items():
        runtime, data = Runtime(CONFIG, SimulatorDriver()), np.frombuffer(blob, np.uint8)
        runtime.run(data, *good)
        assert out.any(), name
        for bad in (
            [],
            [x],
            [x, out],
            [x, x, out, pooled],
            [x, out, out],
            [x[..., :8], out, pooled],
            [x.astype(np.int16), out, pooled],
            [x.reshape(-1), out, pooled],
            [x[:, :, :3], out, pooled],
        ):
            with pytest.raises(RuntimeError, match="expected"):
                runtime.run(data, *[np.ascontiguousarray(array) for array in bad])
