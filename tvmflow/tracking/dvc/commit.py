"""Record stages with DVC and push them: `python -m tvmflow.tracking.dvc.commit [--push] STAGE...`.

Equivalent to `dvc commit --force` and `dvc push`, which rewrite all of dvc.lock for each stage and so get slower with
more cells. Run in a DVC repository.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Record the stages; exit with 1 and DVC's message on an error."""
    from dvc.repo import Repo, lock_repo

    stages = [name for name in sys.argv[1:] if name != "--push"]
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
