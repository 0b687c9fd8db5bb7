"""Compare each imported module with its source framework."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.tensorflow_models import run_in_environment
from tests.fuzz.seeds import params_bytes, symbol_json
from tvmflow.config.stage_params import Int8Params
from tvmflow.evaluation.fastest_variant import difference_of
from tvmflow.evaluation.first_difference import first_differing_layer
from tvmflow.frontends.registry import FRONTENDS, load_source
from tvmflow.frontends.source_model import SourceDescription, SourceModel, one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.errors import AgreementError, ModelFileError, TvmflowError
from tvmflow.support.progress import silent
from tvmflow.toolchain.environments import run_tool

Array = np.ndarray[Any, Any]
BOUND = 2e-5  # float32 sums in another order, relative to the largest output


def _x(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _error(source: SourceModel, x: Array) -> float:
    output, reference = run_graph(read_graph(canonicalize(source.to_relax())), x), source.run(x)[0]
    assert output.shape == reference.shape
    return float(np.abs(output - reference).max() / np.abs(reference).max())


def _agreeing_variants(source: SourceModel, x: Array) -> set[str]:
    """Return the variants of a peer that compute what the model does; in a tool environment they are timed there."""
    source.use_threads(1)
    expected, agreeing = source.run(x), set()
    for way in source.variants(x):
        try:
            prepared = way.prepare()
        except TvmflowError:
            continue
        assert difference_of(prepared.read(prepared.run()), expected) is None, way.name
        assert prepared.time_runs is None or len(prepared.time_runs(3)) == 3
        agreeing.add(way.name)
    return agreeing


def _load(folder: Path, framework: str, file: str, shape: tuple[int, ...], network: str | None = None) -> SourceModel:
    return load_source(folder, SourceDescription(framework, network, file, one_input("input", shape)))


# -- MXNet, against MXNet itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "network",
    [
        "mobilenetv2_0.25",
        "squeezenet1.1",
        pytest.param("resnet18_v2", marks=pytest.mark.slow),
        pytest.param("inceptionv3", marks=pytest.mark.slow),
    ],
)
def test_gluon_networks(tmp_path: Path, network: str) -> None:
    request = WeightsRequest(
        "mxnet",
        f"mxnet/{network}",
        {"seeded": 3},
        tmp_path,
        DownloadLimits(1, 1, 1.0),
        tmp_path,
        FRONTENDS["mxnet"].files,
    )
    path = fetch_weights(request, tmp_path, None, silent)
    size = 299 if network == "inceptionv3" else 224
    source = _load(tmp_path, "mxnet", path.name, (1, 3, size, size))
    assert _error(source, _x((1, 3, size, size))) < BOUND


OPERATORS: list[tuple[str, dict[str, str], dict[str, tuple[int, ...]]]] = [
    ("LeakyReLU", {"act_type": "leaky", "slope": "0.1"}, {}),
    ("LeakyReLU", {"act_type": "elu", "slope": "0.5"}, {}),
    ("LeakyReLU", {"act_type": "prelu"}, {"gamma": (4,)}),
    ("Activation", {"act_type": "sigmoid"}, {}),
    ("Activation", {"act_type": "tanh"}, {}),
    ("Activation", {"act_type": "softrelu"}, {}),
    ("Activation", {"act_type": "softsign"}, {}),
    ("LRN", {"nsize": "3", "alpha": "0.01", "beta": "0.6", "knorm": "1.5"}, {}),
    ("Pooling", {"kernel": "(3, 3)", "stride": "(2, 2)", "pool_type": "max", "pooling_convention": "full"}, {}),
    ("Pooling", {"kernel": "(3, 3)", "stride": "(2, 2)", "pad": "(1, 1)", "pool_type": "avg"}, {}),
    ("Pooling", {"kernel": "(3, 3)", "pad": "(1, 1)", "pool_type": "avg", "count_include_pad": "False"}, {}),
    ("Pooling", {"global_pool": "True", "pool_type": "max", "kernel": "(1, 1)"}, {}),
    (
        "Deconvolution",
        {"kernel": "(3, 3)", "stride": "(2, 2)", "pad": "(1, 1)", "adj": "(1, 1)", "num_filter": "6"},
        {"weight": (4, 6, 3, 3)},
    ),
    (
        "Convolution",
        {"kernel": "(3, 3)", "num_filter": "4", "num_group": "2", "dilate": "(2, 2)"},
        {"weight": (4, 2, 3, 3), "bias": (4,)},
    ),
    ("BatchNorm", {"fix_gamma": "True", "eps": "0.01"}, {"gamma": (4,), "beta": (4,), "mean": (4,), "var": (4,)}),
    ("BatchNorm", {"fix_gamma": "False"}, {"gamma": (4,), "beta": (4,), "mean": (4,), "var": (4,)}),
    ("FullyConnected", {"num_hidden": "5", "flatten": "True"}, {"weight": (5, 256), "bias": (5,)}),
    ("Reshape", {"shape": "(0, -1)"}, {}),
    ("slice_axis", {"axis": "1", "begin": "1", "end": "3"}, {}),
    ("transpose", {"axes": "(0, 2, 3, 1)"}, {}),
    ("mean", {"axis": "(2, 3)", "keepdims": "True"}, {}),
    ("clip", {"a_min": "-0.3", "a_max": "0.4"}, {}),
    ("_mul_scalar", {"scalar": "2.5"}, {}),
    ("_rminus_scalar", {"scalar": "1"}, {}),
    ("SoftmaxActivation", {"mode": "channel"}, {}),
    ("log_softmax", {"axis": "1"}, {}),
]


def test_operators_one_by_one(tmp_path: Path) -> None:
    """All operators as outputs would need one process each: here each is its own file, tested by one check."""
    x = _x((1, 4, 8, 8))
    wrong = []
    for at, (op, attrs, parameters) in enumerate(OPERATORS):
        generator = np.random.default_rng(at)
        arrays, nodes = {}, [("null", "data", {}, [])]
        for name, shape in parameters.items():
            prefix = "aux:" if name in ("mean", "var") else "arg:"
            arrays[f"{prefix}{name}"] = generator.uniform(0.5, 1.5, shape).astype(np.float32)
            nodes.append(("null", name, {}, []))
        nodes.append((op, "out", attrs, list(range(len(nodes)))))
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / "model-symbol.json").write_text(symbol_json(nodes, len(nodes) - 1))
        (folder / "model-0000.params").write_bytes(params_bytes(arrays or {"arg:unused": np.ones(1, np.float32)}, 2))
        source = _load(folder, "mxnet", "model-symbol.json", x.shape)
        if _error(source, x) > BOUND:
            wrong.append((op, attrs, _error(source, x)))
    assert wrong == []


def test_a_softmax_head_and_a_second_epoch(tmp_path: Path) -> None:
    """The head that training leaves has a label input; of several epochs the last counts."""
    nodes = [
        ("null", "data", {}, []),
        ("null", "w", {}, []),
        ("null", "softmax_label", {}, []),
        ("FullyConnected", "fc", {"num_hidden": "3", "no_bias": "True"}, [0, 1]),
        ("SoftmaxOutput", "softmax", {}, [3, 2]),
    ]
    (tmp_path / "net-symbol.json").write_text(symbol_json(nodes, 4))
    for epoch, value in (("0001", 0.0), ("0012", 1.0)):
        weight = np.eye(3, 4, dtype=np.float32) * value
        (tmp_path / f"net-{epoch}.params").write_bytes(params_bytes({"arg:w": weight}, 2))
    (tmp_path / "out").mkdir()
    request = WeightsRequest(
        "mxnet",
        None,
        {"file": "net-symbol.json"},
        tmp_path,
        DownloadLimits(1, 1, 1.0),
        tmp_path,
        FRONTENDS["mxnet"].files,
    )
    path = fetch_weights(request, tmp_path / "out", None, silent)
    source = _load(tmp_path / "out", "mxnet", path.name, (2, 4))
    assert _error(source, _x((2, 4))) < BOUND and np.ptp(source.run(_x((2, 4)))[0]) > 0.1
    assert "executor" in _agreeing_variants(source, _x((2, 4)))
    (tmp_path / "alone-symbol.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"alone-0000\.params next to"):
        FRONTENDS["mxnet"].files.companions(tmp_path / "alone-symbol.json")


def test_the_first_differing_layer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmflow.frontends.mxnet import operators as mxnet_operators

    nodes = [
        ("null", "data", {}, []),
        ("relu", "one", {}, [0]),
        ("_mul_scalar", "two", {"scalar": "3"}, [1]),
        ("tanh", "three", {}, [2]),
    ]
    (tmp_path / "model-symbol.json").write_text(symbol_json(nodes, 3))
    (tmp_path / "model-0000.params").write_bytes(params_bytes({"arg:unused": np.ones(1, np.float32)}, 2))
    source, x = _load(tmp_path, "mxnet", "model-symbol.json", (1, 4)), _x((1, 4))
    assert first_differing_layer(source, x, 1e-5) is None
    monkeypatch.setitem(mxnet_operators.OPERATORS, "_mul_scalar", lambda o: o.values[0])  # an importer with a mistake
    assert first_differing_layer(source, x, 1e-5) == "two_output"
    assert AgreementError is not None


# -- TensorFlow --------------------------------------------------------------------------------------------------------


def test_saved_model_and_tflite_float_and_int8(tmp_path: Path) -> None:
    run_in_environment("make", "1", str(tmp_path / "saved"))
    shutil.make_archive(str(tmp_path / "model"), "zip", tmp_path / "saved")
    run_tool("tensorflow", ["convert", str(tmp_path / "saved"), str(tmp_path / "model.tflite")])
    run_in_environment("convert_int8", str(tmp_path / "saved"), str(tmp_path / "int8.tflite"))
    first, last = (1, 3, 32, 32), (1, 32, 32, 3)
    x = _x(first)
    saved, plain = (
        _load(tmp_path, "tensorflow", "model.zip", first),
        _load(tmp_path, "tensorflow", "model.tflite", first),
    )
    for source in (saved, plain):
        assert _error(source, x) < BOUND
    assert np.abs(saved.run(x)[0] - plain.run(x)[0]).max() < 1e-5
    assert _agreeing_variants(saved, x) >= {"concrete function", "frozen function"}
    assert _agreeing_variants(plain, x) == {"LiteRT, XNNPACK"}
    assert _error(_load(tmp_path, "tensorflow", "model.tflite", last), x.transpose(0, 2, 3, 1).copy()) < BOUND
    ops = Counter(step.op for step in read_graph(canonicalize(plain.to_relax())).steps)
    assert ops["relax.permute_dims"] == 0 and ops["relax.nn.conv2d"] == 3
    integer = _load(tmp_path, "tensorflow", "int8.tflite", first)
    module = canonicalize(integer.to_relax())
    reference = integer.run(x)[0]
    step = 1 / 256  # of the softmax's output scale
    assert np.abs(run_graph(read_graph(module), x) - reference).max() <= 2 * step
    quantized, report = quantize_int8(module, x, None, Int8Params(max_drop=None))
    assert np.abs(run_graph(read_graph(quantized), x) - reference).max() <= 3 * step
    assert {layer.dtype for layer in report.layers if layer.kind == "conv"} == {"uint8"}
    names = [name for name, _ in plain.layers(x)]
    assert len(names) >= 4 and first_differing_layer(plain, x, 1e-4) is None
    with pytest.raises(ModelFileError, match=r"input\.shape"):
        _load(tmp_path, "tensorflow", "model.tflite", (1, 3, 31, 32))


# -- Keras -------------------------------------------------------------------------------------------------------------


def _keras_model() -> Any:
    from tvmflow.sources.networks.keras_zoo import keras_on_torch

    keras = keras_on_torch()
    keras.utils.set_random_seed(1)
    layers, x = keras.layers, keras.Input((32, 32, 3))
    y = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)  # pads right and below only
    y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
    z = layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(y))
    y = layers.Add()([y, layers.Conv2D(8, 1)(layers.ReLU(6.0)(z))])
    y = layers.Conv2D(16, 3, strides=2)(layers.ZeroPadding2D(((0, 1), (0, 1)))(y))
    return keras.Model(x, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(y)))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_channels_last_keras_file_computes_channels_first(tmp_path: Path, suffix: str) -> None:
    from tvmflow.sources.networks.keras_zoo import settle

    model = settle(_keras_model(), 1)
    model.save(tmp_path / f"model{suffix}")
    x = _x((1, 3, 32, 32))
    source = _load(tmp_path, "keras", f"model{suffix}", (1, 3, 32, 32))
    assert _error(source, x) < 5e-4  # batch norms of few numbers enlarge what float32 rounds
    ops = Counter(step.op for step in read_graph(canonicalize(source.to_relax())).steps)
    assert ops["relax.nn.conv2d"] == 4 and ops["relax.permute_dims"] == 0
    last = _load(tmp_path, "keras", f"model{suffix}", (1, 32, 32, 3))
    assert _error(last, x.transpose(0, 2, 3, 1).copy()) < 5e-4  # batch norms of few numbers enlarge what float32 rounds


def test_the_legacy_weight_file_of_the_android_document(tmp_path: Path) -> None:
    """Its layout: one HDF5 group per layer, named in attributes as old Keras did; layers are matched by their order."""
    import h5py

    from tvmflow.sources.networks.keras_zoo import build

    model = build("keras/mobilenet_v2_050", 5)
    with h5py.File(tmp_path / "model.h5", "w") as file:
        groups = []
        for at, layer in enumerate(model.layers):
            name = f"old_{at}"
            group = file.create_group(name)
            names = []
            for variable in layer.weights:
                path = f"{name}/{variable.name}:0"
                group.create_dataset(path, data=np.asarray(variable.value.detach().numpy()))
                names.append(path.encode())
            group.attrs["weight_names"] = names
            groups.append(name.encode())
        file.attrs["layer_names"], file.attrs["backend"], file.attrs["keras_version"] = groups, b"tensorflow", b"2.1.5"
    source = _load(tmp_path, "keras", "model.h5", (1, 3, 224, 224), "keras/mobilenet_v2_050")
    x = _x((1, 3, 224, 224))
    import torch

    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    assert np.array_equal(source.run(x)[0], expected)


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def test_an_exported_program_with_any_batch(tmp_path: Path) -> None:
    import torch

    from tvmflow.sources.networks.torch_zoo import build

    network, x = build("digits_cnn", 1), _x((3, 1, 8, 8))
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(network, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    source = _load(tmp_path, "torch", "model.pt2", (3, 1, 8, 8))
    assert _error(source, x) < BOUND and first_differing_layer(source, x, 1e-5) is None


def test_torchscript_and_a_factory_of_the_users_own(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from tvmflow.sources.networks.torch_zoo import build

    network, x = build("digits_cnn", 1), _x((1, 1, 8, 8))
    torch.jit.trace(network, torch.zeros(1, 1, 8, 8)).save(str(tmp_path / "model.torchscript"))
    source = _load(tmp_path, "torch", "model.torchscript", x.shape)
    assert _error(source, x) < BOUND
    assert np.abs(source.run(x)[0] - network(torch.from_numpy(x)).detach().numpy()).max() < 1e-5
    (tmp_path / "network.py").write_text(
        "import torch\ndef mine():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
    )
    mine = build("network.py:mine", 4, tmp_path)
    save_file(mine.state_dict(), tmp_path / "model.safetensors")
    source = _load(tmp_path, "torch", "model.safetensors", x.shape, "network.py:mine")
    assert _error(source, x) < BOUND
