"""Fuzz the agent's input for a few seconds under the compiler's sanitizers, guided by coverage."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.conftest import REPOSITORY
from tvmflow.devices.programs import agent_sources

AGENT = REPOSITORY / "runtime" / "agent"
OPTIONS = [
    "-std=gnu11",
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    f"-I{AGENT}",
    f"-I{AGENT.parent / 'include'}",
    f"-I{AGENT.parent / 'gpu'}",
    f"-I{AGENT.parent / 'measure'}",
]


def test_no_bytes_make_the_agent_do_anything_but_reply(tmp_path: Path) -> None:
    parts = [path for path in agent_sources() if path.name != "agent.c"]  # which has main
    compiling = [
        subprocess.Popen(
            ["gcc", *OPTIONS, "-fsanitize-coverage=trace-pc", "-c", str(path), "-o", str(tmp_path / f"{path.stem}.o")]
        )
        for path in parts
    ]
    assert [process.wait() for process in compiling] == [0] * len(parts)
    objects = [str(tmp_path / f"{path.stem}.o") for path in parts]
    main = [str(Path(__file__).parent / "fuzz_agent.c"), *objects, "-o", str(tmp_path / "fuzz"), "-pthread", "-ldl"]
    subprocess.run(["gcc", *OPTIONS, *main], check=True)
    folder = tmp_path / "below" / "store"
    folder.parent.mkdir()
    done = subprocess.run(
        [str(tmp_path / "fuzz"), str(folder), "4", "1"],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.match(r"(\d+) runs, (\d+) edges", done.stdout)
    assert found and int(found[2]) > 150, "it did look at what is executed"
    assert list(folder.parent.iterdir()) == [folder], "nothing is written beside its folder"
    assert all(re.fullmatch(r"lock|[0-9a-f]{64}(\.part)?", path.name) for path in folder.iterdir())
