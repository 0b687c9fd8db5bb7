"""Test that an entry is added to params.yaml without changes to hand-written text."""

from __future__ import annotations

import pytest
import yaml

from tvmflow.setup.yaml_editor import add_entry, set_entry
from tvmflow.support.errors import UsageError

ENTRY = {"framework": "onnx", "weights": {"file": "a b.onnx"}, "input": {"shape": [1, 3, 8, 8]}}
TEXTS = {
    "nothing": "",
    "a comment": "# only this\n",
    "an empty block": "models:\n# below\ntune: {seed: 1}\n",
    "an empty mapping": "models: {}  # none yet\ntune: {seed: 1}\n",
    "null": "models: ~\ntune: {seed: 1}",
    "no such block": "tune:\n  seed: 1\n",
    "comments around": (
        "# top\nmodels:   # mine\n  a: {x: 1}  # one\n  b:\n    y: 2   # two\n\n# about tune\ntune: {seed: 1}\n"
    ),
    "four spaces": "models:\n    a:\n        x: 1\n",
    "last value empty": "models:\n  a:\n    x:\n\n# c\ntune: {seed: 1}\n",
    "text of several lines": "models:\n  a:\n    x: |\n      one\n      two\ntune: {seed: 1}\n",
    "windows": "models:\r\n  a: {x: 1}\r\ntune: {seed: 1}\r\n",
    "flow over lines": "models:\n  a: {x: 1,\n      y: 2}\n  # end\ntune: {seed: 1}\n",
    "list at the end": "models:\n  a:\n    x:\n    - 1\n    - 2\ntune: {seed: 1}\n",
    "quoted": "models:\n  a:\n    x: 'one\n      two'\ntune: {seed: 1}\n",
}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("what", TEXTS)
def test_only_the_entry_is_added(what: str, compact: bool) -> None:
    before = TEXTS[what]
    after = add_entry(before, "models", "mine", ENTRY, compact)
    old, new = yaml.safe_load(before) or {}, yaml.safe_load(after)
    assert list(new["models"])[-1] == "mine"
    assert new["models"].pop("mine") == ENTRY
    assert new == old | {"models": old.get("models") or {}}
    kept = before.replace("{}  ", "").replace(" ~", "").split()
    assert [word for word in kept if word not in after.split()] == []
    assert ("\r\n" in after) == ("\r\n" in before)
    again = add_entry(after, "models", "second", {"x": 1}, compact)
    assert list(yaml.safe_load(again)["models"])[-2:] == ["mine", "second"]


@pytest.mark.parametrize("text", ["{models: {}}", "models: {a: {x: 1}}", "models: [1]", "models: text"])
def test_what_has_no_lines_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(UsageError, match=r"mine: \{framework: onnx"):
        add_entry(text, "models", "mine", ENTRY)


def test_an_entry_is_replaced_and_nothing_else() -> None:
    before = (
        "# top\noverrides:   # of cells\n  a@b:int8: {tune: {max_seconds: 1}}  # old\n  # about c\n"
        "  c@b:int8:\n    tune:\n      total_trials: 2\n\n# end\ntune: {seed: 1}\n"
    )
    once = set_entry(before, "overrides", "c@b:int8", {"tune": {"total_trials": 3}})
    assert once == before.replace(
        "c@b:int8:\n    tune:\n      total_trials: 2\n", "c@b:int8: {tune: {total_trials: 3}}\n"
    )
    assert set_entry(once, "overrides", "a@b:int8", {}) == once.replace("{tune: {max_seconds: 1}}  # old", "{}")
    assert yaml.safe_load(set_entry("overrides: {}\n", "overrides", "x@y:int8", {"int8": {"max_drop": 0.1}})) == {
        "overrides": {"x@y:int8": {"int8": {"max_drop": 0.1}}}
    }
    with pytest.raises(UsageError, match="block style"):
        set_entry("overrides: {a: {b: 1}}\n", "overrides", "a", {})
