"""Test TensorFlow models as people have them: SavedModel folders, signatures, frozen graphs, TF Hub's archives."""

from __future__ import annotations

import io
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.tensorflow_forms import make_forms
from tvmflow.frontends.registry import FRONTENDS, load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.frontends.tensorflow.saved_models import companions, unpacked_model
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.setup.preflight import read_model_header
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights, local_file
from tvmflow.support.errors import ModelFileError, SourceError, TvmflowError
from tvmflow.support.progress import silent

IMAGE, IDS = TensorSpec("image", (1, 3, 8, 8)), TensorSpec("ids", (1, 5), "int64")
HALF = TensorSpec("x", (2, 4))


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms")
    make_forms(str(folder))
    return folder


def _fetched(file: str, root: Path, out: Path, *inputs: TensorSpec, **options: Any) -> SourceDescription:
    """Fetch a model as the stage does; return its description."""
    out.mkdir()
    weights = {"file": file, "url": None, "sha256": None}
    files = FRONTENDS["tensorflow"].files
    request = WeightsRequest("tensorflow", None, weights, root, DownloadLimits(1), root / "downloads", files)
    path = fetch_weights(request, out, None, silent)
    return SourceDescription("tensorflow", None, path.name, inputs, **options)


def _check(folder: Path, description: SourceDescription, arrays: Any, given: dict[str, Any], outputs: list[str]) -> Any:
    """Compare TensorFlow's outputs with those that it wrote, and the imported module with both."""
    source = load_source(folder, description)
    assert list(source.output_names()) == outputs
    inputs = [given[spec.name] for spec in description.inputs]
    found = source.run(*inputs)
    module = run_all(read_graph(canonicalize(source.to_relax())), inputs)
    for name, one, imported in zip(outputs, found, module, strict=True):
        expected = arrays[f"out_{name.split('/')[-1].split(':')[0]}"]
        assert one.dtype == imported.dtype == expected.dtype and one.shape == expected.shape
        np.testing.assert_allclose(one, expected, atol=1e-6)
        np.testing.assert_allclose(imported, expected, atol=1e-5)
    return source


def test_a_folder_with_signatures_of_several_inputs_and_outputs(forms: Path, tmp_path: Path) -> None:
    mix, halve = np.load(forms / "mix.npz"), np.load(forms / "halve.npz")
    description = _fetched("saved", forms, tmp_path / "fetch", IDS, IMAGE, signature="mix")
    assert (tmp_path / "fetch" / "saved_model" / "variables" / "variables.index").is_file()
    given = {"image": mix["image"].transpose(0, 3, 1, 2), "ids": mix["ids"]}
    source = _check(tmp_path / "fetch", description, mix, given, ["above", "best", "scores"])
    variants = {one.name: one for one in source.variants(given["ids"], given["image"])}
    prepared = variants["frozen function"].prepare()
    np.testing.assert_allclose(prepared.read(prepared.run())[2], mix["out_scores"], atol=1e-6)
    chosen = replace(description, outputs=("scores", "best"))
    _check(tmp_path / "fetch", chosen, mix, given, ["scores", "best"])
    other = replace(description, inputs=(HALF,), signature="halve")
    _check(tmp_path / "fetch", other, halve, {"x": halve["x"]}, ["half"])


@pytest.mark.parametrize("name", ["hub.tar.gz", "saved.zip"])
def test_archives(forms: Path, tmp_path: Path, name: str) -> None:
    if not (forms / name).exists():
        shutil.make_archive(str(forms / "saved"), "zip", forms / "saved")
    halve = np.load(forms / "halve.npz")
    description = _fetched(name, forms, tmp_path / "fetch", replace(HALF, name="any"), signature="halve")
    _check(tmp_path / "fetch", description, halve, {"any": halve["x"]}, ["half"])


def test_a_frozen_graph_of_tensorflow_1(forms: Path, tmp_path: Path) -> None:
    arrays, spec = np.load(forms / "frozen.npz"), replace(IMAGE, name="net/input")
    description = _fetched("frozen.pb", forms, tmp_path / "fetch", spec, outputs=("net/scores",))
    given = {"net/input": arrays["x"].transpose(0, 3, 1, 2)}
    source = _check(tmp_path / "fetch", description, arrays, given, ["net/scores"])
    with_port = replace(description, inputs=(replace(IMAGE, name="net/input:0"),), outputs=("net/scores:0",))
    given["net/input:0"] = given["net/input"]
    _check(tmp_path / "fetch", with_port, arrays, given, ["net/scores:0"])
    assert len(source.run(given["net/input"])) == 1
    every = load_source(tmp_path / "fetch", replace(description, outputs=()))
    assert every.output_names() == ("net/scores", "net/unused")


@pytest.mark.parametrize(
    ("file", "options", "says"),
    [
        ("saved", {"inputs": (HALF,)}, "no signature ''; it has halve, mix: set signature:"),
        ("saved", {"inputs": (HALF,), "signature": "mixed"}, "no signature 'mixed'; it has halve, mix"),
        ("saved", {"inputs": (HALF,), "signature": "mix"}, "has the inputs ids, image, and asked for are x"),
        ("saved", {"inputs": (IDS, replace(IMAGE, shape=(1, 3, 8, 9))), "signature": "mix"}, "correct input.shape"),
        ("saved", {"inputs": (HALF,), "signature": "halve", "outputs": ("whole",)}, "no output 'whole'; .* half"),
        ("frozen.pb", {"inputs": (IMAGE,), "signature": "mix"}, "a frozen graph has no signatures"),
        ("frozen.pb", {"inputs": (IMAGE,), "outputs": ("net/none",)}, "set outputs: of the model"),
    ],
)
def test_a_request_that_does_not_fit_is_one_error(
    forms: Path, tmp_path: Path, file: str, options: dict[str, Any], says: str
) -> None:
    inputs = options.pop("inputs")
    description = _fetched(file, forms, tmp_path / "fetch", *inputs, **options)
    with pytest.raises(TvmflowError, match=says):
        load_source(tmp_path / "fetch", description)


def test_headers_tell_the_forms_apart(forms: Path) -> None:
    for name, kind in (("saved", "a SavedModel"), ("hub.tar.gz", "a SavedModel"), ("frozen.pb", "a frozen graph")):
        header = read_model_header(local_file(name, forms))
        assert header is not None and header["kind"].startswith(kind) and tuple(header["frameworks"]) == ("tensorflow",)
    (forms / "empty").mkdir()
    with pytest.raises(SourceError, match="no weights file"):
        local_file("empty", forms)


# -- hostile files, which need no TensorFlow ---------------------------------------------------------------------------


def _graph(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x08\x01\x12\x00")
    return path


def test_a_link_among_the_variables_is_refused(tmp_path: Path) -> None:
    path = _graph(tmp_path / "saved" / "saved_model.pb")
    (tmp_path / "saved" / "variables").mkdir()
    (tmp_path / "saved" / "other").write_text("not of a SavedModel")
    assert companions(path) == {}
    (tmp_path / "saved" / "variables" / "variables.index").symlink_to("/etc/passwd")
    with pytest.raises(ModelFileError, match=r"variables\.index is no plain file"):
        companions(path)


def _tar(path: Path, *entries: tuple[str, bytes, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, data in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(data) if kind == tarfile.REGTYPE else 0
            entry.linkname = "/etc/passwd"
            archive.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (("../outside", tarfile.REGTYPE, b"x"), "the name '../outside'"),
        (("/outside", tarfile.REGTYPE, b"x"), "the name '/outside'"),
        (("a\nb", tarfile.REGTYPE, b"x"), "the name"),
        (("variables/x", tarfile.SYMTYPE, b""), "is no plain file"),
        (("variables/x", tarfile.LNKTYPE, b""), "is no plain file"),
        (("variables/x", tarfile.FIFOTYPE, b""), "is no plain file"),
        (("deeper/saved_model.pb", tarfile.REGTYPE, b"x"), r"2 saved_model\.pb files"),
    ],
)
def test_a_hostile_archive_is_refused(tmp_path: Path, entry: tuple[str, bytes, bytes], says: str) -> None:
    path = _tar(tmp_path / "m.tar.gz", ("saved_model.pb", tarfile.REGTYPE, b"\x08\x01\x12"), entry)
    (tmp_path / "work").mkdir()
    with pytest.raises(ModelFileError, match=says):
        unpacked_model(path, tmp_path / "work")
    assert not (tmp_path / "outside").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmflow.frontends.tensorflow.saved_models.MAX_UNPACKED_BYTES", 1000)
    path = _tar(tmp_path / "m.tar.gz", ("a", tarfile.REGTYPE, bytes(600)), ("b", tarfile.REGTYPE, bytes(600)))
    with pytest.raises(ModelFileError, match="unpacks to 1200 bytes"):
        unpacked_model(path, tmp_path / "work")
    (tmp_path / "cut.tar.gz").write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ModelFileError, match="cannot be unpacked"):
        unpacked_model(tmp_path / "cut.tar.gz", tmp_path / "work")
