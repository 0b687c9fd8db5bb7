"""Test params.yaml: all mistakes are reported in one error that lists the legal values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.conftest import REPOSITORY, examples, small_params
from tvmflow.config.params import ModelEntry, Params, load_params
from tvmflow.pipeline.check_params import check_rows
from tvmflow.support.errors import ParamsError, UnknownNameError


def test_the_shipped_file_is_valid() -> None:
    params = load_params(REPOSITORY / "params.yaml")
    assert str(params.cell("digits")) == "digits_torch@local-cpu:float32"
    assert params.cell("resnet18@local-cpu:float16").slug == "resnet18.local-cpu.float16"


ONE_MODEL = {"framework": "onnx", "weights": {"file": "m.onnx"}, "input": {"shape": [1, 3, 8, 8]}}
BLOCKS = [name for name in Params.model_fields if name not in ("models", "targets", "cells", "switched_off")]


def test_one_model_and_no_other_line_is_valid(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"models": {"mine": ONE_MODEL}}))
    params = load_params(tmp_path / "params.yaml")
    check_rows(params)
    assert {name: str(cell) for name, cell in params.cells.items()} == {"mine": "mine@local-cpu:float32"}
    assert params.cell("mine") == params.cell("mine@local-cpu:float32")


def test_a_target_of_ones_own_does_not_take_this_machine_away() -> None:
    board = small_params()["targets"]["rk3399"]
    params = Params.model_validate({"models": {"mine": ONE_MODEL}, "targets": {"board": board}, "tune": None})
    assert sorted(params.targets) == ["board", "local-cpu"] and params.tune.tuner == "xgb"


@pytest.mark.parametrize("block", BLOCKS)
def test_the_shipped_file_says_the_defaults(block: str) -> None:
    shipped = load_params(REPOSITORY / "params.yaml")
    default = Params.model_validate({})
    assert getattr(shipped, block) == getattr(default, block)
    assert shipped.targets["local-cpu"] == default.targets["local-cpu"]


def test_what_a_mapping_leaves_out_has_its_default() -> None:
    params = Params.model_validate(
        {"quantize": {"max_relative_error": {"int8": 3.0}}, "flows": {"timeout_s": {"tune": 9.0}}}
    )
    assert params.quantize.max_relative_error["int8"] == 3.0 and params.quantize.max_relative_error["float32"] == 2e-3
    assert params.flows.timeout_s["tune"] == 9.0 and params.flows.timeout_s["fetch"] == 1800.0


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
        ("tune/tunr", 1, "tune.tunr: unknown key (did you mean 'tuner'?); legal here:"),
        (
            "models/digits_torch/preprocess/sc",
            1,
            "legal here: channels, fit, interpolation, mean, preset, resize, scale, std, white",
        ),
        ("tune/trials_per_workload", "many", "tune.trials_per_workload"),
        ("tune/trials_per_workload", -1, "greater than or equal to 0"),
        ("targets/local-cpu/device/key", "x; echo hi", "not safe"),
        ("models/a b", {"framework": "torch"}, "not safe"),
        ("cells/digits/model", "nope", "legal: digits_depthwise, digits_keras, digits_torch"),
        ("cells/digits/precision", "float31", "'float32'"),
        ("models/digits_torch/weights", {"url": "https://x/y.pt"}, "sha256"),
        ("models/digits_torch/weights", {"seeded": 1, "file": "x"}, "exactly one of"),
        ("models/digits_torch/weights", {"file": "x.pt", "sha256": "12"}, "sha256"),
        ("flows/timeout_s", {"fetsh": 1.0}, "no stage 'fetsh' (did you mean 'fetch'?)"),
        ("evaluate/peers", ["tensorrt"], "evaluate.peers"),
        ("fetch/split_seed", -1, "fetch.split_seed: Input should be greater than or equal to 0"),
        ("tune/seed", 10**40, "tune.seed: Input should be less than 2147483648"),
        ("models/digits_torch/weights", {"seeded": 1 << 31}, "weights.seeded"),
        ("models/digits_torch/weights", {"train": {"seed": -1}}, "weights.train.seed"),
        ("models/digits_torch/input/shape", [1, 1, 8, 10**9], "input.shape.3"),
        ("models/digits_torch/input/shape", [1, 10**18, 8, 8], "input.shape.1"),
        ("models/digits_torch/input/shape", [1, 4096, 4096, 64], "at most 134217728 values in one input"),
        ("models/digits_torch/input/shape", [1] * 33, "input.shape"),
        ("models/digits_torch/preprocess/scale", float("inf"), "preprocess.scale"),
        ("models/digits_torch/preprocess/mean", [float("nan")], "preprocess.mean"),
        ("models/digits_torch/preprocess/std", [1e-300], "preprocess.std"),
        ("models/digits_torch/dataset", "a\x00b.npz", "printable"),
        ("models/digits_torch/network", "a\nb", "printable"),
        ("targets/local-cpu/threads", 10**9, "threads: Input should be less than or equal to 1024"),
        ("targets/local-cpu/cc", "g++; touch hacked", "without options"),
        ("targets/local-cpu/cc", "$(touch hacked)", "without options"),
        ("targets/local-cpu/cc", "-c", "without options"),
        ("targets/local-cpu/cc", "", "without options"),
        ("flows/workers", 10**9, "flows.workers"),
        ("flows/timeout_s/tune", 1e300, "flows.timeout_s.tune"),
        ("flows/retry_delay_s", float("inf"), "flows.retry_delay_s"),
        ("flows/retune_cron", "a b c d e", "'a' is not a valid minute"),
        ("flows/retune_cron", "60 0 * * *", "0 to 59"),
        ("flows/retune_cron", "*/0 0 * * *", "'*/0' is not a valid minute"),
        ("flows/retune_cron", "0 0 30 2 *", "a date that exists"),
        ("flows/retune_cron", "0 0 5-2 * *", "1 to 31"),
        ("flows/retune_cron", "0 0 * *", "five fields"),
        ("retune/commit_branch", "a..b", "retune.commit_branch"),
        ("retune/commit_remote", "origin", "commit_remote needs commit_branch"),
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


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "- 1",
        "",
        "a: 1\na: 2",
        "!!python/object/apply:os.system ['true']",
        "\x00",
        "a: 2024-99-99",
        "? [a]\n: b",
        "a: " + "9" * 10_000,
        "a: !!bool x",
        "a: !!timestamp x",
        "a: !!float x",
        "? !!set {a}\n: b",
        "a: &a [*a]",
        "a: 1" + ":1" * 400_000,
    ],
)
def test_what_is_not_a_params_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError) as error:
        load_params(path)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((start * 50 + "1", "40 levels") for start in ("[", "{a: ", "- ", "? ", "[{a: ")),
        ("\n".join(f"{' ' * at}a:" for at in range(300)), "40 levels"),
        (
            "a0: &a0 [x, x]\n" + "".join(f"a{at + 1}: &a{at + 1} [*a{at}, *a{at}]\n" for at in range(30)),
            "200000 values",
        ),
        (f"models: 0x{'f' * 6000}", "a number of 24000 bits"),
        (f"? 0b{'1' * 2000}\n: 1", "a number of 2000 bits"),
    ],
)
def test_deep_nesting_and_unfolding_aliases_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError, match=says):
        load_params(path)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from([*"[]{}:,-?&*a1! \n'\"|>%@#<=~.", "!!", "a: ", "- ", "\u2028", "0x", "&a ", "*a"]), max_size=60
    )
)
def test_any_text_is_params_or_one_clear_error(tmp_path: Path, parts: list[str]) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("".join(parts))
    try:
        assert load_params(path).models == {}  # only an empty mapping is one
    except ParamsError:
        pass


NUMBERS = st.one_of(
    st.sampled_from([-1, 0, 10**9, 10**18, 10**40, -(10**40), 1e300, float("inf"), float("-inf"), float("nan"), True]),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


@cache
def _shipped() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    return loaded


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all numbers in params.yaml."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [place for key, part in items for place in _places(part, (*path, key))]
    return [path] if isinstance(value, int | float) and not isinstance(value, bool) else []


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), value=NUMBERS)
def test_every_number_has_bounds(data: st.DataObject, value: Any) -> None:
    params = copy.deepcopy(_shipped())
    *parents, last = data.draw(st.sampled_from(_places(params)))
    place = params
    for part in parents:
        place = place[part]
    original, place[last] = place[last], value
    try:
        check_rows(Params.model_validate(params))
    except (ValidationError, ParamsError):
        return
    assert value is None or -1 <= value <= 1e9, (parents, last, value)
    assert value != 10**9 or isinstance(original, float) or last in ("seed", "seeded", "split_seed"), (parents, last)
    assert value != -1 or parents[2:] == ["preprocess", "mean"] or last == "scale", (parents, last)


@pytest.mark.parametrize(
    "text", ["0 3 * * 6", "*/15 0-6 1,15 jan-mar mon", "0 0 29 2 *", "5/10 * 31 * sun", "0 0 30 2 1"]
)
def test_crons_that_work_are_accepted(make_workspace: Callable[..., Path], text: str) -> None:
    assert load_params(make_workspace(_set("flows/retune_cron", text)) / "params.yaml").flows.retune_cron == text


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


_SIZED = {"inputs": {"x": {"shape": ["batch", 3, "length"]}}, "buckets": {"batch": [1, 4], "length": [8, 20]}}


def test_shapes_may_name_buckets() -> None:
    model = ModelEntry.model_validate({"framework": "onnx", "weights": {"file": "a.onnx"}, **_SIZED})
    assert model.tensors["x"].shape == (4, 3, 20) and model.sizes is not None
    assert model.sizes.all == ((1, 8), (1, 20), (4, 8), (4, 20)) and model.sizes.between((4, 20)) == (3, 14)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"buckets": {"batch": [1, 4]}}, "buckets for the names in shapes"),
        ({"buckets": {**_SIZED["buckets"], "more": [1]}}, "buckets for the names in shapes"),
        ({"buckets": {"batch": [4, 1], "length": [8]}}, "ascend"),
        ({"buckets": {"batch": [], "length": [8]}}, "at least 1 item"),
        ({"buckets": {"batch": [*range(1, 10)], "length": [8, 9]}}, "16 buckets in all"),
        ({"inputs": {"x": {"shape": ["n", "n"]}}, "buckets": {"n": [1]}}, "each name at most once"),
        ({"inputs": {"x": {"shape": ["n", 1 << 20]}}, "buckets": {"n": [1 << 20]}}, "values in one input"),
        (
            {"inputs": {"x": {"shape": [1, "n"], "dtype": "int64", "high": 9, "pad": 9}}, "buckets": {"n": [1]}},
            "below 9",
        ),
    ],
)
def test_buckets_that_make_no_sense_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ModelEntry.model_validate({"framework": "onnx", "weights": {"file": "a.onnx"}, **_SIZED, **change})
