"""Import layers of Keras, each as a model of its own: a sample here, all where there is time."""

from __future__ import annotations

import pytest

from bench.conformance.keras_layers import CASES, DOCUMENT, NOT_IN_NETWORKS, layer_names, verdict

pytestmark = pytest.mark.heavy

SAMPLE = ("Conv2D", "RandomFlip", "MixUp", "Discretization", "Dropout", "MultiHeadAttention")
REFUSED = ("Equalization",)


def test_the_page_has_every_layer_of_the_installed_keras() -> None:
    names = set(layer_names().values())
    assert names == set(CASES) | set(NOT_IN_NETWORKS)
    rows = {line.split("`")[1]: line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")}
    assert set(rows) == names
    assert {name for name, row in rows.items() if "refused" in row} == set(REFUSED)
    assert not [row for row in rows.values() if "WRONG" in row or "RAW" in row]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_layer_has_the_outputs_of_keras(name: str) -> None:
    assert verdict(name) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES) - set(SAMPLE) - set(REFUSED)))
def test_every_layer_has_the_outputs_of_keras(name: str) -> None:
    assert verdict(name) == ""
