"""Reads and writes photographs and pictures through Pillow: sizes, 8-bit pixels, PNG output.

Pixels are returned as stored, unless a caller asks for them turned as the EXIF tag says: a camera's intrinsics mostly
refer to stored pixels (`find.py` decides). Composites and resizes nothing. Pixels leave Pillow strip by strip, because
whole copies would take several times the memory of the picture.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from splatscope.assets.files.atomic import atomic_path
from splatscope.assets.files.json_fields import SIZE_LIMIT
from splatscope.assets.files.lfs import LFS_SENTENCE, lfs_pointer, starts
from splatscope.kernels.errors import InputError

Scalar = TypeVar("Scalar", bound=np.generic)

EXTENSIONS = frozenset(  # endings of photographs
    f".{ending}"
    for ending in ("jpg", "jpeg", "jpe", "jfif", "mpo", "insp", "png", "webp", "tif", "tiff", "bmp", "jp2", "j2k")
)
UNREAD = frozenset(  # endings of photographs of kinds that are not read
    f".{ending}"
    for ending in (
        *("heic", "heif", "avif", "jxl", "gif", "exr", "hdr"),
        *("dng", "cr2", "cr3", "nef", "arw", "raf", "orf", "rw2", "pef", "srw", "x3f", "3fr"),
    )
)

# Cameras never write the other formats that Pillow knows, and for some of those it would start other programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "JPEG2000", "GIF", "PPM")
# Pillow's own limit would warn at 89 and refuse at 179 megapixels, which telephones exceed. A picture at our limit
# takes 2 GB while it is read; what a damaged header asks for is bounded by the size of its file (`_most_pixels`).
Image.MAX_IMAGE_PIXELS = None
_PIXEL_LIMIT = 1 << 28
_FREE_PIXELS = 1 << 22  # pixels that any file may claim: so few are decoded quickly
_JPEG_PIXELS = 512  # most pixels in a byte: a block of 8 x 8 takes at least one bit
_FLAT_PIXELS = 1 << 16  # most pixels in a byte of the other formats, which store flat pictures in few bytes
# Most bytes that one byte unpacks to: in a PNG, and in a TIFF or BMP by the name or number of its compression.
_DEFLATED = 1032
_UNPACKED = {
    "raw": 1,
    "packbits": 64,
    "tiff_lzw": 1500,
    "tiff_adobe_deflate": _DEFLATED,
    "tiff_deflate": _DEFLATED,
    0: 1,
}
_PIXEL_BITS = {
    "RGB": 24,
    "RGBA": 32,
    "CMYK": 32,
    "LA": 16,
    "I;16": 16,
}  # least bits of a stored pixel; else 1
_STRIP_PIXELS = 1 << 20
_JPEG = ("JPEG", "MPO")  # MPO has a smaller picture behind the first, as telephones write
_ORIENTATION = 0x0112  # EXIF tag
_CAMERA = (0x010F, 0x0110)  # make and model
_EXIF, _FOCAL_LENGTH = 0x8769, 0x920A  # a table of tags, and a tag in it
QUARTER_TURNS = (5, 6, 7, 8)  # values of that tag
_TURNS = (2, 3, 4, *QUARTER_TURNS)
warnings.filterwarnings("ignore", module=r"PIL\.")  # remarks on odd metadata, meant for programmers


def _quieten_libtiff() -> None:
    """Stops the library that decodes TIFFs for Pillow from printing. Pillow's own error says that a file is damaged."""
    folder = Path(Image.__file__).parent
    for library in (*folder.parent.glob("pillow.libs/libtiff*"), *folder.glob(".dylibs/libtiff*")):
        with suppress(OSError, AttributeError):  # another build of Pillow, whose remarks do no harm
            tiff = ctypes.CDLL(str(library))
            for setter in (tiff.TIFFSetErrorHandler, tiff.TIFFSetWarningHandler):
                setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
                setter(None)


_quieten_libtiff()


@dataclass(frozen=True)
class ImageHeader:
    """Holds what a file says of its picture before any pixel is decoded."""

    width: int  # stored pixels
    height: int
    has_alpha: bool  # `read_image` will return four channels
    orientation: int = 1  # EXIF orientation: 1 as it is, 2 to 8 turned or mirrored

    @property
    def is_tagged(self) -> bool:
        """Returns True if its EXIF tag asks for a turn or a mirror."""
        return self.orientation != 1

    @property
    def lies_sideways(self) -> bool:
        """Returns True if its EXIF tag asks for a quarter turn."""
        return self.orientation in QUARTER_TURNS


def read_header(path: Path | str) -> ImageHeader:
    """Reads the header and nothing else. Raises InputError."""
    with _opened(path) as image:
        tag = None if image.format == "TIFF" else _orientation(image)  # TIFFs Pillow turns itself
        orientation = next((turn for turn in _TURNS if turn == tag), 1)
        return ImageHeader(*image.size, image.has_transparency_data, orientation)


def _orientation(image: Image.Image) -> object:
    """Returns the EXIF orientation. A PNG may carry EXIF behind the pixels; then this decodes them."""
    return image.getexif().get(_ORIENTATION) if image.format != "PNG" or "exif" in image.info else None


def camera_key(path: Path | str) -> tuple[object, ...]:
    """Returns a key that is equal for photographs of one camera at one zoom, by their headers. Raises InputError."""
    with _opened(path) as image:
        lies_sideways = _orientation(image) in QUARTER_TURNS
        if image.format not in (*_JPEG, "TIFF", "WEBP"):
            return (*image.size, lies_sideways)
        tags = image.getexif()
        camera = (tags.get(tag) for tag in _CAMERA)
        return (*image.size, lies_sideways, *camera, str(tags.get_ifd(_EXIF).get(_FOCAL_LENGTH)))


def stored_upright(path: Path | str) -> bool:
    """Returns True if the stored pixels equal those that `read_image` gives when it turns as the EXIF tag says.

    Raises InputError.
    """
    with _opened(path) as image:
        return _orientation(image) not in _TURNS


def _most_pixels(image: Image.Image, size: int) -> int:
    """Returns the most pixels that a file of that size can hold, by its format."""
    packing = image.info.get("compression") if image.format in ("TIFF", "BMP") else None
    unpacked = _DEFLATED if image.format == "PNG" else _UNPACKED.get(packing)
    if image.format in _JPEG:
        per_byte = _JPEG_PIXELS
    elif unpacked is not None:
        per_byte = 8 * unpacked / _PIXEL_BITS.get(image.mode, 1)
    else:
        per_byte = _FLAT_PIXELS
    return max(_FREE_PIXELS, int(size * per_byte))


def write_turned(path: Path | str, target: Path) -> None:
    """Writes a copy turned as the EXIF tag says; a JPEG keeps its other tags. Raises InputError."""
    pixels = read_image(path, turned=True)[..., :3]
    with _opened(path) as image:
        tags = image.getexif() if image.format in _JPEG else Image.Exif()
    tags.pop(_ORIENTATION, None)
    Image.fromarray(np.ascontiguousarray(pixels)).save(target, quality=95, exif=tags)


def image_size(path: Path | str) -> tuple[int, int]:
    """Returns (W, H) in stored pixels; reads the header only. Raises InputError."""
    with _opened(path) as image:
        return image.size


def read_image(path: Path | str, turned: bool = False) -> NDArray[np.uint8]:
    """Returns pixels as uint8 [H, W, 3], or [H, W, 4] with straight (not premultiplied) alpha.

    Grey, palette and CMYK become RGB; 16 bits are rounded to 8. With `turned` the picture is turned as its EXIF tag
    says. Raises InputError if the file is damaged.
    """
    return _turned(*_stored(path, turned))


def _stored(path: Path | str, turned: bool) -> tuple[NDArray[np.uint8], object]:
    """Returns the pixels and the number of the turn left to do. Frees the decoded picture on return."""
    with _opened(path) as image:
        image.load()  # a TIFF turns itself, and a PNG may have its EXIF behind the pixels
        orientation = image.getexif().get(_ORIENTATION) if turned else 1
        mode = "RGBA" if image.has_transparency_data and not _is_wide(image) else "RGB"
        pixels = np.empty((image.height, image.width, len(mode)), np.uint8)
        for rows, strip in _strips(image):
            if _is_wide(strip):
                wide = np.clip(np.asarray(strip).astype(np.int64), 0, 65535)
                pixels[rows] = ((wide * 255 + 32767) // 65535)[..., None]
            else:
                pixels[rows] = np.asarray(strip if strip.mode == mode else strip.convert(mode))
        return pixels, orientation


def _is_wide(image: Image.Image) -> bool:
    """Returns True for 16-bit grey, which some decoders return as 32-bit integers."""
    return image.mode.startswith("I")


def _strips(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    """Yields parts of the picture from top to bottom, with the rows they fill."""
    step = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def _turned(pixels: NDArray[Scalar], orientation: object) -> NDArray[Scalar]:
    """Returns the pixels [H, W, ...] after the turn or mirror of that EXIF number."""
    if orientation not in _TURNS:
        return pixels
    turned = pixels.swapaxes(0, 1) if orientation in QUARTER_TURNS else pixels
    down = -1 if orientation in (3, 4, 7, 8) else 1
    across = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(turned[::down, ::across])


def read_mask(path: Path | str, orientation: int = 1, strictly: bool = False) -> NDArray[np.bool_]:
    """Returns [H, W], True where a mask is not black, after the turn of that EXIF `orientation`.

    A pixel is as bright as its brightest channel, and black where it is transparent. The limit is half of white. In a
    mask that never reaches the limit, such as one of labels 0, 1, 2, every value but 0 counts; with `strictly`, so it
    does in any mask, transparent or not. Raises InputError if the file is damaged.
    """
    with _opened(path) as image:
        if orientation != 1:
            image.getexif()[_ORIENTATION] = 1  # else Pillow would turn a TIFF too
        image.load()
        half, is_clear = 1 << 15 if _is_wide(image) else 128, image.has_transparency_data and not strictly
        levels = np.empty((image.height, image.width), np.uint16 if _is_wide(image) else np.uint8)
        for rows, strip in _strips(image):
            levels[rows] = _brightness(strip, is_clear)
    return _turned(levels > 0 if strictly or levels.max() < half else levels >= half, orientation)


def _brightness(image: Image.Image, is_clear: bool) -> NDArray[np.generic]:
    """Returns the brightest channel [H, W] of each pixel; 0 where a pixel is transparent, if the picture `is_clear`
    anywhere.
    """
    if _is_wide(image):
        return np.clip(np.asarray(image), 0, 65535)
    if image.mode in ("1", "L") and not is_clear:
        return np.asarray(image.convert("L"))
    channels = np.asarray(image.convert("RGBA" if is_clear else "RGB"))
    brightest = np.maximum(np.maximum(channels[..., 0], channels[..., 1]), channels[..., 2])
    return brightest * (channels[..., 3] >= 128) if is_clear else brightest


def read_small(path: Path | str, width: int, height: int, turned: bool = False) -> NDArray[np.uint8]:
    """Returns the whole picture, scaled to fit into width x height pixels, with channels as in `read_image`.

    Decodes no more than that needs, if the format allows it. Raises InputError if the file is damaged.
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
    """Reads all of a picture, at an eighth of its size if the format allows it. Raises InputError if damaged."""
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
    """Returns the image with its header read. Turns the many errors of decoders into one sentence."""
    if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):  # a pipe would never end
        raise InputError(f"{path} is not an image: it is not a regular file.")
    try:
        with Image.open(path, formats=_FORMATS) as image:
            size = os.path.getsize(path)
            if max(image.size) > SIZE_LIMIT or image.width * image.height > _PIXEL_LIMIT:
                raise InputError(
                    f"{path} claims to be {image.width} x {image.height} pixels; at most {SIZE_LIMIT} along a "
                    f"side and {_PIXEL_LIMIT >> 20} megapixels are read. It is damaged, or must be made smaller first."
                )
            if image.width * image.height > _most_pixels(image, size):
                raise InputError(
                    f"{path} claims to be {image.width} x {image.height} pixels, more than its {size:,} bytes can "
                    "hold. It is damaged or cut short; copy it again."
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
