"""Run modules of WebAssembly in node: outputs of the host's kernels, and the interface of JavaScript."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.bundle_parts import wasm_part
from tests.recurrent_models import RecurrentCase
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.wasm import WasmBackend
from tvmflow.codegen.compile import LocalRunner, build_scheduled
from tvmflow.codegen.network.bucket_tables import Bucket, SizedOutputs
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.kernel_library import write_kernel
from tvmflow.codegen.network.link import write_network
from tvmflow.config.buckets import Axis, Sizes
from tvmflow.config.params import DeviceEntry, TargetEntry
from tvmflow.devices.node.program import node_program
from tvmflow.devices.node.session import NodeSession
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import SessionLimits
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import State, TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.shipping.bundle.abis import abi_of
from tvmflow.shipping.bundle.signing import new_keys, public_key, signing_key
from tvmflow.shipping.bundle.verify import Trust, verify
from tvmflow.shipping.bundle.wasm_module import check_module
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.support.errors import BundleError, DeviceLostError, StageError, ToolchainError, UsageError
from tvmflow.support.paths import RUNTIME
from tvmflow.tuning.winograd_choice import choose_by_cost

DEVICE = DeviceEntry(transport="node", key="wasm32")
TARGET = TargetEntry(kind="wasm", mcpu="generic", threads=1, device=DEVICE)
BACKEND = WasmBackend(WasmBackend.resolve(TARGET))
LIMITS = SessionLimits(session_timeout_s=60.0)


def _skip_without_tools() -> None:
    try:
        BACKEND.target.compiler.line()
        node_program()
    except ToolchainError as error:
        pytest.skip(str(error))


_skip_without_tools()


class Images(nn.Module):
    """Winograd, a strided and a depthwise convolution, a residual, a pool, sigmoid, softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.wide = nn.Conv2d(16, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, stride=2, groups=16)
        self.last = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x))
        x = self.depthwise(x + torch.sigmoid(self.wide(x)))
        return torch.softmax(self.last(x.mean((2, 3))), -1)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(50, 24), nn.Linear(24, 8)

    def forward(self, ids: Any) -> Any:
        return torch.tanh(self.dense(self.embedding(ids)))


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with open_session(DEVICE, BACKEND, LIMITS) as opened:
        yield opened


def _packed(model: nn.Module, *specs: TensorSpec) -> Any:
    return canonicalize(ExportedModel(model.eval(), specs).to_relax())


def _write(path: Path, module: Any, specs: tuple[TensorSpec, ...], outputs: tuple[str, ...], **described: Any) -> Path:
    packed = BACKEND.pack(module, None)[0]
    winograd = choose_by_cost(packed, BACKEND, {"float32": 2e-5})
    scheduled = build_scheduled(packed, BACKEND, {}, winograd=winograd)
    write_network(path, scheduled, Network("any@wasm:float32", specs, outputs, 1, **described), BACKEND.target.compiler)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(3)
    spec = TensorSpec("image", (1, 3, 20, 20), "float32")
    module = _packed(Images(), spec)
    labels = tuple(f"class {at}" for at in range(10))
    folder = tmp_path_factory.mktemp("wasm")
    return _write(folder / "network.so", module, (spec,), ("scores",), labels=labels), module


def test_its_outputs_are_those_of_the_hosts_kernels(images: tuple[Path, Any], session: NodeSession) -> None:
    path, module = images
    host, network = LocalRunner.of_plain(module, host_backend()), session.start(str(path))
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(1, 3, 20, 20)).astype(np.float32)
        found, expected = network.run(x)[0], host.run(x)[0]
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)
        assert np.ptp(found) > 1e-3
    assert all(0 < seconds < 1 for seconds in network.time_runs(3))
    profile = network.profile(2)
    assert any("winograd" in name for name, _, _ in profile), "tiles of 6 pixels are worth it"
    assert all(calls == 2 and nanoseconds > 0 for _, calls, nanoseconds in profile)
    with pytest.raises(StageError, match=r"image: 4 bytes; expected 4800"):
        network.set_inputs(np.zeros(1, np.float32))


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_precisions(precision: str, session: NodeSession, tmp_path: Path) -> None:
    from tvmflow.config.stage_params import DEFAULT_MIXED, Int8Params
    from tvmflow.quantization.precisions import PrecisionRequest, to_precision
    from tvmflow.sources.data.datasets import Samples
    from tvmflow.support.progress import silent

    torch.manual_seed(4)
    spec = TensorSpec("image", (1, 3, 20, 20), "float32")
    samples = Samples((np.random.default_rng(5).normal(size=(8, 3, 20, 20)).astype(np.float32),))
    settings = Int8Params().model_copy(update={"activations": "int8"}) if precision == "int8" else DEFAULT_MIXED
    module = to_precision(_packed(Images(), spec), precision, PrecisionRequest(settings, samples, silent))[0]
    path = _write(tmp_path / "network.so", module, (spec,), ("scores",))
    host, network = LocalRunner.of_plain(module, host_backend()), session.start(str(path))
    for x in samples.inputs[0][:3, None]:
        np.testing.assert_allclose(network.run(x)[0], host.run(x)[0], rtol=1e-5 if precision == "int8" else 1e-2)


def test_a_kernel_keeps_what_it_does_not_write(session: NodeSession, tmp_path: Path) -> None:
    import tvm
    from tvm.script import tirx as T

    from tvmflow.codegen.compile import compile_module

    @T.prim_func
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")) -> None:
        for i in range(4):
            y[i] = x[i] * T.float32(2)

    function = main.with_attr("global_symbol", "main")
    write_kernel(tmp_path / "k.so", compile_module(tvm.IRModule({"main": function}), BACKEND), function, BACKEND.target)
    given, before = np.arange(8, dtype=np.float32), np.full(8, 7, np.float32)
    kernel = session.bench([given, before]).load(tmp_path / "k.so")
    assert kernel.output().tolist() == [0, 2, 4, 6, 7, 7, 7, 7]
    assert all(0 < seconds < 0.1 for seconds in kernel.time(3, 1.0))


def test_a_process_that_ends_costs_its_network_only(images: tuple[Path, Any], session: NodeSession) -> None:
    one, other = session.start(str(images[0])), session.start(str(images[0]))
    one.process.kill()
    with pytest.raises(DeviceLostError, match="node ended while running the module"):
        one.invoke()
    other.run(np.zeros((1, 3, 20, 20), np.float32))


_SCRIPT = """
import { readFileSync } from "node:fs";
import { Network, NetworkError } from "RUNTIME/javascript/tvmflow.mjs";
const load = (name) => Network.load(readFileSync(name));
const refused = (action) => {
  try { action(); } catch (error) { return error instanceof NetworkError ? error.message : `raw ${error}`; }
  return "";
};
const found = {};
BODY
console.log(JSON.stringify(found, (_, value) => (ArrayBuffer.isView(value) ? Array.from(value, Number) : value)));
"""


def _in_node(tmp_path: Path, body: str) -> dict[str, Any]:
    script = tmp_path / "script.mjs"
    script.write_text(_SCRIPT.replace("RUNTIME", str(RUNTIME)).replace("BODY", body), encoding="utf-8")
    done = subprocess.run([node_program(), str(script)], capture_output=True, text=True, check=False, timeout=60)
    assert not done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_javascript(images: tuple[Path, Any], session: NodeSession, tmp_path: Path) -> None:
    x = np.sin(np.arange(1200, dtype=np.float32)).reshape(1, 3, 20, 20)
    body = f"""
      const network = await load({json.dumps(str(images[0]))});
      const image = new Float32Array(1200).map((_, at) => Math.fround(Math.sin(at)));
      found.name = network.name; found.inputs = network.inputs; found.outputs = network.outputs;
      found.labels = network.labels;
      found.named = network.run({{ image }}).scores; found.listed = network.run([image]).scores;
      found.refused = [
        () => network.run({{ image, other: image }}), () => network.run({{}}), () => network.run([image, image]),
        () => network.run({{ image: image.subarray(1) }}), () => network.run({{ image: new Int32Array(1200) }}),
        () => network.classify({{ data: new Uint8Array(16), width: 2, height: 2 }}),
      ].map(refused);
      network.free();
      found.foreign = await load({json.dumps(str(tmp_path / "foreign.wasm"))}).catch((error) => error.message);
    """
    imports_env = bytes([1, 4, 1, 0x60, 0, 0, 2, 9, 1, 3]) + b"env" + bytes([1]) + b"f" + bytes([0, 0])
    (tmp_path / "foreign.wasm").write_bytes(b"\0asm\1\0\0\0" + imports_env)
    found = _in_node(tmp_path, body)
    expected = session.start(str(images[0])).run(x)[0][0]
    np.testing.assert_allclose(found["named"], expected, rtol=1e-4)
    assert found["named"] == found["listed"]
    assert found["name"] == "any@wasm:float32"
    assert found["inputs"] == [{"name": "image", "shape": [1, 3, 20, 20], "dtype": "float32", "size": 4800}]
    assert found["labels"] == [f"class {at}" for at in range(10)]
    texts = (
        "no input other",
        "input image is missing",
        "no input 2",
        "1199; expected Float32Array of 1200",
        "Int32Array",
    )
    for text, wanted in zip(found["refused"], (*texts, "takes no images"), strict=True):
        assert wanted in text
    assert found["foreign"] == "the module imports env.f: not a network of tvmflow"


def test_javascript_carries_states(tmp_path: Path) -> None:
    case = RecurrentCase("LSTM", times=2, samples=1, hidden=9, states=("h", "c"))
    specs = tuple(TensorSpec(name, value.shape, "float32") for name, value in case.inputs().items())
    states = (State("h", "Y_h"), State("c", "Y_c", (0.25,)))
    module = canonicalize(case.load(tmp_path).to_relax())
    path = _write(tmp_path / "network.so", module, specs, ("Y", "Y_h", "Y_c"), states=states)
    x = case.inputs()["X"]
    body = f"""
      const network = await load({json.dumps(str(path))});
      const X = Float32Array.from({json.dumps(x.ravel().tolist())});
      const given = [network.run({{ X }}), network.run({{ X }})];
      network.resetStates();
      found.again = network.run({{ X }}).Y;
      found.first = given[0].Y; found.second = given[1].Y;
      found.explicit = network.run({{ X, h: given[0].Y_h, c: given[0].Y_c }}).Y;
      found.states = network.states;
    """
    found = _in_node(tmp_path, body)
    assert found["first"] == found["again"] != found["second"] == found["explicit"]
    host = LocalRunner.of_plain(module, host_backend())
    h = np.zeros_like(case.inputs()["h"])
    np.testing.assert_allclose(found["first"], host.run(x, h, h + np.float32(0.25))[0].ravel(), rtol=1e-5, atol=1e-6)


def test_javascript_runs_any_length(tmp_path: Path) -> None:
    torch.manual_seed(6)
    model, sizes = Tokens().eval(), Sizes(("length",), ((4, 9),), (Axis(0, 1, 0),), (0,))
    spec = TensorSpec("ids", (1, 9), "int64")
    made = []
    for at, length in enumerate((4, 9)):
        packed = BACKEND.pack(_packed(model, TensorSpec("ids", (1, length), "int64")), None)[0]
        made.append(build_scheduled(packed, BACKEND, {}, prefix=f"at{at}_"))
    described = Network("any@wasm:float32", (spec,), ("y",), 1, sized=SizedOutputs(sizes, (Axis(0, 1, 0),)))
    path = tmp_path / "network.so"
    write_network(path, made[1], described, BACKEND.target.compiler, [Bucket((4,), made[0])])
    body = f"""
      const network = await load({json.dumps(str(path))});
      found.sizes = network.sizes;
      const ids = (n) => ({{ data: BigInt64Array.from({{ length: n }}, (_, at) => BigInt(at + n)), shape: [1, n] }});
      found.outputs = [1, 4, 5, 9].map((n) => network.run({{ ids: ids(n) }}).y);
      found.refused = refused(() => network.run({{ ids: ids(10) }}));
    """
    found = _in_node(tmp_path, body)
    assert found["sizes"] == [{"name": "length", "buckets": [4, 9]}]
    for length, output in zip((1, 4, 5, 9), found["outputs"], strict=True):
        with torch.inference_mode():
            expected = model(torch.arange(length)[None] + length).numpy()
        assert output["shape"] == list(expected.shape)
        np.testing.assert_allclose(np.reshape(output["data"], expected.shape), expected, rtol=1e-5, atol=1e-6)
    assert "length is 10" in found["refused"]


def test_a_bundle_takes_only_what_a_network_needs(images: tuple[Path, Any], tmp_path: Path) -> None:
    abi, content = abi_of("wasm32-wasi"), images[0].read_bytes()
    symbol = Network("any@wasm:float32", (), (), 1).symbol
    assert check_module(images[0], abi, "any.wasm", symbol) == {"needed": ["wasi_snapshot_preview1"]}
    refused = {
        "exports": (content, "tvmflow_network_other"),
        "imports": (content.replace(b"clock_time_get", b"path_unlink_fx"), symbol),
        "not a module": (b"\x7fELF" + content[4:], symbol),
        "cut off": (content[:-100], symbol),
        "section of kind 8": (content + bytes([8, 1, 0]), symbol),
        "twice": (content + bytes([1, 1, 0]), symbol),
    }
    for text, (changed, name) in refused.items():
        (tmp_path / "any.wasm").write_bytes(changed)
        with pytest.raises(BundleError, match=text):
            check_module(tmp_path / "any.wasm", abi, "any.wasm", name)
    draw = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content[:6000])
        for at in draw.integers(8, len(changed), 3):
            changed[at] = draw.integers(256)
        (tmp_path / "any.wasm").write_bytes(bytes(changed) + content[6000:])
        try:
            check_module(tmp_path / "any.wasm", abi, "any.wasm", symbol)
        except BundleError as error:
            assert error.found.startswith("any.wasm: ")


def test_an_app_takes_it_from_a_bundle(session: NodeSession, tmp_path: Path) -> None:
    part, keys = wasm_part(tmp_path / "part", BACKEND), new_keys(tmp_path / "key")
    write_bundle(tmp_path / "web.zip", [part], BundleRequest("web"), signing_key(keys.private))
    [library] = verify(tmp_path / "web.zip", Trust(public_key(keys.public))).libraries
    assert library.ran == "not run here: it is for wasm32"
    with zipfile.ZipFile(tmp_path / "web.zip") as archive:
        archive.extractall(tmp_path / "web")
    manifest = json.loads((tmp_path / "web" / "manifest.json").read_text())
    place = manifest["libraries"][0]
    readme = (tmp_path / "web" / "README.md").read_text()
    code = re.search(r"```js\n(.*?)```", readme, re.S)
    assert code is not None and "examples/app.c" not in readme
    script = code[1].replace(f'"{place["file"]}"', f'(await import("node:fs")).readFileSync("{place["file"]}")')
    (tmp_path / "web" / "page.mjs").write_text(f"{script}\nconsole.log(JSON.stringify(Array.from(outputs.scores)));\n")
    done = subprocess.run(
        [node_program(), "page.mjs"], cwd=tmp_path / "web", capture_output=True, text=True, check=True
    )
    model = session.network(session.upload(tmp_path / "web" / place["file"]), tmp_path, ())
    with np.load(tmp_path / "part" / "fetch" / "golden.npz") as inputs:
        with np.load(tmp_path / "part" / "quantize" / "reference.npz") as expected:
            wanted = expected[expected.files[0]]
            for x, y in zip(inputs[inputs.files[0]], wanted, strict=True):
                np.testing.assert_allclose(model.run(x[None])[0][0], y, rtol=1e-4, atol=1e-6)
    zeros = model.run(np.zeros((1, 3, 12, 12), np.float32))[0]
    assert np.array_equal(np.float32(json.loads(done.stdout.splitlines()[-1])), zeros[0])


def test_targets_that_cannot_be() -> None:
    for changed, text in (
        ({"threads": 2}, "threads: 2 of a target of kind wasm"),
        ({"mtriple": "aarch64-linux-gnu"}, "aarch64"),
        ({"mtriple": "wasm32-linux-gnu"}, "no system 'linux-gnu'"),
        ({"mattr": ("-simd128",)}, "without vectors"),
        ({"mattr": ("+simd129",)}, "no such feature of wasm32"),
    ):
        with pytest.raises(UsageError, match=text):
            WasmBackend.resolve(TARGET.model_copy(update=changed))
