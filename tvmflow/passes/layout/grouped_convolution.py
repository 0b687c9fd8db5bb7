"""Spread the groups of a convolution over blocks of channels where groups do not fill whole blocks.

Every few groups get blocks of their own, padded with zeros; the outputs are packed densely again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Array
from tvmflow.passes.layout.channel_permute import Channel, permute_channels

_MOST_TOGETHER = 8  # groups that share a block; products across them are with zeros


@dataclass(frozen=True)
class SpreadGroups:
    """A grouped convolution whose groups are spread over whole blocks.

    weight: (O', I', KH, KW) of a convolution with `groups` groups; inputs: the source channel of each of its input
    channels, None for padding; outputs: the position of each output channel.
    """

    weight: Array
    groups: int
    inputs: list[Channel | None]
    outputs: list[Channel]

    def emit(self, builder: Any, image: Any, convolution: Callable[[Any], Any]) -> Any:
        """Emit the convolution of a packed image; `convolution` emits it on the spread channels."""
        made = builder.emit(convolution(builder.emit(permute_channels(builder, [image], self.inputs))))
        return permute_channels(builder, [made], self.outputs)


def spread_groups(weight: Array, groups: int, block: int) -> SpreadGroups:
    """Return a grouped convolution with weight (O, I, KH, KW) spread over whole blocks."""
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]

    def round_up(channels: int) -> int:
        return -(-channels // block) * block

    def count_multiplications(together: int) -> int:
        return -(-groups // together) * round_up(together * inputs) * round_up(together * outputs)

    together = min(range(1, min(groups, _MOST_TOGETHER) + 1), key=count_multiplications)
    left, wide, made = -(-groups // together), round_up(together * inputs), round_up(together * outputs)
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
