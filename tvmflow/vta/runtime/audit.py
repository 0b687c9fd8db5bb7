"""Check the runs and counters that a device reports against the compiled programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvmflow.support.errors import AgreementError

FIX = "the device runs another program, or its simulator is wrong"


def check_ran(regions: Sequence[Mapping[str, Any]], ran: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return `runs` of the whole network, in all its forms, and whether the device `counted`.

    regions: of the build's manifest, each with the `counters` of one run, and `digest` and `code_digest`, under which
    devices know it in a library for TVM and in one without. ran: digest -> what the device says of a program
    (`Ran.to_json`). Raises AgreementError when other programs ran, or they cost something else.
    """
    forms = [_by_digest(regions, name) for name in ("digest", "code_digest")]
    ran_forms = [form for form in forms if set(form) & set(ran)]
    if not ran_forms or set(ran) != {digest for form in ran_forms for digest in form}:
        planned = " or ".join(_names(form) for form in forms)
        raise AgreementError(
            f"evaluate: the accelerator ran the programs {_names(ran)}", f"those of this library, {planned}", FIX
        )
    total = 0
    for form in ran_forms:
        runs = {_count_runs(same, ran[digest]) for digest, same in form.items()}
        if len(runs) != 1:
            raise AgreementError(f"evaluate: the parts of the network ran {sorted(runs)} times", "each as often", FIX)
        total += runs.pop()
    return {"runs": total, "counted": all(done["counted"] is not None for done in ran.values())}


def _by_digest(regions: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return the regions of each digest: parts whose instructions are the same count together."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for region in regions:
        found.setdefault(region[name], []).append(region)
    return found


def _count_runs(same: Sequence[Mapping[str, Any]], done: Mapping[str, Any]) -> int:
    """Return how often each of the regions that share a program ran. Raises AgreementError for another cost."""
    if done["counted"] is not None:
        wanted = {name: value * done["runs"] for name, value in same[0]["counters"].items()}
        different = [name for name, value in wanted.items() if done["counted"].get(name) != value]
        if different:
            raise AgreementError(
                f"evaluate: in {done['runs']} runs the accelerator counted "
                f"{ ({n: done['counted'].get(n) for n in different}) }",
                f"what the program must cost: { ({name: wanted[name] for name in different}) }",
                FIX,
            )
    runs, rest = divmod(int(done["runs"]), len(same))
    if rest:
        raise AgreementError(
            f"evaluate: {len(same)} equal parts of the network ran {done['runs']} times together", "each as often", FIX
        )
    return runs


def sum_cycles(ran: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the estimated cycles of everything that ran."""
    return sum(done["cycles"] * done["runs"] for done in ran.values())


def _names(digests: Mapping[str, Any]) -> str:
    return ", ".join(sorted(digest[:12] for digest in digests)) or "(none)"
