"""Photographs and pictures on disk, through Pillow: sizes, 8-bit pixels, PNG output.

Pixels are those stored unless a caller asks for them turned as the EXIF tag says: a camera's intrinsics mostly
speak of stored pixels (`photographs.py` decides). Nothing is composited or resized here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from splatscope.assets.atomic import atomic_path
from splatscope.assets.json_fields import SIZE_LIMIT
from splatscope.assets.lfs import LFS_SENTENCE, lfs_pointer, starts
from splatscope.kernels.errors import InputError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".jp2", ".j2k"})  # photographs
UNREAD = frozenset(  # photographs of kinds that are not read
    f".{ending}"
    for ending in (
        *("heic", "heif", "avif", "jxl", "gif", "exr", "hdr"),
        *("dng", "cr2", "cr3", "nef", "arw", "raf", "orf", "rw2", "pef", "srw", "x3f", "3fr"),
    )
)

# Pillow's own limit would warn at 89 and refuse at 179 megapixels, which telephones reach today. Ours only
# keeps a damaged header from asking for gigabytes.
Image.MAX_IMAGE_PIXELS = None
_PIXEL_LIMIT = 1 << 28
_JPEG = ("JPEG", "MPO")  # the second: with a smaller picture behind the first, as telephones write
_ORIENTATION = 0x0112  # EXIF tag
_CAMERA = (0x010F, 0x0110)  # make and model
_EXIF, _FOCAL_LENGTH = 0x8769, 0x920A  # a table of tags, and one in it
QUARTER_TURNS = (5, 6, 7, 8)  # of what that tag says
_TURNS = (2, 3, 4, *QUARTER_TURNS)
warnings.filterwarnings("ignore", module=r"PIL\.")  # remarks on odd metadata, meant for programmers


@dataclass(frozen=True)
class ImageHeader:
    """What a file says of its picture before any pixel is decoded."""

    width: int  # stored pixels
    height: int
    has_alpha: bool  # `read_image` will return four channels
    orientation: int = 1  # what its EXIF tag says: 1 as it is, 2 to 8 turned or mirrored

    @property
    def is_tagged(self) -> bool:
        """Its EXIF tag asks for any turn, or for a mirror."""
        return self.orientation != 1

    @property
    def lies_sideways(self) -> bool:
        """Its EXIF tag asks for a quarter turn."""
        return self.orientation in QUARTER_TURNS


def read_header(path: Path | str) -> ImageHeader:
    """Reads the header and nothing else. Raises InputError."""
    with _opened(path) as image:
        tag = None if image.format == "TIFF" else _orientation(image)  # TIFFs Pillow turns itself
        orientation = next((turn for turn in _TURNS if turn == tag), 1)
        return ImageHeader(*image.size, image.has_transparency_data, orientation)


def _orientation(image: Image.Image) -> object:
    """What the EXIF tag says; a PNG may carry its EXIF behind the pixels, and asking for it would decode them."""
    return image.getexif().get(_ORIENTATION) if image.format != "PNG" or "exif" in image.info else None


def camera_key(path: Path | str) -> tuple[object, ...]:
    """Equal for photographs that one camera took at one zoom, as far as their headers tell. Raises InputError."""
    with _opened(path) as image:
        lies_sideways = _orientation(image) in QUARTER_TURNS
        if image.format not in (*_JPEG, "TIFF", "WEBP"):
            return (*image.size, lies_sideways)
        tags = image.getexif()
        camera = (tags.get(tag) for tag in _CAMERA)
        return (*image.size, lies_sideways, *camera, str(tags.get_ifd(_EXIF).get(_FOCAL_LENGTH)))


def stored_upright(path: Path | str) -> bool:
    """Whether the stored pixels are those that `read_image` gives when it turns as the EXIF tag says. Raises
    InputError."""
    with _opened(path) as image:
        return _orientation(image) not in _TURNS


def write_turned(path: Path | str, target: Path) -> None:
    """A copy turned as the photograph's EXIF tag says; a JPEG keeps its other tags. Raises InputError."""
    pixels = read_image(path, turned=True)[..., :3]
    with _opened(path) as image:
        tags = image.getexif() if image.format in _JPEG else Image.Exif()
    tags.pop(_ORIENTATION, None)
    Image.fromarray(np.ascontiguousarray(pixels)).save(target, quality=95, exif=tags)


def image_size(path: Path | str) -> tuple[int, int]:
    """(W, H) in stored pixels; reads the header only. Raises InputError."""
    with _opened(path) as image:
        return image.size


def read_image(path: Path | str, turned: bool = False) -> NDArray[np.uint8]:
    """Pixels as uint8 [H, W, 3], or [H, W, 4] with straight (not premultiplied) alpha.

    Grey, palette and CMYK become RGB; 16 bits are rounded to 8. With `turned` the picture is turned as its
    EXIF tag says. Raises InputError if the file is damaged.
    """
    with _opened(path) as opened:
        image = ImageOps.exif_transpose(opened) if turned else opened
        if image.mode.startswith("I"):  # 16-bit grey, by some decoders handed over as 32-bit integers
            wide = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
            grey = ((wide * 255 + 32767) // 65535).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        return np.array(image.convert("RGBA" if image.has_transparency_data else "RGB"))


def read_mask(path: Path | str, orientation: int = 1, strictly: bool = False) -> NDArray[np.bool_]:
    """[H, W], True where a mask is not black, after the turn that EXIF's `orientation` stands for.

    A pixel is as bright as its brightest channel, and black where it is transparent; half of white is the limit. In a
    mask that nowhere reaches it, as one of labels 0, 1, 2 does not, all that is not 0 counts; `strictly` in any mask,
    transparent or not. Raises InputError if the file is damaged.
    """
    with _opened(path) as opened:
        if orientation != 1:
            opened.getexif()[_ORIENTATION] = orientation
        image = opened if orientation == 1 else ImageOps.exif_transpose(opened)
        if image.mode.startswith("I"):
            levels, half = np.asarray(image), 1 << 15
        elif image.has_transparency_data and not strictly:
            channels = np.asarray(image.convert("RGBA"))
            levels, half = channels[..., :3].max(axis=2) * (channels[..., 3] >= 128), 128
        elif image.mode in ("1", "L"):
            levels, half = np.asarray(image.convert("L")), 128
        else:
            levels, half = np.asarray(image.convert("RGB")).max(axis=2), 128
        return levels > 0 if strictly or levels.max() < half else levels >= half


def read_small(path: Path | str, width: int, height: int, turned: bool = False) -> NDArray[np.uint8]:
    """The whole picture made to fit into width x height pixels, channels as `read_image` has them.

    Where the format allows it, only as much is decoded as that needs. Raises InputError if the file is damaged.
    """
    with _opened(path) as image:
        image.draft(None, (width, height))
        longest = max(width, height)
        image.thumbnail((longest, longest) if turned else (width, height))
        small = ImageOps.exif_transpose(image) if turned else image
        if small.mode.startswith("I"):
            small = small.point(lambda value: value / 256).convert("L")
        small = small.convert("RGBA" if small.has_transparency_data else "RGB")
        small.thumbnail((width, height))
        return np.array(small)


def check_decodes(path: Path | str) -> None:
    """Reads all of a picture, at an eighth of its size where the format allows it. Raises InputError if damaged."""
    with _opened(path) as image:
        image.draft(None, (1, 1))
        image.load()


def write_png(
    path: Path | str, array: NDArray[np.uint8], text: Mapping[str, str] | None = None, compress_level: int = 6
) -> None:
    """Writes uint8 [H, W], [H, W, 3] or [H, W, 4] as PNG; `text` becomes its metadata. Raises InputError."""
    metadata = PngInfo()
    for key, value in (text or {}).items():
        metadata.add_text(key, value)
    with atomic_path(path) as temporary:
        Image.fromarray(np.ascontiguousarray(array)).save(
            temporary, "PNG", pnginfo=metadata, compress_level=compress_level
        )


@contextmanager
def _opened(path: Path | str) -> Iterator[Image.Image]:
    """The image with its header read. Decoders fail in many ways; all of them become one sentence."""
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):  # a pipe would never end
        raise InputError(f"{path} is not an image: it is not a regular file.")
    try:
        with Image.open(path) as image:
            if max(image.size) > SIZE_LIMIT or image.width * image.height > _PIXEL_LIMIT:
                raise InputError(
                    f"{path} claims to be {image.width} x {image.height} pixels; at most {SIZE_LIMIT} along a "
                    f"side and {_PIXEL_LIMIT >> 20} megapixels are read. It is damaged, or must be made smaller first."
                )
            if image.mode == "F":
                raise InputError(f"{path} has floating-point pixels; 8 or 16 bits are read. Convert it to PNG first.")
            yield image
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"The image {path} does not exist.") from error
    except (PermissionError, IsADirectoryError) as error:
        raise InputError(f"The image {path} cannot be read: {error.strerror}.") from error
    except UnidentifiedImageError as error:
        if lfs_pointer(starts(Path(path), 100)):
            raise InputError(f"The image {path} cannot be read: {LFS_SENTENCE}") from error
        if Path(path).suffix.lower() in (".tif", ".tiff"):
            raise InputError(f"{path} is damaged, or a kind of TIFF that is not read; convert it to PNG.") from error
        raise InputError(f"{path} is not an image, or is damaged from its first bytes on. Copy it again.") from error
    except MemoryError as error:
        raise InputError(f"{path} does not fit in memory; make it smaller first.") from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ... by format
        raise InputError(f"{path} is damaged or cut short and cannot be decoded. Copy it again.") from error
