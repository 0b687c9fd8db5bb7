"""Define the settings of single cells, in place of those under `quantize:` and `tune:`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tvmflow.config.stage_params import Frozen
from tvmflow.config.value_types import NotNegative, NotNegativeFloat


class _Given(Frozen):
    @property
    def given(self) -> dict[str, Any]:
        """Return the keys that are set, with their values."""
        return self.model_dump(exclude_none=True)


class Int8Overrides(_Given):
    """Keys of `quantize.int8` for one cell. None: as there."""

    keep_float: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    max_drop: Annotated[float, Field(ge=0, le=1)] | None = None
    max_float_layers: NotNegative | None = None


class TuneOverrides(_Given):
    """Keys of `tune` for one cell. None: as there."""

    trials_per_workload: NotNegative | None = None
    total_trials: NotNegative | None = None
    max_seconds: NotNegativeFloat | None = None
    without_device: bool | None = None


class CellOverrides(Frozen):
    """What differs in one cell from `quantize:` and `tune:`. int8: of cells in int8 only."""

    int8: Int8Overrides = Int8Overrides()
    tune: TuneOverrides = TuneOverrides()
