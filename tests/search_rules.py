"""Define the settings of short searches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvmflow.config.stage_params import SearchLimits, SearchSettings
from tvmflow.tuning.rules import SearchRules


def changed(rules: SearchRules, **changes: Any) -> SearchRules:
    """Return rules with other values of the settings, the limits and the rules themselves, by name."""
    settings = {name: value for name, value in changes.items() if name in SearchSettings.model_fields}
    limits = {name: value for name, value in changes.items() if name in SearchLimits.model_fields}
    others = {name: value for name, value in changes.items() if name not in settings and name not in limits}
    return replace(
        rules,
        settings=SearchSettings.model_validate({**rules.settings.model_dump(), **settings}),
        limits=SearchLimits.model_validate({**rules.limits.model_dump(), **limits}),
        **others,
    )


# A few short measurements, believed whatever else the machine does.
QUICK_RULES = SearchRules(
    SearchSettings(
        tuner="grid",
        trials_per_workload=2,
        early_stopping=100,
        min_gain_per_minute=0.0,
        measure_repeats=1,
        measure_min_ms=0.1,
        replay_slowdown=1e9,
    ),
    SearchLimits(build_workers=1, canary_every=4, max_drift=1e9, cool_s=0.0, give_up_s=1.0),
)
