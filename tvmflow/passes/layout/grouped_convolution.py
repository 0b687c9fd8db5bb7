"""Convolutions whose groups fill no blocks of channels: each few groups get blocks of their own, filled up with zeros,
and the outputs are brought side by side again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Array
from tvmflow.passes.layout.channel_permute import Channel, moved_channels

_MOST_TOGETHER = 8  # groups, between which products are with zeros


@dataclass(frozen=True)
class SpreadGroups:
    """weight: (O', I', KH, KW) of a convolution of `groups` groups that fill blocks; inputs: which channel lies where
    in them, None for filling; outputs: where each output lies.
    """

    weight: Array
    groups: int
    inputs: list[Channel | None]
    outputs: list[Channel]

    def around(self, builder: Any, image: Any, convolution: Callable[[Any], Any]) -> Any:
        """Return the convolution's packed output of a packed image. convolution: of channels that lie in the groups'
        blocks.
        """
        made = builder.emit(convolution(builder.emit(moved_channels(builder, [image], self.inputs))))
        return moved_channels(builder, [made], self.outputs)


def spread_groups(weight: Array, groups: int, block: int) -> SpreadGroups:
    """Return a grouped convolution, its weight (O, I, KH, KW), with its groups spread."""
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]

    def filled(channels: int) -> int:
        return -(-channels // block) * block

    def products(together: int) -> int:
        return -(-groups // together) * filled(together * inputs) * filled(together * outputs)

    together = min(range(1, min(groups, _MOST_TOGETHER) + 1), key=products)
    left, wide, made = -(-groups // together), filled(together * inputs), filled(together * outputs)
    spread = np.zeros((left * made, wide, *weight.shape[2:]), weight.dtype)
    sources: list[Channel | None] = [None] * (left * wide)
    targets: list[Channel] = []
    for group in range(groups):
        at, slot = divmod(group, together)
        first, row = slot * inputs, at * made + slot * outputs
        spread[row : row + outputs, first : first + inputs] = weight[group * outputs : (group + 1) * outputs]
        for channel in range(inputs):
            sources[at * wide + first + channel] = (0, group * inputs + channel)
        targets += [(0, row + channel) for channel in range(outputs)]
    return SpreadGroups(spread, left, sources, targets)
