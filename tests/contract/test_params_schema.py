"""Test that the JSON schema accepts and rejects what params.yaml does, and that the committed file is up to date."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from tests.contract.test_repository import REPOSITORY
from tvmflow.config.params import load_params
from tvmflow.setup.params_schema import params_schema
from tvmflow.support.errors import ParamsError

SCHEMA = params_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MODEL = "mine: {framework: onnx, weights: {file: mine.onnx}, input: {shape: [1, 4]}}"
TARGET = "kind: llvm, mcpu: host, threads: 2, device: {transport: local, key: a}"


def test_the_file_in_the_repository_is_current_and_editors_find_it() -> None:
    file = REPOSITORY / "params.schema.json"
    assert json.loads(file.read_text()) == SCHEMA, "renew it with: make schema"
    first = (REPOSITORY / "params.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=params.schema.json"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        (REPOSITORY / "params.yaml").read_text(),
        f"models: {{{MODEL}}}",
        "models:\ntune:\n",
        f"targets: {{a: {{{TARGET.replace('local,', 'tracker, port: 9190,')}}}}}",
        f"targets: {{a: {{{TARGET.replace('llvm', 'vta')}, vta: {{mode: reference}}}}}}",
    ],
)
def test_what_is_valid_is_valid_for_editors(text: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "tuen: {}",
        "tune: {trials_per_workload: -1}",
        "tune: {tuner: xbg}",
        "graph_pack: {channel_block: 7}",
        "flows: {workers: 0}",
        "release: {confidence: 2}",
        f"models: {{{MODEL.replace('onnx, w', 'onyx, w')}}}",
        f"models: {{{MODEL.replace('mine:', 'a.b:')}}}",
        f"models: {{{MODEL.replace('file: mine.onnx', 'file: mine.onnx, seeded: 1')}}}",
        f"models: {{{MODEL.replace('[1, 4]', '[0, 4]')}}}",
        f"models: {{{MODEL}}}\ncells: {{a: {{model: mine, target: local-cpu, precision: int9}}}}",
        f"targets: {{a: {{{TARGET}, cpu: 3}}}}",
        f"targets: {{a: {{{TARGET.replace('llvm', 'cuda')}}}}}",
        f"targets: {{a: {{{TARGET.replace('local,', 'tracker, port: 70000,')}}}}}",
    ],
)
def test_what_editors_refuse_is_refused(text: str, tmp_path: Any) -> None:
    from tvmflow.pipeline.check_params import check_rows

    assert not VALIDATOR.is_valid(yaml.safe_load(text))
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(ParamsError):
        check_rows(load_params(tmp_path / "params.yaml"))
