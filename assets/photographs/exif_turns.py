"""Decides which photographs of a capture are turned as their EXIF tags say.

Depending on the program that computed them, cameras refer to the stored pixels or to the upright picture. The shape of
a photograph that lies sideways proves which. What such photographs of a capture prove also holds for photographs whose
shape is the same either way: square, upside down or mirrored ones. Reads headers only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from splatscope.assets.lens import Lens
from splatscope.assets.photographs.images import ImageHeader
from splatscope.kernels.wording import counted

_SAME_SHAPE = 0.02  # largest relative difference of two aspect ratios that rounding and cropping by pixels explain


@dataclass(frozen=True)
class Candidate:
    """Describes a photograph that may have to be turned."""

    name: str
    is_tagged: bool  # its EXIF tag asks for a turn or a mirror
    proof: bool | None  # its camera fits it turned (True), as stored (False), or the shape does not tell (None)


def proof_by_shape(header: ImageHeader, lens: Lens) -> bool | None:
    """Returns True if the camera only fits the photograph turned, False if only as stored, None if its shape does not
    tell.
    """
    stored, turned = (header.width, header.height), (header.height, header.width)
    if not header.lies_sideways or stored == turned:
        return None
    if (lens.width, lens.height) in (stored, turned):  # even if it is almost square
        return (lens.width, lens.height) == turned
    fits = same_shape(*turned, lens)
    return fits if fits != same_shape(*stored, lens) else None


def same_shape(width: int, height: int, lens: Lens) -> bool:
    """Returns True if a picture has the camera's aspect ratio, apart from rounding and cropping by pixels."""
    return abs((width * lens.height) / (height * lens.width) - 1) < _SAME_SHAPE


def decided(photographs: Sequence[Candidate], proofs: Counter[bool]) -> tuple[list[bool], str]:
    """Decides for each photograph whether it is turned: by its own proof, else by what most of the capture prove, else
    not.

    `proofs` counts those of the whole capture. Also returns a sentence or two for people; empty if there is nothing to
    say.
    """
    tagged = [photograph for photograph in photographs if photograph.is_tagged]
    rest = proofs[True] > proofs[False]
    turned = [p.is_tagged and (rest if p.proof is None else p.proof) for p in photographs]
    upright, stored, open_ = ([p.name for p in tagged if p.proof is proof] for proof in (True, False, None))
    if open_ and not proofs.total():
        return turned, (
            f"Left as stored, although EXIF tags would turn them: {counted(len(open_), 'photograph')}, for example "
            f"{open_[0]}. Nothing tells whether the cameras were computed from upright pictures. If they were, turn "
            "the files themselves, as ImageMagick's mogrify -auto-orient does."
        )
    if not (upright and stored):
        return turned, ""
    others = ""
    if open_:
        others = (
            f"; {counted(len(open_), 'other')}, {open_[0]} first, {'turned as most are' if rest else 'left as stored'}"
        )
    return turned, (
        f"Cameras contradict each other about EXIF tags: {counted(len(upright), 'photograph')} only fit turned, for "
        f"example {upright[0]}, and {len(stored)} only as stored, for example {stored[0]}. Each is taken as it fits"
        f"{others}. If the result is blurred, compute all cameras from the same files."
    )
