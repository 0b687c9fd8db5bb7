"""Use what the extras text, ui and adb bring, in an environment that has tvmflow's wheel: no test imports this file.

In: the folder of a workspace with recorded runs, as the current one. Out: a line for each extra.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

MODELS = "/api/2.0/mlflow/registered-models/search"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def read_a_text(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from tvmflow.sources.data.tokens import tokenize

    made = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "fast": 2, "network": 3}, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    ids = [one[0] for one in tokenize(str(folder / "tokenizer.json"), ["fast network", "a fast fast network"], 3)]
    assert ids == [[2, 3], [1, 2, 2]], ids
    print("text: tokens")


def open_the_pages() -> None:
    port = _free_port()
    command = [str(Path(sys.executable).parent / "mlflow"), "ui", "--backend-store-uri", "sqlite:///mlruns/mlflow.db"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with subprocess.Popen([*command, "--port", str(port), "--workers", "1"], env=environment) as server:
        try:
            page = f"http://127.0.0.1:{port}"
            for _ in range(240):
                time.sleep(0.5)
                assert server.poll() is None, "mlflow ui ended"
                try:
                    with urllib.request.urlopen(page, timeout=30) as answer:
                        assert b"<title>MLflow" in answer.read()
                    break
                except OSError:
                    continue
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{MODELS}", timeout=60) as answer:
                names = [one["name"] for one in json.load(answer)["registered_models"]]
            assert any(name.startswith("mine.") for name in names), names
        finally:
            server.terminate()
    print("ui: page and models")


def list_phones_by_its_adb() -> None:
    """With the package's program, whose server listens at a port of its own."""
    from tvmflow.devices.android.adb import find_adb, list_phones

    os.environ |= {"ANDROID_ADB_SERVER_PORT": str(_free_port()), "PATH": str(Path(sys.executable).parent)}
    program = find_adb()
    assert "adbutils" in program, program
    try:
        assert list_phones() == []
    finally:
        subprocess.run([program, "kill-server"], check=True, timeout=60)
    print("adb: no phones")


if __name__ == "__main__":
    read_a_text(Path.cwd())
    open_the_pages()
    list_phones_by_its_adb()
