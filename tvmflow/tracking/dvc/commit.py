"""Record stages with DVC and push them: `python -m tvmflow.tracking.dvc.commit [--push] STAGE...`.

Equivalent to `dvc commit --force` and `dvc push`, which rewrite all of dvc.lock for each stage and so get slower with
more cells. Run in a DVC repository.
"""

from __future__ import annotations

import copy
import functools
import sys
from typing import Any


def _parse_once() -> None:
    """Let DVC parse each text once: of eight stages it reads params.yaml, dvc.yaml and dvc.lock some eighty times."""
    from dvc.utils import strictyaml
    from dvc.utils.serialize import _yaml

    parse = _yaml.parse_yaml

    @functools.cache
    def parsed(text: str, path: str) -> Any:
        return parse(text, path)

    def parse_yaml(text: str, path: str, typ: str = "safe") -> Any:
        return copy.deepcopy(parsed(text, path)) if typ == "safe" else parse(text, path, typ)

    _yaml.parse_yaml = strictyaml.parse_yaml = parse_yaml


def main() -> None:
    """Record the stages; exit with 1 and DVC's message on an error."""
    from dvc.repo import Repo, lock_repo

    stages = [name for name in sys.argv[1:] if name != "--push"]
    _parse_once()
    try:
        with Repo() as repo:
            with lock_repo(repo):
                known = {stage.addressing: stage for stage in repo.index.stages}
                found = [known[name] if name in known else repo.stage.get_target(name) for name in stages]
                for stage in found:
                    stage.save()
                    stage.commit()
                for file in {stage.dvcfile for stage in found}:
                    file.dump_stages([stage for stage in found if stage.dvcfile == file], update_pipeline=False)
            if "--push" in sys.argv[1:]:
                repo.push(targets=stages)
    except Exception as error:  # errors of DVC and of the libraries below it
        reasons = [str(one) for one in (error, error.__cause__) if one is not None]
        sys.exit(f"ERROR: {': '.join(reason or type(error).__name__ for reason in reasons)}")


if __name__ == "__main__":
    main()
