"""Find this installation's packages `tasks` and `flows`, not folders of the user with these names.

In a wheel they are packages of `tvmflow` (hatch_build.py). In the repository they lie beside it, and Python searches
the current folder first, in notebooks and with `python -m`; a project with Celery, Invoke or Prefect often has a
`tasks.py` or a folder `flows` there.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path

from tvmflow.support.errors import UsageError
from tvmflow.support.paths import CODE_ROOT

IN_WHEEL = (CODE_ROOT / "tvmflow" / "tasks").is_dir()
_NAMES = () if IN_WHEEL else ("tasks", "flows")


def own_module(name: str) -> str:
    """Return the name by which this installation imports a module of `tasks` or `flows`."""
    return f"tvmflow.{name}" if IN_WHEEL else name


def prefer_own_packages() -> None:
    """Search this installation first, in a process of the command line, which imports nothing of the user by name."""
    if any(_found_elsewhere(name) for name in _NAMES):
        sys.path.insert(0, str(CODE_ROOT))


def check_own_packages() -> None:
    """Raise UsageError in a process of the user that has, or would find, another package of these names."""
    for name in _NAMES:
        if place := _found_elsewhere(name):
            raise UsageError(
                f"{place} hides tvmflow's package {name!r}",
                "no module of that name before it in sys.path: tvmflow imports it by name",
                "install tvmflow as a wheel, which has no package of that name; or rename yours, start Python in "
                "another folder or with -P, or run the command 'tvmflow'",
            )


def _found_elsewhere(name: str) -> str:
    """Return where another module of this name is loaded, or would be loaded from; "" for ours."""
    loaded = sys.modules.get(name)
    spec = loaded.__spec__ if loaded is not None else PathFinder.find_spec(name)
    places = [*(spec.submodule_search_locations or ()), spec.origin] if spec is not None else []
    place = next((str(one) for one in places if one), "")
    return "" if not place or Path(place).resolve().is_relative_to(CODE_ROOT / name) else place
