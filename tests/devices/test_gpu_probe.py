"""Test the GPU probe: software drivers, drivers that return wrong values, crash or hang, and systems without a
driver.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.devices.agents import session_with
from tests.gpu_codegen.drivers import fake_driver
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.gpu.probe import probe, probe_program
from tvmflow.devices.gpu_facts import Gpu, Probed, read_probe
from tvmflow.devices.known_bad_gpus import KNOWN_BAD, known_bad
from tvmflow.devices.programs import build_agent
from tvmflow.support.errors import DeviceError
from tvmflow.support.paths import RUNTIME
from tvmflow.targets.gpu_features import GPUS
from tvmflow.toolchain.software_gpus import SoftwareDrivers, software_drivers

# A driver of OpenCL as C: all that it does is written here. FAULT is what it does wrong.
FAKE = r"""
#include "opencl.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define ONE(name) ((void *)(intptr_t)(name))
#ifndef EXTENSIONS
#define EXTENSIONS "cl_khr_fp16"
#endif
#ifdef VERSIONS
cl_int clQueryMLInterfaceVersionsQCOM(cl_int *major, cl_int *minor, cl_uint most, cl_uint *count) {
  if (FAULT == 'q') return -6;
  if (FAULT == 'k') raise(SIGSEGV);
  if (count) *count = VERSIONS;
  for (cl_uint i = 0; i < most; ++i) major[i] = (cl_int)i + 1, minor[i] = 0;
  return 0; }
#endif
cl_int clGetPlatformIDs(cl_uint most, cl_platform_id *found, cl_uint *count) {
  if (most) *found = ONE(1);
  *count = 1;
  return 0; }
cl_int clGetPlatformInfo(cl_platform_id p, cl_uint what, size_t size, void *to, size_t *n) {
  (void)p; (void)what; (void)n; strncpy(to, "fake", size); return 0; }
cl_int clGetDeviceIDs(cl_platform_id p, cl_bitfield t, cl_uint most, cl_device_id *found, cl_uint *count) {
  (void)p; (void)t; if (most) *found = ONE(2); *count = 1; return 0; }
cl_int clGetDeviceInfo(cl_device_id d, cl_uint what, size_t size, void *to, size_t *n) {
  (void)d;
  if (what == CL_DEVICE_NAME) strncpy(to, "Fake \"GPU\"\n", size);
  else if (what == CL_DEVICE_EXTENSIONS) strncpy(to, EXTENSIONS, size);
  else if (what == CL_DEVICE_IMAGE_SUPPORT) *(uint32_t *)to = 1;
  else return -30;
  if (n) *n = 4;
  return 0; }
/* what only networks need */
void clCreateProgramWithBinary(void) {} void clGetProgramInfo(void) {} void clGetKernelWorkGroupInfo(void) {}
void clEnqueueMapBuffer(void) {} void clEnqueueUnmapMemObject(void) {}
void clEnqueueWriteBuffer(void) {} void clEnqueueCopyBuffer(void) {}
void clGetEventInfo(void) {} void clGetEventProfilingInfo(void) {}
void clReleaseEvent(void) {} void clFlush(void) {} void clEnqueueReadImage(void) {} void clEnqueueWriteImage(void) {}
static float memory[4096]; static size_t used;
cl_context clCreateContext(const intptr_t *p, cl_uint n, const cl_device_id *d,
                           void (*f)(const char *, const void *, size_t, void *), void *u, cl_int *e) {
  (void)p; (void)n; (void)d; (void)f; (void)u; *e = 0; return ONE(3); }
cl_int clReleaseContext(cl_context c) { (void)c; return 0; }
cl_command_queue clCreateCommandQueue(cl_context c, cl_device_id d, cl_bitfield b, cl_int *e) {
  (void)c; (void)d; (void)b; *e = 0; return ONE(4); }
cl_int clReleaseCommandQueue(cl_command_queue q) { (void)q; return 0; }
cl_mem clCreateBuffer(cl_context c, cl_bitfield b, size_t size, void *x, cl_int *e) {
  (void)c; (void)b; (void)size; (void)x; *e = FAULT == 'm' ? -4 : 0; return FAULT == 'm' ? NULL : ONE(5); }
cl_mem clCreateImage(cl_context c, cl_bitfield b, const cl_image_format *f, const cl_image_desc *d, void *x,
                     cl_int *e) {
  (void)c; (void)b; (void)f; (void)d; (void)x; *e = -10; return NULL; }
cl_int clReleaseMemObject(cl_mem m) { (void)m; return 0; }
cl_program clCreateProgramWithSource(cl_context c, cl_uint n, const char **s, const size_t *l, cl_int *e) {
  (void)c; (void)n; (void)l; *e = 0; used = strstr(*s, "half") ? 'h' : strstr(*s, "image") ? 'i' : 'b'; return ONE(6); }
cl_int clBuildProgram(cl_program p, cl_uint n, const cl_device_id *d, const char *o,
                      void (*f)(cl_program, void *), void *u) {
  (void)p; (void)n; (void)d; (void)o; (void)f; (void)u;
  if (FAULT == 'c' && used == 'h') raise(SIGSEGV);
  if (FAULT == 's' && used == 'h') for (;;) sleep(1);
  return used == 'h' ? -11 : 0; }
cl_int clGetProgramBuildInfo(cl_program p, cl_device_id d, cl_uint w, size_t size, void *to, size_t *n) {
  (void)p; (void)d; (void)w; (void)n; strncpy(to, "half is not known", size); return 0; }
cl_int clReleaseProgram(cl_program p) { (void)p; return 0; }
cl_kernel clCreateKernel(cl_program p, const char *n, cl_int *e) { (void)p; (void)n; *e = 0; return ONE(7); }
cl_int clSetKernelArg(cl_kernel k, cl_uint i, size_t s, const void *v) {
  (void)k; (void)i; (void)s; (void)v; return 0; }
cl_int clReleaseKernel(cl_kernel k) { (void)k; return 0; }
cl_int clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint d, const size_t *o, const size_t *g,
                              const size_t *l, cl_uint n, const cl_event *w, cl_event *e) {
  (void)q; (void)k; (void)d; (void)o; (void)g; (void)l; (void)n; (void)w; (void)e; return 0; }
cl_int clEnqueueReadBuffer(cl_command_queue q, cl_mem m, cl_uint b, size_t o, size_t size, void *to,
                           cl_uint n, const cl_event *w, cl_event *e) {
  (void)q; (void)m; (void)b; (void)o; (void)n; (void)w; (void)e;
  for (size_t i = 0; i < size / 4; ++i) memory[i] = (float)(i % 251) * 2 + 1;
  if (FAULT == 'w') memory[700] += 1;
  memcpy(to, memory, size); return 0; }
#ifndef WITHOUT_FINISH
cl_int clFinish(cl_command_queue q) { (void)q; return 0; }
#endif
"""


@pytest.fixture(scope="module")
def program() -> Path:
    return probe_program()


@pytest.fixture(scope="module")
def software() -> SoftwareDrivers:
    try:
        return software_drivers()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake(program: Path, tmp_path: Path) -> Callable[..., Probed]:
    """Probe a driver with a fault."""

    def run(fault: str, *defines: str, limit_s: float = 60.0) -> Probed:
        (tmp_path / "fake.c").write_text(FAKE)
        library = fake_driver(tmp_path / "fake.c", tmp_path, fault, *defines)
        return probe(program, options=("--opencl", str(library), "--vulkan", ""), limit_s=limit_s)

    return run


def test_drivers_in_software_pass(program: Path, software: SoftwareDrivers) -> None:
    opencl, vulkan = software.pocl, software.lavapipe
    names = (opencl.option, str(opencl.library), vulkan.option, str(vulkan.library))
    probed = probe(program, {**opencl.environment, **vulkan.environment}, names)
    first, second = probed.gpus
    assert not probed.ended and not probed.missing and [first.api, second.api] == ["opencl", "vulkan"]
    assert first.library == str(opencl.library) and second.library == "libvulkan.so.1"
    assert first.tests == {"buffer": "ok", "image_array": "ok"} and second.tests == {"buffer": "ok", "fp16": "ok"}
    assert first.facts["units"] >= 1 and first.facts["image_layers"] >= 2 and "PoCL" in first.facts["version"]
    assert "llvmpipe" in second.name and second.facts["group_size"] >= 128 and second.facts["local_bytes"] >= 16384
    assert second.facts["subgroup"] in (4, 8, 16)
    for gpu in probed.gpus:
        shown = gpu.to_json()
        assert shown["usable"] and gpu.reasons == () and set(gpu.can) == set(gpu.tests)
        assert json.loads(json.dumps(shown)) == shown


def test_a_system_without_a_driver_says_so(program: Path, tmp_path: Path) -> None:
    names = (str(tmp_path / "libOpenCL.so"), str(tmp_path / "libvulkan.so"))
    probed = probe(program, options=("--opencl", names[0], "--vulkan", names[1]))
    assert probed.gpus == [] and not probed.ended
    assert "No such file" in probed.missing["opencl"] and probed.missing["vulkan"] == "no library of Vulkan"


def test_a_loader_without_a_driver_says_so(program: Path, software: SoftwareDrivers) -> None:
    vulkan = software.lavapipe
    environment = {**vulkan.environment, "VK_ICD_FILENAMES": "/nowhere.json"}
    probed = probe(program, environment, ("--opencl", "", vulkan.option, str(vulkan.library)))
    assert (
        probed.gpus == []
        and "vkCreateInstance: error -9" in probed.missing["vulkan"]
        and "opencl" not in probed.missing
    )


def test_the_shaders_are_those_of_their_sources(software: SoftwareDrivers, tmp_path: Path) -> None:
    """After a change of one: the words that this prints go into self_tests.h."""
    text = (RUNTIME / "gpu" / "self_tests.h").read_text()
    for name in ("scale", "scale16"):
        compiled = tmp_path / f"{name}.spv"
        source = RUNTIME / "gpu" / "shaders" / f"{name}.comp"
        command = [str(software.glslang), "-V", "--target-env", "vulkan1.1", str(source), "-o", str(compiled)]
        subprocess.run(command, check=True, capture_output=True)
        found = re.search(rf"{name.upper()}_SPIRV\[\] = {{(.*?)}};", text, re.DOTALL)
        words = [f"0x{word:x}" for word in np.fromfile(compiled, "<u4")]
        assert found is not None and [word.strip() for word in found[1].split(",")] == words, ", ".join(words)


def test_what_a_driver_claims_is_tried(fake: Callable[..., Probed]) -> None:
    [gpu] = fake("-").gpus
    assert gpu.name == 'Fake "GPU"' and gpu.reasons == () and gpu.can == ("buffer",)
    assert gpu.tests["fp16"].startswith("clBuildProgram: error -11: half is not known")
    assert gpu.tests["image_array"] == "clCreateImage: error -10"


@pytest.mark.parametrize(("fault", "says"), [("w", "value 700 is 399 and not 398"), ("m", "clCreateBuffer: error -4")])
def test_a_driver_that_computes_wrong_values_or_has_no_memory_is_not_usable(
    fake: Callable[..., Probed], fault: str, says: str
) -> None:
    [gpu] = fake(fault).gpus
    expected = 700 % 251 * 2 + 1
    assert gpu.reasons == (f"buffer: {says.replace('398', str(expected)).replace('399', str(expected + 1))}",)
    assert not gpu.to_json()["usable"] and "buffer" not in gpu.can


def test_a_driver_that_crashes_or_hangs_costs_one_test(fake: Callable[..., Probed]) -> None:
    crashed = fake("c")
    assert crashed.ended == "the driver ended it by SIGSEGV"
    assert crashed.gpus[0].tests == {"buffer": "ok", "fp16": crashed.ended} and crashed.gpus[0].reasons == ()
    hung = fake("s", limit_s=3.0)
    assert hung.ended == "it did not end within 3 s" and hung.gpus[0].tests["fp16"] == hung.ended


def test_a_library_that_lacks_a_function_is_named(fake: Callable[..., Probed]) -> None:
    assert fake("-", "-DWITHOUT_FINISH").missing["opencl"].endswith(".so has no clFinish")


def test_an_agent_tries_the_gpus_of_its_device(
    software: SoftwareDrivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_program = build_agent(tmp_path / "agent", ("gcc",))
    with start_agent([str(agent_program)], str(tmp_path / "bare")) as agent, session_with(agent) as session:
        assert session.gpus().missing.keys() | {gpu.api for gpu in session.gpus().gpus} == {"opencl", "vulkan"}
    for name, value in {**software.lavapipe.environment, **software.pocl.environment}.items():
        monkeypatch.setenv(name, value)  # libraries are found by the names that systems have
    with start_agent([str(agent_program)], str(tmp_path / "store")) as agent, session_with(agent) as session:
        probed = session.gpus()
        assert [gpu.api for gpu in probed.gpus] == ["opencl", "vulkan"] and not probed.ended
        assert all(gpu.reasons == () for gpu in probed.gpus)


def test_the_library_of_adreno_says_its_versions(fake: Callable[..., Probed]) -> None:
    listed = '-DEXTENSIONS="cl_qcom_ml_ops"'
    [gpu] = fake("-", listed, "-DVERSIONS=4").gpus
    assert gpu.tests["clml"] == "ok" and "clml" in gpu.can and gpu.name == 'Fake "GPU"'
    assert gpu.to_json()["clml"] == "1.0 2.0 3.0 4.0"
    for fault, said in (
        (("q", "-DVERSIONS=4"), "clQueryMLInterfaceVersionsQCOM: error -6"),
        (("-",), "has no clQueryMLInterfaceVersionsQCOM"),
        (("-", "-DVERSIONS=0"), "0 versions of its interface"),
        (("-", "-DVERSIONS=99"), "99 versions of its interface"),
        (("k", "-DVERSIONS=4"), "the driver ended it by SIGSEGV"),
    ):
        name, *defines = fault
        [gpu] = fake(name, listed, *defines).gpus
        assert gpu.tests["clml"].endswith(said) and gpu.reasons == () and "clml" not in gpu.to_json()


@pytest.mark.parametrize(
    ("name", "version", "kind"),
    [
        ("QUALCOMM Adreno(TM)", "OpenCL 2.0 Adreno(TM) 540", "adreno-5xx"),
        ("QUALCOMM Adreno(TM) 640", "OpenCL 2.0 Adreno(TM) 640", "adreno-6xx"),
        ("Adreno (TM) 740", "4198401", "adreno-7xx"),
        ("QUALCOMM Adreno(TM) 830", "OpenCL 3.0 Adreno(TM) 830", "adreno-8xx"),
        ("QUALCOMM Adreno(TM) 330", "OpenCL 1.2 Adreno(TM) 330", "adreno"),
        ("Adreno (TM) X1-85", "", "adreno"),
        ("Mali-G78", "OpenCL 3.0 v1.r32p1", "mali"),
        ("NVIDIA H100", "", "nvidia"),
        ("PowerVR Rogue GE8320", "", None),
    ],
)
def test_a_gpu_is_of_a_kind_that_targets_name(name: str, version: str, kind: str | None) -> None:
    found = Gpu("opencl", "libOpenCL.so", {"name": name, "version": version}, {})
    assert found.kind == kind == found.to_json()["kind"] and (kind is None or kind in GPUS)


def test_generations_of_adreno_differ_where_their_waves_do() -> None:
    rows = [GPUS[f"adreno-{number}xx"] for number in (5, 6, 7, 8)]
    assert [row.warp for row in rows] == [32, 64, 64, 64] and all(row.textures for row in rows)
    assert sorted(row.threads for row in rows) == [row.threads for row in rows]
    assert [bool(row.integer_dot) for row in rows] == [False, True, True, True]


def test_no_line_makes_the_reader_raise() -> None:
    device = {"api": "opencl", "device": 0, "name": "x"}
    lines = [
        "",
        "{",
        "[]",
        "1",
        '{"api": "metal", "device": 0}',
        '{"api": ["opencl"]}',
        json.dumps(device),
        '{"api":"opencl","device":0,"test":"buffer"}',
    ]
    [gpu] = read_probe("\n".join(lines), "it ended").gpus
    assert gpu.tests == {"buffer": "it ended"} and gpu.reasons == ("buffer: it ended",)
    many = "\n".join(json.dumps({**device, "device": at}) for at in range(1000))
    assert len(read_probe(many).gpus) == 32 and read_probe("[" * 100_000).gpus == []


def test_known_faults_take_back_what_a_test_said() -> None:
    assert all(one.reason and one.reported for one in KNOWN_BAD)
    assert known_bad("opencl", {"name": "Mali-G76", "driver": "3.0"}) and not known_bad("vulkan", {"name": "Mali-G76"})
    assert not known_bad("opencl", {"name": "Mali-G715", "driver": "3.0"})
