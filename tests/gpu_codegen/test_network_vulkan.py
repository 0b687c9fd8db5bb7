"""Test the Vulkan host code with a hand-written plan on lavapipe, including every failure."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.gpu_codegen.vulkan_networks import SANITIZED, HandMade, Kernel, Value, build, build_shim, run, software

SIZE = 1000
SHAPE = (1, SIZE)
_HEAD = "#version 450\nlayout(local_size_x = 64) in;\n"
ADD = """layout(std430, set = 0, binding = 0) readonly buffer A { float a[]; };
layout(std430, set = 0, binding = 1) readonly buffer B { float b[]; };
layout(std430, set = 0, binding = 2) writeonly buffer Y { float y[]; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < 1000) y[i] = a[i] + b[i]; }"""
TWICE = """layout(std430, set = 0, binding = 0) buffer Y { float y[]; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < 1000) y[i] = 2 * y[i]; }"""
LONG = """layout(std430, set = 0, binding = 0) buffer Y { float y[]; };
void main() {
  uint i = gl_GlobalInvocationID.x;
  float x = y[0];
  for (int k = 0; k < 20000000; ++k) x = sin(x) + 1;
  if (i < 1000) y[i] = x;
}"""
SUM = """#extension GL_KHR_shader_subgroup_arithmetic : require
layout(std430, set = 0, binding = 0) buffer Y { float y[]; };
void main() { y[gl_GlobalInvocationID.x] = subgroupAdd(1.0); }"""
DOUBLE = """layout(std430, set = 0, binding = 0) buffer Y { double y[]; };
void main() { y[gl_GlobalInvocationID.x] *= 2; }"""


@cache
def spirv(body: str) -> bytes:
    folder = software().folder
    program = [
        str(software().glslang),
        "--stdin",
        "-S",
        "comp",
        "--target-env",
        "vulkan1.1",
        "-o",
        "/dev/stdout",
        "--quiet",
    ]
    done = subprocess.run(program, input=(_HEAD + body).encode(), stdout=subprocess.PIPE, check=True, cwd=folder)
    return done.stdout


def kernel(body: str, *arguments: int, groups: int = 16) -> Kernel:
    return Kernel(spirv(body), (groups, 1, 1), (64, 1, 1), arguments)


def chain(arena: int = 0) -> HandMade:
    """(x + c) doubled, and doubled again in the same memory, plus x; the second output is a copy of what lies between.
    arena: where that lies.
    """
    values = [
        Value("INPUT", SHAPE),
        Value("CONSTANT", SHAPE),
        Value("CONSTANT", SHAPE, offset=4096),
        Value("ARENA", SHAPE, offset=arena),
        Value("OUTPUT", SHAPE),
        Value("OUTPUT", SHAPE, index=1),
    ]
    constants = np.zeros(2024, np.float32)
    constants[:SIZE], constants[1024:] = np.arange(SIZE), 3
    steps = [kernel(ADD, 0, 1, 3), kernel(TWICE, 3), kernel(TWICE, 3), kernel(ADD, 3, 2, 4)]
    return HandMade(values, steps, constants.tobytes(), [(3, 5)])


X = np.linspace(-5, 5, SIZE, dtype=np.float32).reshape(SHAPE)
BETWEEN = 4 * (X + np.arange(SIZE, dtype=np.float32))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    software()
    return build(tmp_path_factory.mktemp("vulkan"), chain(), SANITIZED)


def only(network: HandMade, body: str) -> HandMade:
    return HandMade(network.values, [kernel(body, 3)], network.constants)


@pytest.mark.parametrize("runs", [1, 4])
def test_steps_run_in_order(program: Path, runs: int) -> None:
    done = run(program, chain(), [X], runs)
    assert not done.error
    np.testing.assert_array_equal(done.outputs[0], BETWEEN + 3)
    np.testing.assert_array_equal(done.outputs[1], BETWEEN)
    assert len(done.nanoseconds) == 4
    assert all(bool(time) == (runs > 1) for time in done.nanoseconds)


def test_programs_are_kept_and_what_is_damaged_is_written_anew(program: Path, tmp_path: Path) -> None:
    def start() -> bytes:
        done = run(program, chain(), [X], cache_in=tmp_path)
        assert not done.error
        np.testing.assert_array_equal(done.outputs[1], BETWEEN)
        (file,) = tmp_path.iterdir()
        return file.read_bytes()

    first = start()
    (file,) = tmp_path.iterdir()
    for damaged in (
        b"",
        first[:-1],
        first[:-1] + bytes([first[-1] ^ 1]),
        first[:16] + bytes([first[16] ^ 1]) + first[17:],
    ):
        file.write_bytes(damaged)
        assert start() == first


def test_a_folder_that_is_not_there_costs_nothing(program: Path, tmp_path: Path) -> None:
    assert not run(program, chain(), [X], cache_in=tmp_path / "none").error


def test_devices_are_chosen_by_name(program: Path) -> None:
    assert not run(program, chain(), [X], device="llvmpipe").error
    assert run(program, chain(), [X], device="Mali").error == "no device of Vulkan is called Mali"


def test_no_driver(program: Path, tmp_path: Path) -> None:
    assert run(program, chain(), [X], library=str(tmp_path / "libvulkan.so.1")).error == "no library of Vulkan"
    assert (
        "vkCreateInstance: error -9"
        in run(program, chain(), [X], environment={"VK_ICD_FILENAMES": str(tmp_path / "none.json")}).error
    )


def test_too_little_memory_is_told(tmp_path: Path) -> None:
    huge = Value("ARENA", (1, 1 << 45))
    network = chain()
    values = [huge if value.place == "ARENA" else value for value in network.values]
    network = HandMade(values, network.kernels, network.constants)
    error = run(build(tmp_path, network, SANITIZED), network, [X]).error
    assert "values between kernels" in error
    assert "MB" in error


def test_a_value_larger_than_a_binding_is_told(tmp_path: Path) -> None:
    network = HandMade(
        [Value("INPUT", SHAPE), Value("OUTPUT", SHAPE), Value("ARENA", (1, (1 << 27) + 1))], [kernel(TWICE, 2)]
    )
    assert "allows 1 to 134217728" in run(build(tmp_path, network, SANITIZED), network, [X]).error


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (Kernel(b"no spirv at all!", (1, 1, 1), (64, 1, 1), (3,)), "is no SPIR-V"),
        (Kernel(b"", (1 << 20, 1, 1), (64, 1, 1), (3,)), "has 1048576 work-groups along an axis"),
        (Kernel(b"", (1, 1, 1), (1024, 1024, 1), (3,)), "work-groups of 1024x1024x1, too large"),
        (Kernel(b"", (1, 1, 1), (64, 1, 1), (3,) * 40), "has 40 arguments"),
    ],
)
def test_kernels_that_the_device_cannot_run_are_refused(tmp_path: Path, changed: Kernel, said: str) -> None:
    changed = Kernel(changed.spirv or spirv(TWICE), changed.groups, changed.group_size, changed.arguments)
    network = HandMade(chain().values, [changed], chain().constants)
    assert said in run(build(tmp_path, network, SANITIZED), network, [X]).error


def test_a_feature_that_is_not_known_is_told(tmp_path: Path) -> None:
    network = only(chain(), DOUBLE)
    assert (
        "lacks what kernel step0 needs: a feature that is not known here"
        in run(build(tmp_path, network, SANITIZED), network, [X]).error
    )


def test_a_kernel_that_does_not_end_is_an_error_and_the_last_one(tmp_path: Path) -> None:
    network = only(chain(), LONG)
    program = build(tmp_path, network, [*SANITIZED, "-DGPU_TIMEOUT_NS=20000000u"])
    lines = run(program, network, [X], 2, environment={"ASAN_OPTIONS": "detect_leaks=0"}).error.splitlines()
    assert lines == ["the GPU did not end within 0.02 s", "the GPU did not end within 0.02 s, and runs no more"]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize(
    ("fault", "runs", "said"),
    [
        ("lost", 2, ["the GPU was lost (vkQueueSubmit)", "the GPU was lost (vkQueueSubmit), and runs no more"]),
        (
            "lost later",
            2,
            ["the GPU was lost (vkWaitForFences)", "the GPU was lost (vkWaitForFences), and runs no more"],
        ),
        ("pipeline", 1, ["llvmpipe (LLVM 15.0.6, 256 bits) does not compile kernel step0: error -1"]),
        ("old", 1, ["no vkCmdDispatch: Vulkan is older than 1.1"]),
        *(
            (f"full{at}", 1, [f"llvmpipe (LLVM 15.0.6, 256 bits) has no 0.0 MB of memory for {what}"])
            for at, what in enumerate(("values between kernels", "constants", "inputs", "outputs"))
        ),
    ],
)
def test_faults_of_drivers_are_told_and_nothing_leaks(
    program: Path, shim: Path, fault: str, runs: int, said: list[str]
) -> None:
    environment = {"REAL": str(software().lavapipe.library), "FAULT": fault}
    lines = run(program, chain(), [X], runs, library=str(shim), environment=environment).error.splitlines()
    assert [re.sub(r"llvmpipe \(.*?\)", "GPU", line) for line in lines] == [
        re.sub(r"llvmpipe \(.*?\)", "GPU", line) for line in said
    ]


def test_a_device_whose_subgroups_do_not_sum_is_told(shim: Path, tmp_path: Path) -> None:
    network = only(chain(), SUM)
    program = build(tmp_path, network, SANITIZED)
    environment = {"REAL": str(software().lavapipe.library), "FAULT": "sums"}
    assert not run(program, network, [X]).error
    error = run(program, network, [X], library=str(shim), environment=environment).error
    assert error.endswith("lacks what kernel step0 needs: sums over subgroups")


def _fnv(data: bytes) -> int:
    sum_ = 0xCBF29CE484222325
    for byte in data:
        sum_ = (sum_ ^ byte) * 0x100000001B3 % (1 << 64)
    return sum_


def test_a_program_of_another_device_is_not_taken(program: Path, tmp_path: Path) -> None:
    """What the driver wrote begins with 16 bytes of its own, the vendor second of them; the file's own head has 32
    bytes.
    """
    assert not run(program, chain(), [X], cache_in=tmp_path).error
    (file,) = tmp_path.iterdir()
    first = file.read_bytes()
    for at in (32 + 4, 32 + 8, 32 + 12, 32 + 16):  # version, vendor, device, driver
        changed = bytearray(first)
        changed[at] ^= 1
        changed[24:32] = _fnv(bytes(changed[32:])).to_bytes(8, "little")
        file.write_bytes(changed)
        assert not run(program, chain(), [X], cache_in=tmp_path).error
        assert file.read_bytes() == first
