"""Import every layer of Keras, and write docs/keras_layers.md.

    python -m bench.conformance.keras_layers [NAME ...]     # without names: all, and the page

Each layer is a model of its own with seeded weights, saved as .keras, imported as any file is, compiled for this
machine and compared with Keras on three inputs. What a layer does in training only is not in the library.
"""

from __future__ import annotations

import argparse
import inspect
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

os.environ["KERAS_BACKEND"] = "torch"

DOCUMENT = Path(__file__).parents[2] / "docs" / "keras_layers.md"
_BOUND = 2e-5  # of the largest output
_IMAGE, _ROWS, _VOLUME, _VECTOR = (8, 8, 6), (8, 6), (4, 4, 4, 6), (6,)
_TWO = "Add Average Maximum Minimum Multiply Subtract"
_DROPOUTS = "AlphaDropout Dropout GaussianDropout SpatialDropout1D SpatialDropout2D SpatialDropout3D"
_POOLS = "AveragePooling MaxPooling"
# Layers that no network file needs, with the reason.
NOT_IN_NETWORKS = {
    **dict.fromkeys("InputLayer Layer Wrapper".split(), "no computation of its own"),
    **dict.fromkeys("FlaxLayer JaxLayer TFSMLayer TorchModuleWrapper".split(), "code of another framework"),
    **dict.fromkeys(
        "HashedCrossing Hashing IntegerLookup StringLookup TextVectorization".split(), "tables of texts or numbers"
    ),
    "Lambda": "code in the file, which is not run",
    "MaxNumBoundingBoxes": "boxes of training data",
    **dict.fromkeys("GRUCell LSTMCell SimpleRNNCell StackedRNNCells".split(), "part of RNN, tested with it"),
}


@dataclass(frozen=True)
class Case:
    """make: returns the layer, or a function of its inputs; shapes: of the inputs without batch; bound: of integers, 0
    for real numbers.
    """

    make: Callable[[Any], Any]
    shapes: tuple[tuple[int, ...], ...] = (_VECTOR,)
    dtype: str = "float32"
    bound: int = 0


def _named(name: str, shape: tuple[int, ...] = _VECTOR, **options: Any) -> Case:
    return Case(lambda keras: getattr(keras.layers, name)(**options), (shape,))


def _of_two(name: str, shape: tuple[int, ...], separate: bool = False, **options: Any) -> Case:
    """Return the case of a layer of two inputs, in a list or separate."""

    def make(keras: Any) -> Any:
        layer = getattr(keras.layers, name)(**options)
        return (lambda x, y: layer(x, y)) if separate else layer

    return Case(make, (shape, shape))


def _cases() -> dict[str, Case]:
    """Return the cases by name of a layer."""
    cases = {
        name: _named(name, _IMAGE)
        for name in "ActivityRegularization ELU Identity LeakyReLU PReLU ReLU Softmax".split()
    }
    shapes = {"SpatialDropout1D": _ROWS, "SpatialDropout3D": _VOLUME}
    cases |= {name: _named(name, shapes.get(name, _IMAGE), rate=0.5) for name in _DROPOUTS.split()}
    cases |= {"Flatten": _named("Flatten", _ROWS), "GaussianNoise": _named("GaussianNoise", stddev=0.1)}
    cases |= {name: _of_two(name, _IMAGE) for name in _TWO.split()}
    for axes, shape in ((1, _ROWS), (2, _IMAGE), (3, _VOLUME)):
        cases |= {f"{pool}{axes}D": _named(f"{pool}{axes}D", shape, pool_size=2) for pool in _POOLS.split()}
        cases |= {f"Global{pool}{axes}D": _named(f"Global{pool}{axes}D", shape) for pool in _POOLS.split()}
        cases |= {
            f"Adaptive{pool}{axes}D": _named(f"Adaptive{pool}{axes}D", shape, output_size=2) for pool in _POOLS.split()
        }
        cases[f"Conv{axes}D"] = _named(f"Conv{axes}D", shape, filters=5, kernel_size=3, padding="same")
        cases[f"Conv{axes}DTranspose"] = _named(
            f"Conv{axes}DTranspose", shape, filters=4, kernel_size=3, strides=2, padding="same"
        )
        cases[f"ConvLSTM{axes}D"] = _named(f"ConvLSTM{axes}D", (3, *shape), filters=3, kernel_size=3)
        cases |= {
            f"{name}{axes}D": _named(f"{name}{axes}D", shape) for name in ("Cropping", "UpSampling", "ZeroPadding")
        }
    for axes, shape in ((1, _ROWS), (2, _IMAGE)):
        cases[f"DepthwiseConv{axes}D"] = _named(f"DepthwiseConv{axes}D", shape, kernel_size=3, depth_multiplier=2)
        cases[f"SeparableConv{axes}D"] = _named(f"SeparableConv{axes}D", shape, filters=5, kernel_size=3)
    attention = {name: _of_two(name, _ROWS) for name in ("Attention", "AdditiveAttention")}
    rows = {"MultiHeadAttention": {"num_heads": 2, "key_dim": 3}}
    rows["GroupQueryAttention"] = {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2}
    attention |= {name: _of_two(name, _ROWS, separate=True, **options) for name, options in rows.items()}
    return cases | attention | _single_cases()


def _single_cases() -> dict[str, Case]:
    images = (16, 16, 3)
    augmentations = (
        "AugMix AutoContrast CenterCrop ContrastLimitedAdaptiveHistogramEqualization CutMix Equalization MixUp "
        "RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop "
        "RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert "
        "RandomPerspective "
        "RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom "
        "Resizing Solarization"
    )
    sized = {"height": 12, "width": 12}
    options: dict[str, dict[str, Any]] = {
        **{name: sized for name in ("CenterCrop", "Resizing", "RandomCrop")},
        **{
            name: {"factor": 0.2}
            for name in (
                "RandomBrightness RandomColorDegeneration RandomContrast RandomHue RandomSaturation RandomSharpness "
                "RandomRotation"
            ).split()
        },
        "RandomPosterization": {"factor": 4},
        "RandomTranslation": {"height_factor": 0.1, "width_factor": 0.1},
        "RandomZoom": {"height_factor": 0.1},
    }
    found = {name: _named(name, images, **options.get(name, {})) for name in augmentations.split()}
    return found | {
        "Activation": _named("Activation", activation="swish"),
        "BatchNormalization": _named("BatchNormalization", _IMAGE),
        "Bidirectional": Case(lambda k: k.layers.Bidirectional(k.layers.LSTM(4, return_sequences=True)), (_ROWS,)),
        "CategoryEncoding": Case(lambda k: k.layers.CategoryEncoding(num_tokens=9), ((4,),), "int64", 9),
        "Concatenate": Case(lambda k: k.layers.Concatenate(), (_IMAGE, _IMAGE)),
        "Dense": _named("Dense", units=5, activation="gelu"),
        "Discretization": _named("Discretization", bin_boundaries=[-0.5, 0.0, 0.5]),
        "Dot": Case(lambda k: k.layers.Dot(axes=1), (_VECTOR, _VECTOR)),
        "EinsumDense": _named("EinsumDense", _ROWS, equation="abc,cd->abd", output_shape=(None, 5)),
        "Embedding": Case(lambda k: k.layers.Embedding(9, 5), ((4,),), "int64", 9),
        "GRU": _named("GRU", _ROWS, units=4),
        "GroupNormalization": _named("GroupNormalization", _IMAGE, groups=3),
        "LSTM": _named("LSTM", _ROWS, units=4),
        "LayerNormalization": _named("LayerNormalization", _ROWS),
        "Masking": _named("Masking", _ROWS),
        "MelSpectrogram": _named("MelSpectrogram", (2048,), fft_length=256, sequence_stride=128, num_mel_bins=16),
        "Normalization": _named("Normalization", mean=0.1, variance=2.0),
        "Permute": _named("Permute", _ROWS, dims=(2, 1)),
        "Pipeline": Case(lambda k: k.layers.Pipeline([k.layers.Dense(4), k.layers.ReLU()])),
        "RMSNormalization": _named("RMSNormalization", _ROWS),
        "RNN": Case(
            lambda k: k.layers.RNN(k.layers.StackedRNNCells([k.layers.SimpleRNNCell(4), k.layers.GRUCell(3)])), (_ROWS,)
        ),
        "RepeatVector": _named("RepeatVector", n=3),
        "Rescaling": _named("Rescaling", scale=0.5, offset=-1.0),
        "Reshape": _named("Reshape", _ROWS, target_shape=(4, 12)),
        "ReversibleEmbedding": Case(lambda k: k.layers.ReversibleEmbedding(9, 5), ((4,),), "int64", 9),
        "STFTSpectrogram": _named("STFTSpectrogram", (1024, 1), frame_length=64, frame_step=32, fft_length=64),
        "SimpleRNN": _named("SimpleRNN", _ROWS, units=4),
        "SpectralNormalization": Case(lambda k: k.layers.SpectralNormalization(k.layers.Dense(4))),
        "TimeDistributed": Case(lambda k: k.layers.TimeDistributed(k.layers.Dense(4)), (_ROWS,)),
        "UnitNormalization": _named("UnitNormalization"),
    }


CASES = _cases()


def layer_names() -> dict[str, str]:
    """Return each public name of keras.layers with the name of its class, which aliases share."""
    import keras

    classes = {
        name: value
        for name, value in vars(keras.layers).items()
        if inspect.isclass(value) and issubclass(value, keras.layers.Layer)
    }
    public = {value: name for name, value in sorted(classes.items(), reverse=True)}
    return {
        name: value.__name__ if classes.get(value.__name__) is value else public[value]
        for name, value in classes.items()
    }


def verdict(name: str) -> str:
    """Return "" where a layer is imported with Keras' outputs, else what is said; "WRONG ..." for other outputs."""
    import keras

    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.frontends.keras.frontend import load
    from tvmflow.frontends.source_model import SourceDescription, TensorSpec
    from tvmflow.passes.pipeline import canonicalize
    from tvmflow.support.errors import TvmflowError

    case = CASES[name]
    keras.utils.set_random_seed(1)
    inputs = [keras.Input(shape, batch_size=2, dtype=case.dtype, name=f"x{at}") for at, shape in enumerate(case.shapes)]
    layer = case.make(keras)
    is_layer = isinstance(layer, keras.layers.Layer)
    try:
        output = layer(inputs if len(inputs) > 1 else inputs[0]) if is_layer else layer(*inputs)
        model = keras.Model(inputs, output)
    except ValueError:
        return "Keras itself makes no model of it on its torch backend"
    specs = tuple(TensorSpec(f"x{at}", (2, *shape), case.dtype) for at, shape in enumerate(case.shapes))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        try:
            imported = load(Path(folder), SourceDescription("keras", None, "model.keras", specs))
            runner = LocalRunner.of_plain(canonicalize(imported.to_relax()), host_backend())
        except TvmflowError as error:
            return str(error.found).splitlines()[0].partition(": The error above")[0][:160]
    for seed in range(3):
        samples = _samples(case, seed)
        expected = [
            np.asarray(one) for one in _listed(model.predict_on_batch(samples if len(samples) > 1 else samples[0]))
        ]
        for one, other in zip(runner.run(*samples), expected, strict=True):
            if not np.allclose(one, other, rtol=0, atol=_BOUND * max(float(np.abs(other).max()), 1e-6), equal_nan=True):
                return f"WRONG by {float(np.abs(one - other).max()):.1e}"
    return ""


def _samples(case: Case, seed: int) -> list[Any]:
    draw = np.random.default_rng(seed)
    if case.bound:
        return [draw.integers(0, case.bound, (2, *shape)).astype(case.dtype) for shape in case.shapes]
    return [draw.normal(size=(2, *shape)).astype(case.dtype) for shape in case.shapes]


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


def page(verdicts: dict[str, str], version: str) -> str:
    """Return the text of docs/keras_layers.md."""
    aliases: dict[str, list[str]] = {}
    for alias, name in layer_names().items():
        aliases.setdefault(name, []).append(alias)
    rows = []
    for name in sorted(aliases):
        also = ", ".join(f"`{one}`" for one in sorted(set(aliases[name]) - {name}))
        said = NOT_IN_NETWORKS.get(name)
        text = (
            f"not in a network: {said}" if said else "imported" if not verdicts[name] else f"refused: {verdicts[name]}"
        )
        rows.append(f"| `{name}` | {also} | {text.replace('|', '/')} |")
    passed = sum(not said for said in verdicts.values())
    return (
        "# Layers of Keras\n\n"
        f"Written by `python -m bench.conformance.keras_layers` with Keras {version}. {passed} of {len(verdicts)}\n"
        "layers that networks have are imported: each as a model of its own, saved as `.keras`, with Keras' outputs\n"
        "on three inputs. What a layer does in training only (dropout, augmentation) is not in the library.\n\n"
        "| layer | also | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    import keras

    verdicts = {}
    for name in options.names or sorted(CASES):
        try:
            verdicts[name] = verdict(name)
        except Exception as error:  # what a layer of Keras or TVM raises
            verdicts[name] = f"RAW {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        print(f"{name}: {verdicts[name] or 'ok'}", flush=True)
    if not options.names:
        DOCUMENT.write_text(page(verdicts, keras.__version__), encoding="utf-8")


if __name__ == "__main__":
    main()
