"""Images in and out: every pixel format becomes 8 bits, damage becomes a sentence."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splatscope.assets.images import check_decodes, image_size, read_header, read_image, write_png
from splatscope.kernels.errors import InputError

ODD = Path(__file__).parents[2] / "shared" / "data" / "odd"
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
