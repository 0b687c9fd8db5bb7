"""Let two clones share an S3 server as their DVC remote: `python -m tests.tracking.s3_desks FOLDER ADDRESS`.

Runs in an environment with dvc-s3. Fails with an AssertionError if they do not find each other's outputs.
"""

from __future__ import annotations

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import yaml
from dvc.config import Config

from tests.conftest import small_params
from tests.tracking.test_remote_recipes import Desk
from tvmflow.config.workspace import Workspace
from tvmflow.shipping.bundle.maven import VERSIONS_FILE
from tvmflow.shipping.publish import Files, publish
from tvmflow.support.errors import StoreError
from tvmflow.tracking.app_releases import claim_number
from tvmflow.tracking.dvc.remote import open_remote

KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}


def _desk(root: Path, address: str) -> Desk:
    root.mkdir(parents=True)
    (root / "params.yaml").write_text(yaml.safe_dump(small_params(), sort_keys=False))
    options = {"endpointurl": address, "access_key_id": "a", "secret_access_key": "b"}
    lines = "".join(f"\n    {name} = {text}" for name, text in options.items())
    return Desk(root, f"s3://bucket/tvmflow{lines}")


def _claims(workspace: Workspace, sha256: str) -> bool:
    try:
        claim_number(workspace, "app", 1, sha256)
    except StoreError:
        return False
    return True


def _publish_twice(desk: Desk, folder: Path) -> None:
    """Publish two versions of an artifact: the bucket has both, and the list of versions names both."""
    lists = folder / "maven" / "team" / "net" / VERSIONS_FILE
    lists.parent.mkdir(parents=True)
    [name] = Config(str(desk.root / ".dvc"))["remote"]
    for number in ("1", "2"):
        text = f"<groupId>team</groupId><artifactId>net</artifactId><version>{number}</version>"
        lists.write_text(text)
        new = lists.with_name(f"net-{number}.aar")
        new.write_text(number)
        publish(Files(folder, [new, lists], (number,)), f"remote://{name}/shop", desk.root / ".dvc")
    remote = open_remote(desk.workspace)
    assert remote is not None
    read = {path.name: remote.read(f"shop/maven/team/net/{path.name}") for path in lists.parent.glob("net-*.aar")}
    assert read == {"net-1.aar": b"1", "net-2.aar": b"2"}
    found = remote.read(f"shop/maven/team/net/{VERSIONS_FILE}") or b""
    assert re.findall(rb"<version>(.*?)</version>", found) == [b"1", b"2"]


def main(folder: Path, address: str) -> None:
    """Make, publish, delete, restore, and claim one number eight times at once."""
    boto3.client("s3", endpoint_url=address, region_name="us-east-1", **KEYS).create_bucket(Bucket="bucket")
    first, second = (_desk(folder / name, address) for name in ("first", "another home"))
    assert second.bring() == 0 and second.said == [], "nothing is there yet"
    first.make_all()
    first.publish()
    shutil.rmtree(first.root)
    assert second.bring() == 3, second.said
    assert second.make_all() == ["restored"] * 3 and second.calls() == []
    assert second.workspace.tuning_log(second.cell).read_text() == "measured\n"
    remote = open_remote(second.workspace)
    assert remote is not None and remote.by_digest and not remote.is_own and not remote.is_missing
    _publish_twice(second, folder / "files")
    desks = [_desk(folder / f"desk{number}", address) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda number: _claims(desks[number].workspace, f"{number}" * 64), range(8)))
    assert taken.count(True) == 1, taken


def away(folder: Path, address: str) -> None:
    """Ask a server that is gone: one line, and the stages run here."""
    desk = _desk(folder / "later", address)
    assert desk.bring() == 0 and len(desk.said) == 1 and "is away" in desk.said[0], desk.said
    assert desk.make_all() == ["made"] * 3


if __name__ == "__main__":
    {"main": main, "away": away}[sys.argv[3]](Path(sys.argv[1]), sys.argv[2])
