"""Test that image preprocessing in network.so equals `tvmflow predict` bit for bit."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import REPOSITORY
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.image_tables import ImageInput
from tvmflow.codegen.network.link import link
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.codegen.network.plan import Memory, Plan, Value
from tvmflow.config.model_params import PRESETS, Preprocess
from tvmflow.evaluation.predict import predictions
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.sources.data.images import ImageRecipe, read_image
from tvmflow.sources.data.preprocessing import normalize_images, recipe_for, value_table
from tvmflow.support.errors import SourceError
from tvmflow.toolchain.compilers import Command

RUNTIME = REPOSITORY / "runtime"
MODES = {"RGB": "RGB", "BGR": "RGB", "RGBA": "RGBA", "gray": "L"}
CHANNELS = {"RGB": 3, "BGR": 3, "RGBA": 4, "gray": 1}
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


class _Image(ctypes.Structure):
    """plan_image of runtime/src/plan.h."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("width", "height", "channels", "resize", "filter", "is_bgr", "element")),
        *((name, ctypes.c_size_t) for name in ("channel_step", "row_step", "column_step", "sample_size")),
        ("table", ctypes.c_void_p),
    )


@dataclass
class Harness:
    """The runtime around a network that hands its input out, and what it does to images."""

    path: Path

    def __post_init__(self) -> None:
        self.library = ctypes.CDLL(str(self.path))
        self.image = _Image.in_dll(self.library, "image")
        self.values = (ctypes.c_uint8 * (3 * 256 * 8)).in_dll(self.library, "image_values")
        self.networks = [OpenedNetwork(self.path, threads).network for threads in (1, 3)]

    def want(self, recipe: ImageRecipe, values: np.ndarray[Any, Any], is_last: bool = False) -> None:
        channels, size = len(values), values.dtype.itemsize
        rows, columns = recipe.height, recipe.width
        steps = (1, columns * channels, channels) if is_last else (rows * columns, columns, 1)
        self.image.width, self.image.height, self.image.channels = columns, rows, channels
        self.image.resize = recipe.resize if recipe.fit == "crop" else 0
        self.image.filter, self.image.is_bgr = INTERPOLATIONS.index(recipe.interpolation), recipe.channels == "BGR"
        self.image.element, self.image.sample_size = size, channels * rows * columns * size
        self.image.channel_step, self.image.row_step, self.image.column_step = steps
        ctypes.memmove(self.values, np.ascontiguousarray(values).tobytes(), values.nbytes)

    def sample(self, which: int, frame: Any, format: str) -> bytes:
        found: bytes = self.networks[which].on_images(frame, format=format)[1].tobytes()
        return found[: self.image.sample_size]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    folder = tmp_path_factory.mktemp("images")
    sources = [*sorted((RUNTIME / "src").glob("*.c")), Path(__file__).parent / "images" / "plan.c"]
    subprocess.run(
        [
            "gcc",
            "-std=c11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            f"-I{RUNTIME / 'include'}",
            f"-I{RUNTIME / 'src'}",
            *map(str, sources),
            "-o",
            "images.so",
            "-pthread",
            "-lm",
        ],
        cwd=folder,
        check=True,
    )
    return Harness(folder / "images.so")


def _frame(draw: Any, format: str, folder: Path) -> tuple[np.ndarray[Any, Any], Path]:
    """Return an image in memory whose rows lie apart, and the file of the same."""
    height, width = (int(2 ** draw.uniform(0, 8.6)) for _ in range(2))
    channels = CHANNELS[format]
    memory = draw.integers(0, 256, (height, width + int(draw.integers(0, 3)), channels), dtype=np.uint8)
    if draw.random() < 0.5:  # smooth, and overshooting where it is cut
        memory = np.where(np.indices(memory.shape)[:2].sum(0) // 7 % 2, 255, memory // 8).astype(np.uint8)
    frame = memory[:, :width]
    shown = frame[..., ::-1] if format == "BGR" else frame
    path = folder / "frame.png"
    Image.fromarray(np.ascontiguousarray(shown[..., 0] if format == "gray" else shown), MODES[format]).save(
        path, compress_level=0
    )
    return frame if format != "gray" else frame[..., 0], path


def _preprocess(draw: Any) -> Preprocess:
    fields: dict[str, Any] = {"white": float(draw.choice([255.0, 16.0, 1.0]))}
    if draw.random() < 0.6:
        fields = {"preset": str(draw.choice(sorted(PRESETS)))}
    if draw.random() < 0.7:
        fields |= {
            "interpolation": str(draw.choice(INTERPOLATIONS)),
            "fit": str(draw.choice(["crop", "stretch"])),
            "channels": str(draw.choice(["RGB", "BGR"])),
        }
    if draw.random() < 0.5:
        fields["resize"] = int(draw.integers(1, 90))
    return Preprocess.model_validate(fields)


@pytest.mark.parametrize("seed", range(12))
def test_any_image_becomes_what_python_makes_of_it(harness: Harness, seed: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(seed)
    for turn in range(12):
        how, channels = _preprocess(draw), int(draw.choice([1, 3, 3]))
        if channels == 1 and len(how.mean) == 3:
            how = how.model_copy(update={"mean": (0.4,), "std": (0.3,)})
        shape = (1, channels, *(int(draw.integers(1, 70)) for _ in range(2)))
        recipe, dtype = recipe_for([shape], how), "float32"
        values = value_table(channels, how, dtype)
        if turn % 3 == 0:
            how, dtype = Preprocess.model_validate({"mean": [128.0] if turn else [0.0]}), "int8" if turn else "uint8"
            values = value_table(channels, how, dtype)
            recipe = ImageRecipe(**{**vars(recipe), "white": 255.0})
        is_last = bool(draw.integers(2))
        harness.want(recipe, values, is_last)
        format = str(draw.choice(sorted(CHANNELS)))
        frame, path = _frame(draw, format, tmp_path)
        expected = normalize_images(read_image(path, recipe)[None], how, dtype)[0]
        expected = np.ascontiguousarray(expected.transpose(1, 2, 0) if is_last else expected)
        assert harness.sample(turn % 2, frame, format) == expected.tobytes(), (how, recipe, format, frame.shape)


def test_extreme_sizes(harness: Harness, tmp_path: Path) -> None:
    for interpolation in INTERPOLATIONS:
        for fit in ("crop", "stretch"):
            how = Preprocess.model_validate({"interpolation": interpolation, "fit": fit})
            recipe = recipe_for([(1, 3, 5, 9)], how)
            harness.want(recipe, value_table(3, how, "uint8"))
            for height, width in ((1, 1), (1, 2000), (32768, 1), (2, 3)):
                frame = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(frame).save(tmp_path / "frame.bmp")
                expected = read_image(tmp_path / "frame.bmp", recipe).astype(np.uint8)
                assert harness.sample(1, frame, "RGB") == expected.tobytes(), (interpolation, fit, height, width)


def _handing_out(shape: tuple[int, ...]) -> Plan:
    """Return the plan of a network whose output is its input."""
    size = 4 * int(np.prod(shape))
    memories = (Memory("input", size), Memory("output", size))
    values = (Value(0, 0, shape, "float32"), Value(1, 0, shape, "float32"))
    return Plan(memories, values, (), (0,), (1,), ((0, 1),), ())


def test_a_built_library_has_the_preprocessing_of_its_model(tmp_path: Path) -> None:
    shape, how = (2, 3, 20, 24), Preprocess.model_validate({"preset": "torchvision"})
    image = ImageInput(recipe_for([shape], how), value_table(3, how, "float32"))
    network = Network("any@host:any", (TensorSpec("x", shape),), ("y",), 2, image=image)
    link(tmp_path / "network.so", [], _handing_out(shape), network, Command(("g++",)))
    opened = OpenedNetwork(tmp_path / "network.so", 2).network
    frames, expected = [], []
    for at, size in enumerate([(90, 60), (31, 200)]):
        frames.append(np.random.default_rng(at).integers(0, 256, (*size, 3), dtype=np.uint8))
        Image.fromarray(frames[-1]).save(tmp_path / f"{at}.png")
        expected.append(read_image(tmp_path / f"{at}.png", image.recipe))
    assert opened.images == 2, "one for each sample of the batch"
    assert opened.on_images(*frames).tobytes() == normalize_images(np.stack(expected), how).tobytes()
    with pytest.raises(ValueError, match="1 images for a network that takes 2"):
        opened.on_images(frames[0])
    with pytest.raises(ValueError, match="one image for a network that takes 2"):
        opened.classify(frames[0])
    for wrong in (frames[0].astype(np.float32), frames[0][..., :2], frames[0][:0], frames[0][None]):
        with pytest.raises(ValueError, match="an image is an array of"):
            opened.on_images(wrong, frames[1])
    with pytest.raises(ValueError, match="an image of 3 channels is no RGBA"):
        opened.on_images(*frames, format="RGBA")


def test_scores_of_any_width_become_classes(harness: Harness) -> None:
    """A pixel of value v becomes a score: of 16 bits too, infinities and numbers below the normal ones among them."""
    import ml_dtypes

    dtype_number = ctypes.c_int.from_address(ctypes.addressof(ctypes.c_char.in_dll(harness.library, "outputs")) + 20)
    draw = np.random.default_rng(0)
    for dtype, number in ((np.float32, 0), (np.float16, 1), (ml_dtypes.bfloat16, 2)):
        dtype_number.value = number
        for turn in range(20):
            scores = draw.standard_normal(256).astype(np.float32) * 10.0 ** draw.integers(-6, 4, 256)
            if turn % 3 == 0:
                scores = np.exp(np.minimum(scores, 3))
                scores /= scores[:64].sum()
            kept = scores.astype(dtype)
            harness.want(ImageRecipe(1, 64, "gray", "stretch"), kept[None])
            found = harness.networks[0].classify(np.arange(64, dtype=np.uint8)[None], 5)
            (guess,) = predictions(["image"], kept[None, :64].astype(np.float64), ["zero", "one"], 5, None)
            assert [g.number for g in found] == [g.number for g in guess.top]
            assert np.allclose([g.probability for g in found], [g.probability for g in guess.top], 1e-5)
            assert found[0].label == (guess.top[0].name if guess.top[0].number < 2 else "")
    dtype_number.value = 3
    with pytest.raises(Exception, match="output scores is no scores of the classes of one image"):
        harness.networks[0].classify(np.zeros((1, 64), np.uint8))
    dtype_number.value = 0


def test_an_entry_that_makes_no_integers_gives_no_table() -> None:
    with pytest.raises(SourceError, match="numbers that are uint8"):
        value_table(3, Preprocess.model_validate({"preset": "torchvision"}), "uint8")
    assert value_table(1, Preprocess.model_validate({"mean": [128.0]}), "int8").tolist() == [list(range(-128, 128))]
