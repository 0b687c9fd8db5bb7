"""params.yaml: everything wrong in one error that says what is legal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, small_params
from tvmflow.errors import ParamsError, UnknownNameError
from tvmflow.params import Params, load_params


def test_the_shipped_file_is_valid() -> None:
    params = load_params(REPOSITORY / "params.yaml")
    assert str(params.cell("digits")) == "digits_torch@local-cpu:float32"
    assert params.cell("resnet18@local-cpu:float16").slug == "resnet18.local-cpu.float16"


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(params: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for part in parents:
            params = params[part]
        params[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("tune/tunr", 1, "tune.tunr: unknown key; legal here:"),
        ("models/digits_torch/preprocess/sc", 1, "legal here: mean, scale, std"),
        ("targets/local-cpu/device/prt", 1, "legal here: host, key, port, transport"),
        ("tune/trials_per_workload", "many", "tune.trials_per_workload"),
        ("tune/trials_per_workload", -1, "greater than or equal to 0"),
        ("targets/local-cpu/device/key", "x; echo hi", "not safe"),
        ("models/a b", {"framework": "torch"}, "not safe"),
        ("cells/digits/model", "nope", "legal: digits_depthwise, digits_keras, digits_torch"),
        ("cells/digits/precision", "float31", "'float32'"),
        ("models/digits_torch/weights", {"url": "https://x/y.pt"}, "sha256"),
        ("models/digits_torch/weights", {"seeded": 1, "file": "x"}, "exactly one of"),
        ("models/digits_torch/weights", {"file": "x.pt", "sha256": "12"}, "sha256"),
        ("flows/timeout_s", {"fetch": 1.0}, "one timeout for each stage"),
        ("evaluate/peers", ["tensorrt"], "evaluate.peers"),
    ],
)
def test_one_error_names_the_place_and_what_is_legal(
    make_workspace: Callable[..., Path], path: str, value: Any, says: str
) -> None:
    root = make_workspace(_set(path, value))
    with pytest.raises(ParamsError) as error:
        load_params(root / "params.yaml")
    assert says in str(error.value)
    assert "params.yaml is not valid" in str(error.value) or "not safe" in str(error.value)


def test_several_mistakes_are_told_together(make_workspace: Callable[..., Path]) -> None:
    def change(params: dict[str, Any]) -> None:
        params["tune"]["tunr"] = 1
        params["flows"]["workers"] = 0

    with pytest.raises(ParamsError) as error:
        load_params(make_workspace(change) / "params.yaml")
    assert "tunr" in str(error.value) and "workers" in str(error.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "a: 1\na: 2", "!!python/object/apply:os.system ['true']", "\x00"])
def test_what_is_not_a_params_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError):
        load_params(path)


def test_unknown_cells_list_the_legal_names() -> None:
    params = Params.model_validate(small_params())
    for text, says in (
        ("nope@local-cpu:float32", "resnet18"),
        ("resnet18@moon:float32", "rk3399"),
        ("resnet18", "digits"),
    ):
        with pytest.raises(UnknownNameError) as error:
            params.cell(text)
        assert says in str(error.value)
