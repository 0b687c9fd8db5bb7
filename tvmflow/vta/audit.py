"""Hold what a device did against what it was to do: which programs ran, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmflow.errors import AgreementError

FIX = "the device runs another program, or its simulator is wrong"


def check_ran(regions: Sequence[Mapping[str, Any]], ran: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return `runs` of the whole network, and whether the device `counted`.

    regions: of the build's manifest, each with `digest` and the `counters` of one run. ran: digest -> what the device says of a
    program (`Ran.to_json`). Raises AgreementError when other programs ran, or they cost something else.
    """
    planned, runs = {region["digest"]: region for region in regions}, set[int]()
    if set(ran) != set(planned):
        raise AgreementError(
            f"evaluate: the accelerator ran the programs {_names(ran)}",
            f"those of this library, {_names(planned)}",
            FIX,
        )
    for digest, region in planned.items():
        done = ran[digest]
        runs.add(done["runs"])
        if done["counted"] is None:
            continue
        wanted = {name: value * done["runs"] for name, value in region["counters"].items()}
        different = [name for name, value in wanted.items() if done["counted"].get(name) != value]
        if different:
            raise AgreementError(
                f"evaluate: in {done['runs']} runs the accelerator counted { ({n: done['counted'].get(n) for n in different}) }",
                f"what the program must cost: { ({name: wanted[name] for name in different}) }",
                FIX,
            )
    if len(runs) != 1:
        raise AgreementError(f"evaluate: the parts of the network ran {sorted(runs)} times", "each as often", FIX)
    return {"runs": runs.pop(), "counted": all(done["counted"] is not None for done in ran.values())}


def cycles_spent(ran: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the estimated cycles of everything that ran."""
    return sum(done["cycles"] * done["runs"] for done in ran.values())


def _names(digests: Mapping[str, Any]) -> str:
    return ", ".join(sorted(digest[:12] for digest in digests)) or "(none)"
