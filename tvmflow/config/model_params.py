"""Define the block of a model in params.yaml: weights, inputs, preprocessing and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, WrapValidator, model_validator

from tvmflow.config.buckets import MAX_AXES, MAX_BUCKETS, MAX_SIZES, Axis, Sizes
from tvmflow.config.fixed_inputs import DTYPES as DTYPES
from tvmflow.config.fixed_inputs import Dtype, FixedInput
from tvmflow.config.stage_params import Frozen
from tvmflow.config.value_types import (
    Buckets,
    Finite,
    Line,
    Name,
    OpenShape,
    PathText,
    Positive,
    PositiveFloat,
    Seed,
    Sha256,
    check_shape,
)
from tvmflow.support.samples import batch_of


class Training(Frozen):
    """The training of a network by a `train:` weights source; all keys are in the recipe key."""

    epochs: Positive = 20
    batch_size: Positive = 64
    learning_rate: PositiveFloat = 0.004
    seed: Seed = 7


class Part(Frozen):
    """A further file of a model from a url: MXNet's parameters, or ONNX's external data under its own name."""

    url: Line
    sha256: Sha256
    name: PathText | None = None


class Weights(Frozen):
    """The source of the weights: exactly one of url, file, zoo, seeded, train."""

    url: Line | None = None
    file: PathText | None = None
    zoo: Line | None = None
    seeded: Seed | None = None
    train: Training | None = None
    sha256: Sha256 | None = None
    parts: Annotated[tuple[Part, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _exactly_one(self) -> Weights:
        given = [k for k in ("url", "file", "zoo", "seeded", "train") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of url, file, zoo, seeded, train; found {given or 'none'}")
        if self.url is not None and self.sha256 is None:
            raise ValueError("a url needs its sha256, so that the bytes can be trusted")
        if self.parts and self.url is None:
            raise ValueError("parts are only for a url; further files of a local file are found next to it")
        if self.sha256 is not None and given[0] in ("seeded", "train"):
            raise ValueError(f"sha256 has no meaning for weights made by {given[0]}")
        return self

    @property
    def kind(self) -> str:
        return next(k for k in ("url", "file", "zoo", "seeded", "train") if getattr(self, k) is not None)


class InputTensor(Frozen):
    """An input: shape (batch first, NCHW for images; [] for a scalar), dtype, and range low <= x < high.

    Integer inputs of types int32 and int64 need `high`, such as the size of a vocabulary. A name in the shape is one of
    the model's `buckets`; pad: the padding value up to a bucket.
    """

    shape: OpenShape
    dtype: Dtype = "float32"
    low: Finite | None = None
    high: Finite | None = None
    pad: Finite = 0.0

    @model_validator(mode="after")
    def _bounded(self) -> InputTensor:
        if self.dtype in ("int32", "int64") and self.high is None:
            raise ValueError(f"an {self.dtype} input needs high: one more than its largest value")
        if self.low is not None and self.high is None:
            raise ValueError("low without high; set both: low <= x < high")
        if self.high is not None and not (self.low or 0) < self.high:
            raise ValueError(f"low below high; found {self.low or 0:g} and {self.high:g}")
        top = {"bool": 2.0, "int8": 128.0, "uint8": 256.0}.get(self.dtype, self.high)
        if self.dtype != "float32" and not (self.pad.is_integer() and 0 <= self.pad < (top or 0)):
            raise ValueError(
                f"pad of an {self.dtype} input is a whole number from 0, below {top:g}; found {self.pad:g}"
            )
        return self


@dataclass(frozen=True)
class Tensor:
    """An input with the shape of the largest bucket."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None


class Input(InputTensor):
    """The single input of a model; its name is for display only."""

    name: Name = "input"


def _read_input(block: Any, _handler: Any) -> InputTensor | FixedInput:
    """Read a block by the one class that it is of, so that errors name only the keys of that class."""
    if isinstance(block, (InputTensor, FixedInput)):
        return block
    kind = FixedInput if isinstance(block, dict) and "value" in block else InputTensor
    return kind.model_validate(block)


NamedInput = Annotated[InputTensor | FixedInput, WrapValidator(_read_input)]
Task = Literal["classification", "segmentation", "embedding", "detection", "other"]


_IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
PRESETS: dict[str, dict[str, Any]] = {
    "torchvision": {**_IMAGENET, "fit": "crop", "interpolation": "bilinear"},
    "keras/tf": {"scale": 1 / 127.5, "mean": (1.0,), "fit": "stretch", "interpolation": "nearest"},
    "keras/torch": {**_IMAGENET, "fit": "stretch", "interpolation": "nearest"},
    "keras/caffe": {
        "channels": "BGR",
        "mean": (103.939, 116.779, 123.68),
        "fit": "stretch",
        "interpolation": "nearest",
    },
    "keras/none": {"fit": "stretch", "interpolation": "nearest"},
    "mxnet": {**_IMAGENET, "fit": "crop", "interpolation": "bicubic"},
}
"""What `preset:` stands for: torchvision's ImageNet weights, the modes of Keras's `preprocess_input`, Gluon's zoo."""


class Preprocess(Frozen):
    """x -> (x * scale - mean) / std, per channel for lists; before that, the conversion of an image file to x.

    fit: `crop` resizes the shorter side to `resize` pixels (default: 8/7 of the crop) and crops the center, `stretch`
    resizes to the input's size. channels: channel order of the model; data sets are RGB. white: the value of pixel 255.
    dataset: whether the images of an .npz data set are raw, or are what the model takes.
    """

    preset: Literal["torchvision", "keras/tf", "keras/torch", "keras/caffe", "keras/none", "mxnet"] | None = None
    scale: Finite = 1.0
    mean: Annotated[tuple[Finite, ...], Field(strict=False)] = (0.0,)
    std: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] = (1.0,)
    fit: Literal["crop", "stretch"] = "crop"
    resize: Annotated[int, Field(gt=0, le=16384)] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    channels: Literal["RGB", "BGR"] = "RGB"
    white: PositiveFloat = 255.0
    dataset: Literal["raw", "preprocessed"] = "raw"

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        preset = data.get("preset") if isinstance(data, dict) else None
        return {**PRESETS[preset], **data} if isinstance(preset, str) and preset in PRESETS else data


class ImageFolder(Frozen):
    """A folder of images with one subfolder per class; or labels: a CSV file with the columns file and class."""

    folder: PathText
    labels: PathText | None = None


class ModelEntry(Frozen):
    framework: Name
    network: Line | None = None
    weights: Weights
    input: Input | None = None
    inputs: dict[Line, NamedInput] = Field(default_factory=dict)
    buckets: dict[Name, Buckets] = Field(default_factory=dict)
    state: dict[Line, Line] = Field(default_factory=dict)
    signature: Line | None = None
    outputs: Annotated[tuple[Line, ...], Field(strict=False)] = ()
    task: Task | None = None
    metric: Name | None = None
    preprocess: Preprocess = Preprocess()
    dataset: PathText | ImageFolder | None = None
    labels: PathText | None = None
    tokenizer: PathText | None = None

    @model_validator(mode="after")
    def _network_or_file(self) -> ModelEntry:
        if self.network is None and self.weights.kind not in ("file", "url"):
            raise ValueError(f"weights from '{self.weights.kind}' need network: the factory of the model")
        if self.weights.kind == "train" and self.dataset is None:
            raise ValueError("weights: {train: ...} need a dataset to train on")
        if self.metric is not None and self.dataset is None:
            raise ValueError("a metric needs a dataset, to whose labels it compares the outputs")
        return self

    @model_validator(mode="after")
    def _has_signature(self) -> ModelEntry:
        if (self.signature or self.outputs) and self.framework != "tensorflow":
            raise ValueError("signature and outputs are for models of framework tensorflow")
        if len(set(self.outputs)) < len(self.outputs):
            raise ValueError(f"outputs: each name once; found {list(self.outputs)}")
        return self

    @model_validator(mode="after")
    def _has_inputs(self) -> ModelEntry:
        if (self.input is None) == (not self.inputs):
            raise ValueError(
                "exactly one of input, for a model of one input, and inputs, by the names of the model's own"
            )
        if not self._given:
            raise ValueError("an input without value; all inputs are fixed")
        return self

    @model_validator(mode="after")
    def _has_buckets(self) -> ModelEntry:
        shapes = {name: tensor.shape for name, tensor in self._given.items()}
        named = {size for shape in shapes.values() for size in shape if isinstance(size, str)}
        if named != set(self.buckets):
            raise ValueError(f"buckets for the names in shapes, {sorted(named)}; found {sorted(self.buckets)}")
        sizes = self.sizes
        if sizes is None:
            return self
        if len({shape[:1] for shape in shapes.values()} | {()}) > 2 or () in shapes.values():
            raise ValueError(f"buckets need the same batch (first size) of all inputs; found {list(shapes.values())}")
        if len(self.buckets) > MAX_SIZES or len(sizes.all) > MAX_BUCKETS:
            raise ValueError(
                f"at most {MAX_SIZES} names with {MAX_BUCKETS} buckets in all; found {len(self.buckets)} "
                f"and {len(sizes.all)}"
            )
        for name, shape in shapes.items():
            if len(shape) > MAX_AXES or any(shape.count(size) > 1 for size in self.buckets):
                raise ValueError(
                    f"a shape of at most {MAX_AXES} sizes, each name at most once; found {list(shape)} of {name}"
                )
            check_shape(self.tensors[name].shape)
        return self

    @model_validator(mode="after")
    def _has_states(self) -> ModelEntry:
        unknown = sorted(set(self.state) - (set(self._given) if self.inputs else set()))
        if unknown or len(set(self.state.values())) < len(self.state):
            raise ValueError(
                f"state: names of inputs, each with an output of its own; found {unknown or list(self.state.values())}"
            )
        if self.state and self.buckets:
            raise ValueError("state in a model of one size; found buckets, too")
        return self

    @property
    def _given(self) -> dict[str, InputTensor]:
        """Return the inputs that a run sets by name, in order."""
        if self.input is not None:
            return {self.input.name: self.input}
        return {name: one for name, one in self.inputs.items() if isinstance(one, InputTensor)}

    @property
    def fixed(self) -> dict[str, FixedInput]:
        """Return the inputs of one value by name."""
        return {name: one for name, one in self.inputs.items() if isinstance(one, FixedInput)}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the inputs by name, in order, with the shapes of the largest bucket."""
        return {
            name: Tensor(self._largest(one.shape), one.dtype, one.low, one.high) for name, one in self._given.items()
        }

    def _largest(self, shape: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(self.buckets[size][-1] if isinstance(size, str) else size for size in shape)

    @property
    def batch(self) -> int:
        """Return how many samples a run takes, or WHOLE."""
        return batch_of([tensor.shape for tensor in self.tensors.values()])

    @property
    def sizes(self) -> Sizes | None:
        """Return the dynamic sizes, None if all inputs have a fixed shape."""
        if not self.buckets:
            return None
        names = list(self.buckets)
        axes = tuple(
            Axis(at, axis, names.index(size))
            for at, tensor in enumerate(self._given.values())
            for axis, size in enumerate(tensor.shape)
            if isinstance(size, str)
        )
        return Sizes(tuple(names), tuple(self.buckets.values()), axes, tuple(one.pad for one in self._given.values()))
