"""Which photographs of a capture are turned as their EXIF tags say.

Cameras speak either of the stored pixels or of the upright picture, by the program that computed them. A photograph
that lies sideways proves which by its shape; what some of a capture prove holds for those whose shape is the same
either way: square ones, those on their heads, mirrored ones. Headers are all that is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from splatscope.assets.lens import Lens
from splatscope.assets.photographs.images import ImageHeader
from splatscope.kernels.wording import counted

_SAME_SHAPE = 0.02  # relative difference of two aspect ratios that rounding and cropping by pixels explain


@dataclass(frozen=True)
class Candidate:
    """A photograph that may have to be turned."""

    name: str
    is_tagged: bool  # its EXIF tag asks for a turn or a mirror
    proof: bool | None  # its camera was made for it turned (True), as it is stored (False), or the shape tells neither


def proof_by_shape(header: ImageHeader, lens: Lens) -> bool | None:
    """Whether the camera can only have been made for the photograph turned (True) or as it is stored (False)."""
    stored, turned = (header.width, header.height), (header.height, header.width)
    if not header.lies_sideways or stored == turned:
        return None
    if (lens.width, lens.height) in (stored, turned):  # even if it is almost square
        return (lens.width, lens.height) == turned
    fits = same_shape(*turned, lens)
    return fits if fits != same_shape(*stored, lens) else None


def same_shape(width: int, height: int, lens: Lens) -> bool:
    """Whether a picture has the aspect ratio of the camera, but for rounding and cropping by pixels."""
    return abs((width * lens.height) / (height * lens.width) - 1) < _SAME_SHAPE


def decided(photographs: Sequence[Candidate], proofs: Counter[bool]) -> tuple[list[bool], str]:
    """Whether each is turned: by its own proof, else by what most of the capture prove, else not.

    `proofs` counts those of the whole capture. Also returns what people should know of it, a sentence or two; empty if
    nothing.
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
