"""Tests reading and writing images: every pixel format becomes 8 bits, damage becomes a sentence."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from splatscope.assets.photographs import images
from splatscope.assets.photographs.images import (
    check_decodes,
    image_size,
    read_header,
    read_image,
    read_mask,
    read_small,
    write_png,
)
from splatscope.kernels.errors import InputError
from tests.support.places import DATA

ODD = DATA / "odd"
FAULTS = DATA / "faults"
RAMP = np.arange(4 * 6 * 4, dtype=np.uint8).reshape(4, 6, 4) * 2


@pytest.mark.parametrize("channels", [3, 4])
def test_png_keeps_pixels_and_text(tmp_path: Path, channels: int) -> None:
    write_png(tmp_path / "a.png", RAMP[..., :channels], text={"camera": "ünï 日本"})
    assert (read_image(tmp_path / "a.png") == RAMP[..., :channels]).all()
    assert image_size(tmp_path / "a.png") == (6, 4)
    assert read_header(tmp_path / "a.png").has_alpha == (channels == 4)
    with Image.open(tmp_path / "a.png") as image:
        assert image.info["camera"] == "ünï 日本"


@pytest.mark.parametrize(
    ("mode", "suffix", "channels"),
    [
        ("L", "png", 3),
        ("LA", "png", 4),
        ("1", "png", 3),
        ("P", "png", 3),
        ("RGB", "jpg", 3),
        ("L", "jpg", 3),
        ("CMYK", "jpg", 3),
        ("RGBA", "webp", 4),
        ("RGB", "tif", 3),
        ("RGBA", "jp2", 4),
        ("L", "j2k", 3),
    ],
)
def test_every_pixel_format_becomes_rgb_or_rgba(tmp_path: Path, mode: str, suffix: str, channels: int) -> None:
    flat = Image.new("RGBA", (20, 10), (200, 200, 200, 128))
    flat.convert("RGB" if mode in ("1", "P") else "RGBA").convert(mode, dither=Image.Dither.NONE).save(
        tmp_path / f"a.{suffix}"
    )
    pixels = read_image(tmp_path / f"a.{suffix}")
    assert (pixels.shape, pixels.dtype) == ((10, 20, channels), np.uint8)
    assert abs(pixels[..., :3].astype(int) - 200).max() <= (55 if mode == "1" else 6)
    assert channels == 3 or abs(int(pixels[0, 0, 3]) - 128) <= 1


def test_a_transparent_palette_gives_alpha(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.save(tmp_path / "a.png", transparency=1)
    assert read_image(tmp_path / "a.png")[0, 0].tolist() == [40, 50, 60, 0]


def test_sixteen_bits_are_rounded_to_eight(tmp_path: Path) -> None:
    grey = np.array([[0, 128, 129, 257 * 100, 65535]], np.uint16)
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png")[0, :, 0].tolist() == [0, 0, 1, 100, 255]


@pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_of_every_png_kind_become_eight(tmp_path: Path, kind: int, channels: int) -> None:
    values = np.random.default_rng(kind).integers(0, 65536, (5, 7, channels), np.uint16)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", 7, 5, 16, kind, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    pixels = read_image(tmp_path / "a.png")
    grey, alpha = channels < 3, channels in (2, 4)
    assert pixels.shape == (5, 7, 4 if alpha else 3)
    colors = values[..., :1].repeat(3, axis=2) if grey else values[..., :3]
    assert np.abs(pixels[..., :3] - colors / 257.0).max() <= 1
    assert not alpha or np.abs(pixels[..., 3] - values[..., -1] / 257.0).max() <= 1


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_stored_pixels_are_read_unless_asked_to_turn(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn me by 90 degrees"
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (20, 10)).save(path, exif=exif)
    header = read_header(path)
    assert image_size(path) == (header.width, header.height) == (20, 10)
    assert header.lies_sideways
    assert read_image(path).shape == (10, 20, 3)
    assert read_image(path, turned=True).shape == (20, 10, 3)
    Image.new("RGB", (20, 10)).save(path)
    assert not read_header(path).lies_sideways
    assert read_image(path, turned=True).shape == (10, 20, 3)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_half_a_photograph_has_a_header_but_does_not_decode(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)).save(path)
    check_decodes(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert read_header(path).width == 80
    for read in (check_decodes, read_image):
        with pytest.raises(InputError, match="damaged or cut short"):
            read(path)


@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")
@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tif", "bmp", "jp2"])
def test_damaged_images_are_refused_in_words(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, {"jpg": "JPEG", "tif": "TIFF", "jp2": "JPEG2000"}.get(suffix, suffix))
    content = stream.getvalue()
    path = tmp_path / f"a.{suffix}"
    for end in range(0, len(content) * 3 // 4, 41):
        path.write_bytes(content[:end])
        with pytest.raises(InputError, match=r"a\."):
            read_image(path)
    random = np.random.default_rng(1)
    for _ in range(150):
        damaged = bytearray(content)
        damaged[random.integers(min(len(content), 120))] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        try:
            assert read_image(path).shape[2] in (3, 4)  # damage that decodes is a picture all the same
        except InputError:
            continue  # in words; anything else would fail here


def test_no_image_and_floating_point_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "a.tif")
    (tmp_path / "a.png").write_text("hello")
    for name, said in (("a.tif", "floating-point"), ("a.png", "not an image"), ("b.png", "does not exist")):
        with pytest.raises(InputError, match=said):
            read_image(tmp_path / name)
    for read in (read_header, check_decodes):  # told when a capture opens, not only by who wants the pixels
        with pytest.raises(InputError, match="Convert it to PNG first"):
            read(tmp_path / "a.tif")
    with pytest.raises(InputError, match="cannot be read"):
        read_image(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        write_png(tmp_path / "a.png" / "b.png", RAMP)


def test_real_images_of_every_format_agree_with_their_neighbours() -> None:
    folder = ODD / "scene-derived/mixed-image-formats/images"
    if not folder.exists():
        pytest.skip("the shared test data is not here")
    for path in sorted(folder.iterdir()):
        pixels = read_image(path)
        assert pixels.shape[1::-1] == image_size(path)
        assert pixels.shape[2] == (4 if read_header(path).has_alpha else 3)
        assert 20 < pixels[..., :3].mean() < 235, path  # the desk is neither black nor white


def jpeg(**options: object) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (64, 64), 90).save(stream, "JPEG", **options)
    return stream.getvalue()


def claiming(content: bytes, width: int, height: int) -> bytes:
    """Returns a JPEG or PNG whose header says another size."""
    if content.startswith(b"\x89PNG"):
        header = content[12:16] + struct.pack(">II", width, height) + content[24:29]
        return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]
    frame = max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2")) + 5
    return content[:frame] + struct.pack(">HH", height, width) + content[frame + 4 :]


@pytest.mark.parametrize("kind", ["jpeg", "progressive", "png", "cut"])
def test_a_picture_that_claims_more_pixels_than_its_bytes_hold_is_refused_unread(tmp_path: Path, kind: str) -> None:
    content = jpeg(progressive=kind == "progressive")
    if kind == "png":
        write_png(tmp_path / "b.png", np.zeros((64, 64, 3), np.uint8))
        content = (tmp_path / "b.png").read_bytes()
    content = claiming(content, 16384, 16384)
    path = tmp_path / "a.jpg"
    path.write_bytes(content[:-20] + b"\xff\xd9" if kind == "cut" else content)
    for read in (read_header, image_size, read_image, read_mask, check_decodes, lambda p: read_small(p, 80, 60)):
        with pytest.raises(InputError) as refused:
            read(path)
        said = f"claims to be 16384 x 16384 pixels, more than its {path.stat().st_size:,} bytes can hold"
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("mode", "form", "options"),
    [
        ("L", "JPEG", {"optimize": True}),
        ("L", "JPEG", {"progressive": True}),
        ("RGB", "JPEG", {"optimize": True, "quality": 1}),
        ("RGB", "PNG", {"compress_level": 9}),
        ("RGBA", "PNG", {"compress_level": 9}),
        ("L", "PNG", {"compress_level": 9}),
        ("1", "PNG", {"compress_level": 9}),
        ("P", "PNG", {"compress_level": 9}),
        ("I;16", "PNG", {"compress_level": 9}),
        ("RGB", "WEBP", {"lossless": True}),
        ("RGB", "WEBP", {"quality": 1}),
        ("RGB", "JPEG2000", {}),
        ("1", "TIFF", {"compression": "group4"}),
        ("1", "TIFF", {"compression": "tiff_lzw"}),
        ("RGB", "TIFF", {"compression": "tiff_lzw"}),
        ("L", "TIFF", {"compression": "packbits"}),
        ("RGB", "TIFF", {"compression": "tiff_adobe_deflate"}),
        ("RGB", "TIFF", {"compression": "jpeg"}),
        ("1", "BMP", {}),
    ],
)
def test_a_flat_picture_is_read_however_small_its_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, form: str, options: dict[str, object]
) -> None:
    monkeypatch.setattr(images, "_FREE_PIXELS", 0)  # or a test would have to write larger pictures
    Image.new(mode, (1024, 1024)).save(tmp_path / "a.img", form, **options)
    header = read_header(tmp_path / "a.img")
    assert (header.width, header.height) == (1024, 1024)


@pytest.mark.parametrize("tag", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_turned_picture_and_mask_are_those_that_pillow_turns(tmp_path: Path, tag: int, suffix: str) -> None:
    exif, plain = Image.Exif(), Image.fromarray(RAMP[..., :3])
    exif[0x0112] = tag
    path = tmp_path / f"a.{suffix}"
    plain.save(path, exif=exif)
    tagged = Image.open(path)
    expected = np.asarray(ImageOps.exif_transpose(tagged))
    assert (read_image(path, turned=True) == expected).all()
    plain.save(path)
    assert (read_mask(path, tag) == (expected.max(axis=2) >= 128)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_strips_make_the_same_picture_as_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (37, 29, 4), np.uint8)
    picture = Image.fromarray(noise[..., 0].astype(np.uint16) * 256) if mode == "I;16" else Image.fromarray(noise)
    (picture if mode == "I;16" else picture.convert("RGB" if mode == "P" else "RGBA").convert(mode)).save(
        path := tmp_path / f"a.{'tif' if mode == 'CMYK' else 'png'}"
    )
    whole = read_image(path), read_mask(path)
    monkeypatch.setattr(images, "_STRIP_PIXELS", 100)  # three rows
    assert (read_image(path) == whole[0]).all()
    assert (read_mask(path) == whole[1]).all()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16"])
def test_reading_makes_no_copies_of_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(images, "_STRIP_PIXELS", 1 << 14)
    Image.new(mode, (800, 600)).save(tmp_path / "a.png")
    for read in (read_image, read_mask):
        read(tmp_path / "a.png")  # imports
        tracemalloc.start()
        size = read(tmp_path / "a.png").nbytes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (1.3 if read is read_image else 3.5) * size + (1 << 19)  # of a mask its brightness too


def test_formats_of_no_camera_are_not_tried(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(InputError, match="not an image"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_libraries_print_nothing_about_damage(tmp_path: Path, capfd: pytest.CaptureFixture, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(noise).save(path, **({"compression": "tiff_adobe_deflate"} if suffix == "tif" else {}))
    content = path.read_bytes()
    for place in range(300, len(content), 1500):
        path.write_bytes(content[:place] + bytes(40) + content[place + 40 :])
        with contextlib.suppress(InputError):
            read_image(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not FAULTS.exists(), reason="the shared test data is not here")
def test_the_picture_of_a_kilobyte_is_refused() -> None:
    with pytest.raises(InputError, match=r"claims to be 16384 x 16384 pixels, more than its 1,220 bytes can hold"):
        read_mask(FAULTS / "jpeg-claims-more" / "a.jpg")
