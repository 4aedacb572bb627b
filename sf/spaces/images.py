"""The observations that are images, and how their axes are ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sf.errors import EnvError

if TYPE_CHECKING:
    from sf.spaces import LeafSpec

SMALLEST_IMAGE_SIDE = 36
"""Smallest side for the larger convolutions; smaller grids are read as vectors."""

SMALLEST_SIDES = {"resnet_impala": 16, "convnet_microrts": 4}
"""The same for `encoder_conv_architecture`, where the convolutions read smaller ones than usual."""


def image_layout(leaf: LeafSpec, architecture: str = "") -> Literal["HW", "CHW", "HWC"] | None:
    """How the axes of a leaf that is an image are ordered; None for a leaf that is none.

    The channels of three axes are the one that differs from two equal ones, and otherwise the shortest. Height and
    width of an image are at least what the convolutions of the architecture need.

    Raises:
        EnvError: the channels are in the middle, or any axis could be them.
    """
    shape, smallest_side = leaf.shape, SMALLEST_SIDES.get(architecture, SMALLEST_IMAGE_SIDE)
    if leaf.categories or len(shape) not in (2, 3):
        return None
    if len(shape) == 2:
        return "HW" if min(shape) >= smallest_side else None
    first, middle, last = shape
    channels = 0 if middle == last else 2 if first == middle else 1 if first == last else shape.index(min(shape))
    if min(shape[:channels] + shape[channels + 1 :]) < smallest_side:
        return None
    if len(set(shape)) == 1 or (len(set(shape)) == 3 and min(shape) >= SMALLEST_IMAGE_SIDE):
        raise EnvError(
            f"The observation {leaf.name!r} has shape {shape}, which is neither [height, width, channels] nor "
            "[channels, height, width]: any axis could be the channels. Flatten it with "
            "gymnasium.wrappers.FlattenObservation to have it read as a vector, or reshape it."
        )
    if channels == 1:
        raise EnvError(
            f"The observation {leaf.name!r} has shape {shape}, an image with its channels in the middle. Move them to "
            f"the end with gymnasium.wrappers.TransformObservation, so that the shape is {(first, last, middle)}."
        )
    return "CHW" if channels == 0 else "HWC"
