"""Test that `pip install tvmflow` alone verifies bundles, lists targets, helps, and names the extra of what it lacks.

The packages of the extras are installed here, so a finder in front of all others hides them, as in an installation
without them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tvmflow.shipping.bundle.signing import KeyPair
from tvmflow.support.extras import EXTRAS, missing_extra

_HIDE = """
import importlib.abc, importlib.metadata, sys
HIDDEN = set({hidden!r})
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Finder())
known = importlib.metadata.Distribution.from_name.__func__
def from_name(cls, name):
    if name in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return known(cls, name)
importlib.metadata.Distribution.from_name = classmethod(from_name)
sys.path.insert(0, {root!r})
"""


# Calls each function of the API with what its parameters are named for, and tells what each raised.
_CALL_ALL = """
import inspect, json, os
import tvmflow, tvmflow.api as api
assert set(tvmflow.__all__) <= set(api.__all__)
given = dict(cell="digits", workspace=os.getcwd(), folder="another", images=["a.png"], inputs=[], path="x", texts=["a"],
    app="app", to="out", model="digits_torch", target="local-cpu", key="k.pub", keys=["k.pub"], root="k", reason="r",
    issue="1", until="2030-01-01", why="w", before="0.26", after="0.27", model_file="m.onnx", results={"a": 1},
    serial="A", secret_file="s", host="127.0.0.1", port=1, result=None)
os.environ["PATH"] = ""  # nothing is compiled meanwhile
told = {}
for name in api.__all__:
    function = getattr(api, name)
    if not inspect.isfunction(function):
        continue
    asked = inspect.signature(function).parameters.values()
    named = {one.name: given[one.name] for one in asked
             if one.kind is not one.VAR_POSITIONAL and (one.default is one.empty or one.name == "workspace")}
    try:
        found = function(**named)
        if hasattr(found, "__enter__"):
            found.__enter__()
        told[name] = [False, ""]
    except Exception as error:
        told[name] = [isinstance(error, ImportError), getattr(error, "hint", "")]
print(json.dumps(told))
"""


def _run_light(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python where no package of an extra can be imported."""
    hidden = sorted({name for names in EXTRAS.values() for name in names})
    code = _HIDE.format(hidden=hidden, root=str(REPOSITORY)) + code
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _light(folder: Path, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command where no package of an extra can be imported."""
    code = f"\nfrom tvmflow.cli import main\nsys.argv = ['tvmflow', *{list(words)!r}]\nmain()\n"
    return _run_light(folder, textwrap.dedent(before) + code)


@pytest.fixture(scope="module")
def light_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    assert _light(folder, "new", "mine").returncode == 0
    return folder / "mine"


def test_help_and_targets_need_no_extra(tmp_path: Path) -> None:
    assert "verify" in _light(tmp_path, "--help").stdout
    listed = _light(tmp_path, "targets", "--json")
    assert listed.returncode == 0 and "raspberry-pi-5" in listed.stdout
    assert "pip install 'tvmflow[compile]'" in listed.stdout and '"can_build": true' not in listed.stdout


def test_a_bundle_is_verified_without_extras(bundle: Path, keys: KeyPair, tmp_path: Path) -> None:
    in_sandbox = f"""
    import pathlib, tempfile, zipfile
    from tvmflow.shipping.bundle.manifest import read_manifest
    from tvmflow.shipping.bundle.run_in_sandbox import try_library
    with zipfile.ZipFile({str(bundle)!r}) as archive:
        archive.extractall("unpacked")
    library = read_manifest(pathlib.Path("unpacked/manifest.json").read_bytes()).libraries[0]
    place = pathlib.Path("unpacked") / library.soname
    (pathlib.Path("unpacked") / library.file).rename(place)
    print(try_library(library.model_dump(mode="json"), "unpacked")["ran"])
    library = library.model_dump(mode="json")
    library["made"]["flags"] = ["avx1024"]
    print(try_library(library, "unpacked")["ran"])
    """
    done = _light(tmp_path, "verify", str(bundle), "--key", str(keys.public), before=in_sandbox)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "4 golden inputs, outputs equal bit for bit"
    assert lines[1] == "not run here: this machine's processor lacks avx1024"
    assert "files unaltered, signed by" in done.stdout and done.stdout.count("equal bit for bit") == 2


def test_what_needs_an_extra_names_it_in_one_error(light_workspace: Path) -> None:
    for words in (("run", "digits"), ("status",)):
        done = _light(light_workspace, *words)
        assert done.returncode == 2 and done.stderr.startswith("error: the package ")
        assert "pip install 'tvmflow[compile]'" in done.stderr and len(done.stderr.splitlines()) == 3


def test_each_function_of_the_api_works_or_names_the_extra(light_workspace: Path) -> None:
    done = _run_light(light_workspace, _CALL_ALL)
    told = json.loads(done.stdout.splitlines()[-1])
    assert [name for name, (is_raw, _) in told.items() if is_raw] == []
    lacking = {name for name, (_, hint) in told.items() if hint.startswith("pip install 'tvmflow[")}
    assert {"run", "plan", "load", "predict", "history", "promote", "search", "to_frame", "prepared_phone"} <= lacking
    assert told["targets"] == told["find_workspace"] == told["params_schema"] == [False, ""]


def test_a_missing_package_of_no_extra_is_not_explained() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'own'", name="own")) is None
    pipeline = missing_extra(ModuleNotFoundError("No module named 'dvc.repo'", name="dvc.repo"))
    assert pipeline is not None and "tvmflow[pipeline]" in pipeline.hint


@pytest.mark.parametrize("extra", ["compile", "pipeline"])
def test_the_table_has_the_packages_of_pyproject(extra: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[\[<>=; ]", line)[0] for line in project["optional-dependencies"][extra]}
    modules = metadata.packages_distributions()
    imported = {module for module, found in modules.items() if names & {one.lower() for one in found}}
    public = {name for name in imported if not name.startswith("_") and not name.endswith(("libs", ".libs"))}
    assert names and {name for name in EXTRAS[extra] if name in modules} >= public & set(EXTRAS[extra])
    assert public - set(EXTRAS[extra]) - {"functorch", "docs", "tests"} == set()
    core = {re.split(r"[\[<>=; ]", line)[0] for line in project["dependencies"]}
    assert not core & set(EXTRAS[extra]) and not core & names
