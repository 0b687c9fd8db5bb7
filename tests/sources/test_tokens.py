"""Test texts as inputs of a model of tokens: its tokenizer.json is untrusted, and read in a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tvmflow.config.model_params import ModelEntry
from tvmflow.sandbox.texts import tokenize_in_sandbox
from tvmflow.sources.data import tokens as tokens_module
from tvmflow.sources.data.tokens import Tokens, inputs_of, longest, read_texts
from tvmflow.sources.model_files import tokenizer_file
from tvmflow.support.errors import SourceError, UsageError

WORDS = ("<pad>", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "sat")
CLS, A, CAT, SAT, SEP = 2, 4, 5, 6, 3


def write_tokenizer(path: Path) -> Path:
    """Write a tokenizer of words, which puts two tokens around a text and has padding of its own, as BERT's."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=WORDS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)]
    )
    tokenizer.enable_padding(length=99)
    tokenizer.save(str(path))
    return path


def _entry(shape: list[Any], *names: str, dtype: str = "int64", **more: Any) -> ModelEntry:
    inputs = {name: {"shape": shape, "dtype": dtype, "high": 50 if "mask" not in name else 2} for name in names}
    weights = {"framework": "onnx", "weights": {"file": "model.onnx"}, "tokenizer": "tokenizer.json"}
    return ModelEntry.model_validate({**weights, "inputs": inputs, **more})


def test_texts_become_the_inputs_of_a_model(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "tokenizer.json")
    names = ("attention_mask", "input_ids", "token_type_ids")
    fixed = _entry([1, 6], *names)
    assert tokenizer_file(fixed, tmp_path) == file and longest(fixed.tensors) == 6
    short, long = tokenize_in_sandbox(file, ["a cat", "a cat sat a cat dog"], 6)
    assert short == Tokens((CLS, A, CAT, SEP), (0,) * 4, 4, 0)
    assert long == Tokens((CLS, A, CAT, SAT, A, SEP), (0,) * 6, 8, 0), "what is cut keeps its end"
    found = inputs_of(short, fixed.tensors, fixed.sizes)
    assert list(found) == list(names) and {one.dtype for one in found.values()} == {np.dtype("int64")}
    assert found["input_ids"].tolist() == [[CLS, A, CAT, SEP, 0, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]] and not found["token_type_ids"].any()
    open_length = _entry([1, "length"], "ids", "mask", dtype="int32", buckets={"length": [4, 8]})
    assert longest(open_length.tensors) == 8
    found = inputs_of(short, open_length.tensors, open_length.sizes)
    assert found["ids"].tolist() == [[CLS, A, CAT, SEP]] and found["mask"].all(), "as long as the text"
    alone = _entry([1, 5], "words")
    assert inputs_of(short, alone.tensors, alone.sizes)["words"].tolist() == [[CLS, A, CAT, SEP, 0]]


BAD: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_text(""),
    "another model": lambda path: path.write_text('{"version": "1.0", "model": {"type": "No"}}'),
    "nested": lambda path: path.write_text("[" * 100_000),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe"),
    "large": lambda path: path.open("wb").truncate(tokens_module.MAX_TOKENIZER_BYTES + 1),
    "missing": lambda _path: None,
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_tokenizer_is_one_error(bad: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    BAD[bad](file)
    with pytest.raises(SourceError, match=r"tokenizer\.json") as caught:
        tokenize_in_sandbox(file, ["a cat"], 6)
    assert len(str(caught.value)) < 700


def test_models_and_texts_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (("input_ids", "pixels"), ("attention_mask", "token_type_ids")):
        with pytest.raises(SourceError, match=names[0]):
            longest(_entry([1, 6], *names).tensors)
    with pytest.raises(SourceError, match=r"\[1, 6, 2\]"):
        longest(_entry([1, 6, 2], "ids").tensors)
    with pytest.raises(SourceError, match=r"token 50 .*\n.*below 50"):
        inputs_of(Tokens((2, 50), (0, 0), 2, 0), _entry([1, 6], "ids").tensors, None)
    with pytest.raises(UsageError, match="without a tokenizer"):
        tokenizer_file(_entry([1, 6], "ids", tokenizer=None), tmp_path)
    with pytest.raises(SourceError, match="tokenizer"):
        tokenizer_file(_entry([1, 6], "ids"), tmp_path)
    for texts in ([], [" "], ["a" * (tokens_module.MAX_TEXT_BYTES + 1)]):
        with pytest.raises(UsageError):
            tokenize_in_sandbox(tmp_path / "tokenizer.json", texts, 6)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"tvmflow\[text\]"):
        tokenize_in_sandbox(tmp_path / "tokenizer.json", ["a"], 6)


def test_texts_are_read_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("\ufeffa cat\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("sat")
    (tmp_path / "c.md").write_text("no text")
    assert list(read_texts(tmp_path).values()) == ["sat", "a cat"]
    assert read_texts(tmp_path / "b.txt") == {str(tmp_path / "b.txt"): "a cat"}
    (tmp_path / "a.txt").write_bytes(b"\xff")
    for path in (tmp_path / "none.txt", tmp_path / "a.txt"):
        with pytest.raises(SourceError, match=path.name):
            read_texts(path)
