"""List the frontends, the values of `framework:` of a model.

The reader of a model is imported when it is called; its file names are available without that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tvmflow.config.plugins import Table
from tvmflow.frontends.source_model import SourceDescription, SourceModel, no_fixed_inputs
from tvmflow.sources.weights import WeightFiles, mxnet_parameters
from tvmflow.support.errors import UnknownNameError


@dataclass(frozen=True)
class Frontend:
    """load: loads the model of a fetched folder in its own framework; raises ModelFileError.

    tools: tools whose versions can change its outputs, for `toolchain.version`. files: the files of a model.
    network_tools: further ones for networks named TOOL/NAME, and for networks of a file, which may import them.
    has_networks: networks of the framework can be made here, so that weights may be seeded, trained or a zoo's.
    same_peer: the baseline of `evaluate` that is the same runtime. fixes_inputs: inputs may have a `value`.
    own_files: endings of the files, among `files`, that are read without its tool environments.
    state_tools: tools with which `fetch` runs a file that declares states itself, to take its samples as a stream; none
    if no file does.
    """

    load: Callable[[Path, SourceDescription], SourceModel]
    tools: tuple[str, ...]
    files: WeightFiles
    network_tools: tuple[str, ...] = ()
    has_networks: bool = True
    same_peer: str | None = None
    state_tools: tuple[str, ...] = ()
    fixes_inputs: bool = False
    own_files: tuple[str, ...] = ()


def _torch(folder: Path, description: SourceDescription) -> SourceModel:
    from tvmflow.frontends.pytorch import frontend as torch

    return torch.load(folder, description)


def _keras(folder: Path, description: SourceDescription) -> SourceModel:
    from tvmflow.frontends.keras import frontend as keras

    return keras.load(folder, description)


def _mxnet(folder: Path, description: SourceDescription) -> SourceModel:
    from tvmflow.frontends.mxnet import frontend as mxnet

    return mxnet.load(folder, description)


def _onnx(folder: Path, description: SourceDescription) -> SourceModel:
    from tvmflow.frontends.onnx import frontend as onnx

    return onnx.load(folder, description)


def _onnx_external_data(path: Path) -> dict[str, Path]:
    from tvmflow.frontends.onnx import external_data as onnx_companions

    return onnx_companions.onnx_external_data(path)


def _saved_model_files(path: Path) -> dict[str, Path]:
    from tvmflow.frontends.tensorflow import saved_models

    return saved_models.companions(path)


def _tensorflow(folder: Path, description: SourceDescription) -> SourceModel:
    from tvmflow.frontends.tensorflow import frontend as tensorflow

    return tensorflow.load(folder, description)


FRONTENDS: Table[Frontend] = Table(
    "frontends",
    {
        "torch": Frontend(
            _torch,
            ("torch", "onnxscript"),
            WeightFiles((".safetensors", ".pt2", ".torchscript", ".pt", ".pth", ".jit")),
            state_tools=("torch",),
            fixes_inputs=True,
            network_tools=("torchvision",),
        ),
        "keras": Frontend(_keras, ("keras", "torch", "onnxscript"), WeightFiles((".keras", ".weights.h5", ".h5"))),
        "mxnet": Frontend(
            _mxnet, ("tool:mxnet",), WeightFiles(("-symbol.json",), mxnet_parameters, part_name="model-0000.params")
        ),
        "onnx": Frontend(
            _onnx,
            ("onnx", "onnxruntime"),
            WeightFiles((".onnx",), _onnx_external_data),
            has_networks=False,
            same_peer="onnxruntime",
            fixes_inputs=True,
        ),
        "tensorflow": Frontend(
            _tensorflow,
            ("tflite", "ai-edge-litert", "tool:tensorflow"),
            WeightFiles((".tflite", ".zip", ".tar.gz", ".tgz", ".pb"), _saved_model_files),
            has_networks=False,
            state_tools=("tflite", "ai-edge-litert"),
            fixes_inputs=True,
            own_files=(".tflite",),
        ),
    },
)


def frontend_named(framework: str) -> Frontend:
    """Return the frontend of a framework. Raises UnknownNameError."""
    if framework not in FRONTENDS:
        raise UnknownNameError(f"no frontend for {framework!r}", legal=FRONTENDS)
    return FRONTENDS[framework]


def tools_of(framework: str, network: str | None) -> tuple[str, ...]:
    """Return the tools whose versions can change what a model's framework makes of it. Raises UnknownNameError."""
    frontend, name = frontend_named(framework), network or ""
    return (*frontend.tools, *(tool for tool in frontend.network_tools if name.startswith(f"{tool}/") or ":" in name))


def environments_of(framework: str, files: Iterable[str]) -> tuple[str, ...]:
    """Return the tool environments that a model needs, as `tool:NAME`. files: names in its fetched folder. Raises
    UnknownNameError.
    """
    frontend = frontend_named(framework)
    if any(name.endswith(frontend.own_files) for name in files):
        return ()
    return tuple(tool for tool in frontend.tools if tool.startswith("tool:"))


def load_source(folder: Path, description: SourceDescription) -> SourceModel:
    """Load a fetched model in its own framework. Raises UnknownNameError or ModelFileError."""
    frontend = frontend_named(description.framework)
    if description.fixed and not frontend.fixes_inputs:
        raise no_fixed_inputs(f"models of {description.framework}", description)
    return frontend.load(folder, description)
