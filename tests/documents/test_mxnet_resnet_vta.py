"""Follow "ResNet of MXNet on VTA" of docs/recipes.md: all networks, counters, a board, its FPGA, and classes.

The board is a server here whose accelerator is simulated, with files for its FPGA that behave like the kernel's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.conftest import free_port, stage, tvmflow, wait_for_port
from tests.devices.fake_fpga import FakeManager, bit_file
from tests.documents.vta_counters import NETWORKS, SCALES, SMALL, START, STOP, WHOLE, count_graph, count_network, kept
from tests.documents.walk import Params, walking
from tests.flows.walk import walk
from tvmflow.config.workspace import Workspace
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.ir.relax.serialization import load_module
from tvmflow.vta.runtime.bitstream import parse_bitstream

pytestmark = pytest.mark.heavy

SECTION = "ResNet of MXNet on VTA"
PUBLISHED = {  # by the document, of resnet18_v1
    "inp_load_nbytes": 5549568,
    "wgt_load_nbytes": 12763136,
    "acc_load_nbytes": 6051840,
    "uop_load_nbytes": 22864,
    "out_store_nbytes": 2433536,
    "gemm_counter": 6623232,
    "alu_counter": 699328,
}
SIMULATED_S = 900.0  # the largest network, simulated on a machine that other tests use
MEAN, STD = np.array([123.0, 117.0, 104.0]), np.array([58.395, 57.12, 57.375])


def _quick(params: Params) -> None:
    params["cells"] = {name: cell for name, cell in params["cells"].items() if name.startswith("vta")}
    params["tune"] |= {"trials_per_workload": 0}
    params["fetch"] |= {"random_samples": 4, "evaluation_samples": 4, "golden_samples": 2}
    params["evaluate"] |= {"turns": 6, "peers": []}


def _card(root: Path, model: str, target: str, precision: str = "vta_int8") -> Any:
    folder = root / "artifacts" / "evaluate" / f"{model}.{target}.{precision}"
    return json.loads((folder / "scorecard.json").read_text())


def _image(path: Path, size: int, seed: int) -> np.ndarray[Any, Any]:
    """Write an image of the network's size, which no preprocessing resizes; return the network's input."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BILINEAR))
    Image.fromarray(pixels).save(path)
    return ((pixels - MEAN) / STD).transpose(2, 0, 1)[None].astype(np.float32)


def _scores(root: Path, slug: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what the quantized network gives by its definition in numpy, without a compiler or an accelerator."""
    return np.asarray(run_graph(read_graph(load_module(root / "artifacts" / "quantize" / slug)), x))


def _check_classes(said: str, scores: np.ndarray[Any, Any]) -> None:
    """Compare what `predict` prints, of one image after the other, with scores."""
    shown = [(float(share), int(number)) for share, number in re.findall(r"([0-9.]+)% .* ([0-9]+) +.?$", said, re.M)]
    assert len(shown) == 5 * len(scores), said
    for at, row in enumerate(scores.astype(np.float64)):
        powers = np.exp(row - row.max())
        best = np.argsort(-row, kind="stable")[:5]
        own = shown[5 * at : 5 * at + 5]
        assert [number for _, number in own] == best.tolist(), said
        assert np.allclose([share for share, _ in own], 100 * powers[best] / powers.sum(), atol=0.06), said


def _check_counters(card: Any, expected: dict[str, int]) -> None:
    part = card["part"]
    assert part["counted"] and part["runs"] >= 4
    assert {**part["counters"], "cycles": part["cycles"]} == expected
    built = card["agreement_by_step"]["quantized-built"]
    assert built["top1_agreement"] == 1.0 and (built["sqnr_db"] is None or built["sqnr_db"] > 60)
    assert card["agreement"]["sqnr_db"] > 3, "a constant output has no more than 0"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FakeManager]:
    (tmp_path / "board").mkdir()
    made = FakeManager(tmp_path / "board")
    yield made
    made.stop()


def test_the_document_is_followed_to_its_end(
    manager: FakeManager, make_workspace: Callable[..., Path], with_prefect_server: str
) -> None:
    root, port = make_workspace(), free_port()
    (root / "1x16_i8w8a32_15_15_18_17.bit").write_bytes(bit_file())
    x = _image(root / "cat.png", SMALL, 1)
    here = {
        "{zoo: pretrained}": "{seeded: 3}",
        "[1, 3, 224, 224]": f"[1, 3, {SMALL}, {SMALL}]",
        # Untrained weights need a scale each: with one for all, the last sum of `reference` schedules wraps.
        "scale: global, global_scale: 8.0": "scale: calibrated",
        "cortex-a9": "host",
        "    mtriple: armv7a-linux-gnueabihf\n": "",
        "192.168.2.99": "127.0.0.1",
        "9091": str(port),
        "--driver pynq": f"--driver sim --system-root {manager.root}",
    }
    with walking(SECTION, root, here, _quick) as steps:
        steps.follow()
        wait_for_port(port, 60)
        said = steps.follow()
        assert f"listens at 127.0.0.1:{port}" in said and all(
            f"{cell} build: " in said
            for cell in ("resnet18_v1@vta-board:vta_int8", "resnet18_v1@vta-reference:vta_int8")
        )
        _check_run(root, manager)
        _check_side_by_side(said, root)
        _check_classes(steps.follow(), _scores(root, "resnet18_v1.vta-board.vta_int8", x))
    assert len(manager.programmed) == 1, "predict finds it loaded"


def _check_run(root: Path, manager: FakeManager) -> None:
    """The board was programmed with the file's words, and both modes cost what is written down."""
    [programmed] = manager.programmed
    file = root / "1x16_i8w8a32_15_15_18_17.bit"
    assert programmed == parse_bitstream(file.read_bytes(), file.name).swapped
    deployed = json.loads((root / "artifacts/deploy/resnet18_v1.vta-board.vta_int8/deployed.json").read_text())
    design = "pynq_1x16_i8w8a32_15_15_18_17"
    assert deployed["configured"]["design"] == design and deployed["configured"]["loaded"]
    board = _card(root, "resnet18_v1", "vta-board")
    assert board["device"]["kind"] == f"vta-{design}" and not board["part"]["simulated"]
    _check_counters(board, kept("resnet18_v1", SMALL, "optimized"))
    _check_counters(_card(root, "resnet18_v1", "vta-reference"), kept("resnet18_v1", SMALL, "reference"))
    cpu = _card(root, "resnet18_v1", "local-cpu", "float32")
    assert cpu["agreement"]["top1_agreement"] == 1.0 and cpu["agreement"]["max_relative_error"] < 1e-3
    quantization = json.loads(
        (root / "artifacts/quantize/resnet18_v1.vta-board.vta_int8/quantization.json").read_text()
    )
    scales = {layer["name"]: layer["scale"] for layer in quantization["layers"]}
    assert scales["conv0"] is None and scales["dense0"] is None and scales["conv1"]


def _check_side_by_side(said: str, root: Path) -> None:
    """The table has each number with its unit, measured or estimated; the page has the same."""
    text = (root / "report.html").read_text()
    [table] = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text, re.S)[1])["processors"]  # type: ignore[index]
    cells = ["resnet18_v1@vta-board:vta_int8", "resnet18_v1@vta-reference:vta_int8", "resnet18_v1@local-cpu:float32"]
    rows = {row["what"]: dict(zip(table["cells"], row["values"], strict=True)) for row in table["rows"]}
    board, reference, cpu = cells
    assert rows["latency"][cpu]["how"] == rows["latency"][board]["how"] == "measured"
    assert rows["latency"][reference] is None and rows["cycles of the accelerator"][cpu] is None
    for name, mode in ((board, "optimized"), (reference, "reference")):
        expected = kept("resnet18_v1", SMALL, mode)
        assert rows["cycles of the accelerator"][name] == {"value": expected["cycles"], "how": "estimated"}
        assert rows["time of these at its clock"][name]["value"] == pytest.approx(expected["cycles"] / 100e3)
        moved = rows["bytes that the accelerator moves"][name]
        assert moved == {"value": expected["dram_nbytes"], "how": "measured"}
        assert rows["operations of the accelerator"][name]["value"] == 2 * 256 * expected["gemm_counter"]
        assert f"{expected['cycles']:,}, estimated" in said
    assert [row["unit"] for row in table["rows"]] == [
        "ms",
        "cycles",
        "ms",
        "bytes",
        "bytes",
        "operations",
        "operations",
    ]
    assert rows["operations of the CPU"][cpu]["value"] > 5 * rows["operations of the CPU"][board]["value"] > 0


def test_the_counters_of_the_document_are_those_that_are_written_down() -> None:
    assert {name: kept("resnet18_v1", WHOLE, "reference")[name] for name in PUBLISHED} == PUBLISHED
    for network in NETWORKS:
        for size in (SMALL, WHOLE):
            ours, theirs = (kept(network, size, mode) for mode in ("optimized", "reference"))
            assert ours["dram_nbytes"] < theirs["dram_nbytes"] and ours["cycles"] < theirs["cycles"], (network, size)


def test_what_is_written_down_is_counted_again(tmp_path: Path) -> None:
    counted = count_network("resnet18_v1", SMALL, tmp_path)
    assert counted == {mode: kept("resnet18_v1", SMALL, mode) for mode in ("optimized", "reference")}


def _entry(network: str, size: int, batch: int = 1) -> dict[str, Any]:
    return {
        "framework": "mxnet",
        "network": f"mxnet/{network}",
        "weights": {"seeded": 3},
        "input": {"shape": [batch, 3, size, size]},
        "preprocess": {"mean": MEAN.tolist(), "std": STD.tolist(), "fit": "stretch"},
    }


def _change(network: str, size: int, batch: int = 1) -> Callable[[Params], None]:
    def change(params: Params) -> None:
        params["models"] = {network: _entry(network, size, batch)}
        params["cells"] = {}
        for mode in ("optimized", "reference"):
            options = {"config": {"log_batch": batch.bit_length() - 1}, "mode": mode, "start": START, "stop": STOP}
            target = {"kind": "vta", "mcpu": "host", "threads": 2, "vta": options}
            params["targets"][mode] = {**target, "device": {"transport": "local", "key": "vta-sim"}}
            params["cells"][f"vta-{mode}"] = {"model": network, "target": mode, "precision": "vta_int8"}
        params["deploy"] |= {"session_timeout_s": SIMULATED_S}
        _quick(params)

    return change


def test_a_second_network_goes_through_the_stages(make_workspace: Callable[..., Path]) -> None:
    """Batch norms before its convolutions stay on the CPU, between regions of the accelerator."""
    card = walk(Workspace(make_workspace(_change("resnet18_v2", SMALL))), "vta-optimized")
    _check_counters(card, kept("resnet18_v2", SMALL, "optimized"))
    assert len(card["part"]["regions"]) > 1 and any("batch norm" in why for why in card["part"]["cpu_reasons"].values())


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("network", NETWORKS)
def test_all_networks_of_the_document_at_its_size(
    network: str, make_workspace: Callable[..., Path], with_prefect_server: str
) -> None:
    root = make_workspace(_change(network, WHOLE))
    tvmflow(root, "run", "vta-optimized", timeout=2900)
    counted = count_graph(read_graph(load_module(root / "artifacts" / "quantize" / f"{network}.optimized.vta_int8")))
    _check_counters(_card(root, network, "optimized"), counted["optimized"])
    # The last sum of `reference` wraps, which untrained weights make visible: its cost is planned, and not run.
    params = yaml.safe_load((root / "params.yaml").read_text())
    params.setdefault("build", {}).setdefault("max_relative_error", {})["vta_int8"] = 1.0
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    for name in ("fetch", "import_model", "quantize", "graph_pack", "tune", "build"):
        stage(root, name, f"{network}@reference:vta_int8", timeout=900)
    built = json.loads((root / f"artifacts/build/{network}.reference.vta_int8/vta/manifest.json").read_text())
    assert {**built["counters"], "cycles": built["cycles"]} == counted["reference"]
    for mode, found in counted.items():
        written = kept(network, WHOLE, mode)
        assert {name for name in written if found[name] != written[name]} <= set(SCALES)
        assert all(abs(found[name] / written[name] - 1) < 0.02 for name in SCALES)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [2, 4])
def test_a_design_with_several_samples_classifies_each(
    batch: int, make_workspace: Callable[..., Path], with_prefect_server: str
) -> None:
    root = make_workspace(_change("resnet18_v1", SMALL, batch))
    tvmflow(root, "run", "vta-optimized")
    names = [f"{at}.png" for at in range(batch)]
    x = np.concatenate([_image(root / name, SMALL, at) for at, name in enumerate(names)])
    said = tvmflow(root, "predict", "vta-optimized", *(str(root / name) for name in names), "--top", "5").stdout
    scores = _scores(root, "resnet18_v1.optimized.vta_int8", x)
    _check_classes(said, scores)
    assert len({tuple(row.argsort()[-5:]) for row in scores}) == batch, "each sample has classes of its own"


def test_a_bitstream_of_another_board_stops_before_anything_is_sent(
    manager: FakeManager, make_workspace: Callable[..., Path]
) -> None:
    root = make_workspace(_change("resnet18_v1", SMALL))
    (root / "wrong.bit").write_bytes(bit_file("zu3eg"))
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["targets"]["optimized"]["vta"] |= {"config": {"target": "pynq"}, "bitstream": "wrong.bit"}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    assert "for the part zu3egclg400" in tvmflow(root, "run", "vta-optimized", code=2).stderr
    assert manager.programmed == []
