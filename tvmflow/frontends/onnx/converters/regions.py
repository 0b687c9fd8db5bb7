"""RoiAlign with mode max: the largest product of a pixel and its weight, of all points of a bin.

Relax's operator interpolates first, and takes the maximum of the results.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims


def largest_of_regions(node: Node, is_half_pixel: bool) -> Value:
    """Return the maxima of regions (K, 4) of an image (N, C, H, W) in bins."""
    x, rois, batch = node.inputs
    given, (_, channels, height, width) = node.attributes, dims(x)
    bins, points = (given["output_height"], given["output_width"]), given["sampling_ratio"]
    if points <= 0:
        raise RefusedNodeError("mode max with sampling_ratio 0, where the size of a region sets the number of points")
    scale, offset = given["spatial_scale"], 0.5 if is_half_pixel else 0.0

    def compute(image: Any, regions: Any, of: Any) -> Any:
        dtype = str(image.dtype)

        def number(value: float) -> Any:
            return tirx.const(value, dtype)

        steps = [te.reduce_axis((0, points), name) for name in ("step_y", "step_x")]

        def along(region: Any, axis: int, place: Any, extent: int) -> tuple[list[Any], list[Any], Any]:
            """Return the two pixels at a point, their weights, and whether the point is in the image."""
            first = 1 - axis  # of a region's x, y, x, y
            begin = regions[region, first] * number(scale) - number(offset)
            size = regions[region, first + 2] * number(scale) - number(offset) - begin
            size = (size if is_half_pixel else tirx.max(size, number(1.0))) / number(bins[axis])
            share = (tirx.Cast(dtype, steps[axis]) + number(0.5)) / number(points)
            at = begin + (tirx.Cast(dtype, place) + share) * size
            is_inside = tirx.all(at >= number(-1.0), at <= number(extent))
            at = tirx.min(tirx.max(at, number(0.0)), number(extent - 1))
            low = tirx.Cast("int64", tirx.floor(at))
            weight = at - tirx.floor(at)
            return [low, tirx.min(low + 1, extent - 1)], [number(1.0) - weight, weight], is_inside

        def largest(region: Any, channel: Any, row: Any, column: Any) -> Any:
            rows, row_weights, in_rows = along(region, 0, row, height)
            columns, column_weights, in_columns = along(region, 1, column, width)
            products = [
                image[of[region], channel, y, x] * a * b
                for y, a in zip(rows, row_weights, strict=True)
                for x, b in zip(columns, column_weights, strict=True)
            ]
            best = tirx.max(tirx.max(products[0], products[1]), tirx.max(products[2], products[3]))
            kept = tirx.Select(tirx.all(in_rows, in_columns), best, number(0.0))
            return te.max(kept, axis=steps)

        return te.compute((dims(rois)[0], channels, *bins), largest, name="largest_of_region")

    return node.emitter.te(compute, x, rois, node.emitter.cast(batch, "int64"), name="roi_align_max")
