"""The one decoder: what can be shown faithfully is, and said where it changes; everything else is refused by name."""

import logging
import os
import socket
import struct
import threading
import time
import warnings
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from ggss import InputError
from ggss.data import pictures
from ggss.data.pictures import BytesPicture, FilePicture, shrunk, size_of

RAMP = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    monkeypatch.setattr(pictures, "_logged", set())


def encoded(image, form="PNG", **options):
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def pixels(data):
    image = pictures.decoded(data, "image 'x'")
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def noise(mode, size=(8, 6), seed=0):
    bands = len(Image.new(mode, (1, 1)).getbands())
    drawn = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], bands), dtype=np.uint8)
    return Image.merge(mode, [Image.fromarray(drawn[..., band]) for band in range(bands)])


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled(form):
    shown = pixels(encoded(Image.fromarray(RAMP), form))
    assert np.abs(shown - RAMP[..., None] / 257).max() <= 0.5
    assert (shown.min(), shown.max()) == (0, 255)
    assert len(np.unique(shown)) == 64


def grey_tiff(samples, bits, zero_is_white, turned=1):
    """A TIFF of one row, written by hand: Pillow writes neither twelve bits nor a white zero."""
    packed = sum(value << bits * place for place, value in enumerate(reversed(samples)))
    data = packed.to_bytes(-(-len(samples) * bits // 8), "big")
    if bits == 16:
        data = struct.pack(f"<{len(samples)}H", *samples)
    tags = {256: len(samples), 257: 1, 258: bits, 259: 1, 262: 0 if zero_is_white else 1}
    tags |= {273: 8, 274: turned, 277: 1, 278: 1, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHI", b"II", 42, 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize("turned", [1, 3])
def test_twelve_bits_and_a_white_zero_are_read_as_their_tags_say(turned):
    """Pillow gives the stored numbers: taken as 16 bits, 12 are nearly black, and a white zero is a negative."""
    order = slice(None, None, -1 if turned == 3 else 1)
    for bits, zero_is_white in ((12, False), (16, False), (16, True)):
        most = 2**bits - 1
        samples = [0, most // 4, most // 2, most]
        shown = pixels(grey_tiff(samples, bits, zero_is_white, turned))[0, order, 0]
        light = 255 * np.array(samples) / most
        assert np.abs(shown - (255 - light if zero_is_white else light)).max() <= 0.5


def test_only_known_formats_are_opened(monkeypatch):
    """PostScript is a program: Pillow would give it to Ghostscript."""
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    assert Image.open(BytesIO(program)).format == "EPS"
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("a program was run"))
    for data in (program, encoded(noise("RGB"), "PCX"), b"SIMPLE  = T"):
        for use in (pictures.decoded, pictures.header_size):
            with pytest.raises(InputError, match=r"image 'x' has no known image format \(PNG, JPEG, .*\): save it"):
                use(data, "image 'x'")
    for form in ("PNG", "JPEG", "JPEG2000", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        assert pixels(encoded(noise("RGB"), form)).shape == (6, 8, 3)


def test_a_transparent_value_of_sixteen_bits_is_white():
    shown = pixels(encoded(Image.fromarray(RAMP), transparency=int(RAMP[3, 3])))
    assert (shown[3, 3] == 255).all()
    assert shown[3, 4].max() < 255


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_laid_over_white(mode):
    image = noise(mode)
    values = np.asarray(image).astype(float)
    alpha = values[..., -1:] / 255
    expected = np.broadcast_to(values[..., :-1] * alpha + 255 * (1 - alpha), (6, 8, 3))
    assert np.abs(pixels(encoded(image)) - expected).max() <= 1


def test_a_transparent_pixel_is_white_whatever_colour_it_hides():
    red = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    plain = Image.new("RGB", (4, 4), (255, 0, 0))
    for data in (
        encoded(red),
        encoded(red, "WEBP", lossless=True),
        encoded(palette, transparency=1),
        encoded(palette, "GIF", transparency=1),
        encoded(plain, transparency=(255, 0, 0)),
        encoded(Image.new("L", (4, 4), 7), transparency=7),
        encoded(Image.new("1", (4, 4), 0), transparency=0),
    ):
        assert (pixels(data) == 255).all()


def test_colours_are_kept():
    picture = noise("RGB")
    assert (pixels(encoded(picture)) == np.asarray(picture)).all()
    few = picture.quantize(8)
    assert (pixels(encoded(few)) == np.asarray(few.convert("RGB"))).all()
    grey = noise("L")
    assert (pixels(encoded(grey)) == np.asarray(grey)[..., None]).all()
    assert set(np.unique(pixels(encoded(grey.convert("1"))))) == {0, 255}
    for form in ("TIFF", "JPEG"):
        ink = Image.new("CMYK", (4, 4), (255, 0, 0, 0))  # cyan
        assert np.abs(pixels(encoded(ink, form)) - (0, 255, 255)).max() <= 3


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (encoded(Image.fromarray(RAMP.astype(np.float32)), "TIFF"), "mode 'F', floating point"),
        (encoded(Image.fromarray(RAMP.astype(np.int32)), "TIFF"), "mode 'I', 32-bit integers"),
        (encoded(Image.new("LAB", (4, 4)), "TIFF"), "mode 'LAB'"),
    ],
)
def test_what_rgb_cannot_show_is_refused_by_name(data, seen):
    for use in (pictures.decoded, pictures.header_size):
        with pytest.raises(InputError, match=f"image 'x' is of {seen}"):
            use(data, "image 'x'")


@pytest.mark.parametrize("form", ["GIF", "WEBP", "TIFF", "PNG"])
def test_several_frames_are_refused(form):
    several = encoded(noise("RGB"), form, save_all=True, append_images=[noise("RGB", seed=1), noise("RGB", seed=2)])
    for use in (pictures.decoded, pictures.header_size):
        with pytest.raises(InputError, match=f"has 3 frames or pages \\({form}\\): save the one that is meant"):
            use(several, "image 'x'")


def test_the_photograph_of_several_pictures_is_used_and_that_is_said(caplog):
    first = noise("RGB", (16, 16))
    data = encoded(first, "MPO", save_all=True, append_images=[Image.new("RGB", (16, 16))], quality=95)
    assert np.abs(pixels(data) - np.asarray(Image.open(BytesIO(encoded(first, "JPEG", quality=95))))).max() == 0
    assert "holds several pictures (MPO), and the first is used" in caplog.text


def test_turned_pictures_are_turned_and_that_is_said_once(caplog):
    picture, exif = noise("RGB"), Image.Exif()
    exif[0x0112] = 6
    for number in range(3):
        upright = pictures.decoded(encoded(picture, exif=exif), f"image '{number}'")
        assert upright.size == (6, 8)
        assert (np.asarray(upright) == np.rot90(np.asarray(picture), -1)).all()
    assert [record.getMessage() for record in caplog.records] == [
        "image '0' is turned as its EXIF orientation says; the same holds for every picture like it"
    ]


def test_transparency_is_said_once_and_only_where_there_is_some(caplog):
    opaque = noise("RGB")
    opaque.putalpha(255)
    pixels(encoded(opaque))
    pixels(encoded(noise("RGB")))
    assert not caplog.records
    for number in range(3):
        pictures.decoded(encoded(noise("RGBA")), f"image '{number}'")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("image '0' has transparent parts, which are shown over white")


def test_a_decompression_bomb_is_a_sentence(monkeypatch):
    data = encoded(Image.new("L", (64, 64)))
    for most in (4095, 2000):  # Pillow warns of the first, and refuses the second
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(InputError, match=f"image 'x' has more than {most:,} pixels"):
            pictures.decoded(data, "image 'x'")


# metadata: bounded before Pillow reads it


def png_with(*chunks, before=True):
    """A small PNG with chunks of this kind and content, before its pixels or after them."""
    plain = encoded(noise("RGB"))
    place = plain.index(b"IDAT" if before else b"IEND") - 4
    written = b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return plain[:place] + written + plain[place:]


def exif_block(tags, size=4, value=1, order="<"):
    """EXIF with so many tags of `size` bytes each, which lie where the file ends."""
    entries = [struct.pack(f"{order}HHII", (1000 + number) % 65_536, 1, size, value) for number in range(tags)]
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8)
    return head + struct.pack(f"{order}H", tags) + b"".join(entries) + bytes(4)


def webp_with(kind, content):
    """A WebP in the extended format with one more chunk."""
    plain = encoded(noise("RGB"), "WEBP", exif=b"Exif\0\0" + exif_block(1))
    body = plain[8:] + kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg_with(*segments):
    plain = encoded(noise("RGB"), "JPEG")
    written = b"".join(kind + struct.pack(">H", len(content) + 2) + content for kind, content in segments)
    return plain[:2] + written + plain[2:]


MANY_TAGS = pictures.TAGS + 1
LADEN = {
    "PNG, text chunks": (lambda: png_with(*[(b"tEXt", b"a\0b")] * 300_000), "more than 1,000 parts"),
    "PNG, text chunks after the pixels": (
        lambda: png_with(*[(b"tEXt", b"a\0b")] * 1_000, before=False),
        "more than 1,000 parts",
    ),
    "PNG, empty pixels": (lambda: png_with(*[(b"IDAT", b"")] * 2_000), r"more than 1,0\d\d parts"),
    "PNG, large text": (
        lambda: png_with(*[(b"tEXt", b"a\0" + b"x" * 2**20)] * 9),
        "more than 8,388,608 bytes of metadata",
    ),
    "PNG, tags": (lambda: png_with((b"eXIf", exif_block(65_535, 2**20))), "more than 1,000 tags"),
    "PNG, tags, the other order": (lambda: png_with((b"eXIf", exif_block(MANY_TAGS, order=">"))), "1,000 tags"),
    "JPEG, comments": (lambda: jpeg_with(*[(b"\xff\xfe", b"x")] * 2_000), "more than 1,000 parts"),
    "JPEG, markers without a content": (lambda: b"\xff\xd8" * 2_000 + jpeg_with()[2:], "more than 1,000 parts"),
    "JPEG, comments after a stray marker": (
        lambda: b"\xff\xd8\xff\xd0" + jpeg_with(*[(b"\xff\xfe", b"x")] * 2_000)[2:],
        "more than 1,000 parts",
    ),
    "JPEG, tags": (
        lambda: jpeg_with((b"\xff\xe1", b"Exif\0\0" + exif_block(MANY_TAGS, 2**20))),
        "more than 1,000 tags",
    ),
    "JPEG, scans": (lambda: jpeg_with() + b"\xff\xda" * pictures.SCANS, "more than 100 scans"),
    "WebP, tags": (
        lambda: encoded(noise("RGB"), "WEBP", exif=b"Exif\0\0" + exif_block(MANY_TAGS)),
        "more than 1,000 tags",
    ),
    "WebP, chunks": (lambda: webp_with(b"abcd", b"") + b"abcd\0\0\0\0" * 1_000, "more than 1,000 parts"),
    "TIFF, tags": (lambda: exif_block(MANY_TAGS), "more than 1,000 tags"),
    "TIFF, directories in a circle": (
        lambda: struct.pack("<2sHIHHHIII", b"II", 42, 8, 1, 256, 4, 1, 1, 8),
        "more than 1,000 tags",
    ),
    "BigTIFF, tags": (
        lambda: struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, MANY_TAGS),
        "more than 1,000 tags",
    ),
}


@pytest.mark.parametrize("name", LADEN)
def test_more_metadata_than_a_camera_writes_is_refused_before_it_is_read(name, monkeypatch):
    make, seen = LADEN[name]
    data = make()
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow has read it"))
    for use in (pictures.decoded, pictures.header_size):
        with pytest.raises(InputError, match=f"image 'x' has .*{seen}.*: save it without metadata"):
            use(data, "image 'x'")


def test_the_metadata_of_ordinary_pictures_is_read():
    exif = Image.Exif()
    exif[0x0112] = 6
    profile = os.urandom(200_000)
    for form in ("PNG", "JPEG", "WEBP", "TIFF"):
        data = encoded(noise("RGB"), form, exif=exif, icc_profile=profile)
        assert pictures.header_size(data, "x") == (6, 8)
        assert pictures.decoded(data, "x").size == (6, 8)
    assert pixels(png_with(*[(b"tEXt", b"a\0b")] * 900)).shape == (6, 8, 3)
    assert pixels(encoded(noise("RGB", (2_000, 1_000)), "PNG")).shape == (1_000, 2_000, 3)
    assert pixels(encoded(noise("RGB", (640, 480)), "JPEG", progressive=True)).shape == (480, 640, 3)


def test_warnings_of_pillow_are_counted_and_not_shown(recwarn, capfd):
    before = pictures.pillow_warnings.count
    data = png_with((b"eXIf", exif_block(900, 2**20)))
    assert pixels(data).shape == (6, 8, 3)
    assert pictures.pillow_warnings.count >= before + 900
    assert (recwarn.list, capfd.readouterr().err) == ([], "")
    warnings.warn("of somebody else", stacklevel=1)
    assert len(recwarn.list) == 1


def test_warnings_of_others_are_shown_while_a_picture_is_decoded(recwarn):
    with pictures.pillow_warnings:
        warnings.warn("of somebody else", stacklevel=1)
    assert [str(one.message) for one in recwarn.list] == ["of somebody else"]


def test_filters_are_as_before_once_all_threads_are_out():
    """The first that comes leaves before the second."""
    before, count = list(warnings.filters), pictures.pillow_warnings.count
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with pictures.pillow_warnings:
            first_in.set()
            second_in.wait(60)
        first_out.set()

    def second() -> None:
        first_in.wait(60)
        with pictures.pillow_warnings:
            second_in.set()
            first_out.wait(60)
            warnings.warn_explicit("of Pillow", UserWarning, f"{os.sep}PIL{os.sep}x.py", 1, module="PIL.x")

    threads = [threading.Thread(target=one) for one in (first, second)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert pictures.pillow_warnings.count == count + 1
    assert warnings.filters == before


def test_a_picture_has_so_much_processor_time(monkeypatch):
    data = png_with(*[(b"tEXt", b"a\0b")] * 100, before=False)  # which takes some hundred reads
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "thread_time", lambda: next(clock) / 5)  # every look at the clock takes 0.2 s
    for use in (pictures.decoded, pictures.header_size):
        with pytest.raises(InputError, match=r"image 'x' takes longer than 5\S* s to decode: save it"):
            use(data, "image 'x'")
    monkeypatch.setattr(pictures, "SECONDS_PER_MEGAPIXEL", 1e9)  # a larger picture has more
    assert pictures.decoded(data, "image 'x'").size == (8, 6)


def test_an_image_in_memory_follows_the_same_rules():
    image = noise("RGB")
    assert pictures.in_rgb(image, "the image") is image
    assert np.asarray(pictures.in_rgb(Image.fromarray(RAMP), "the image")).max() == 255
    assert (np.asarray(pictures.in_rgb(Image.new("RGBA", (2, 2)), "the image")) == 255).all()
    with pytest.raises(InputError, match="the image is of mode 'F'"):
        pictures.in_rgb(Image.fromarray(RAMP.astype(np.float32)), "the image")


def test_a_digest_hangs_on_the_bytes_and_on_the_decoder(tmp_path, monkeypatch):
    data = encoded(noise("RGB"))
    (tmp_path / "a.png").write_bytes(data)
    own = FilePicture(tmp_path / "a.png").digest
    assert own == BytesPicture.of(data).digest != BytesPicture.of(data + b" ").digest
    monkeypatch.setattr("ggss.data.pictures.DECODER", pictures.DECODER + 1)
    assert BytesPicture.of(data).digest != own
    assert FilePicture(tmp_path / "a.png").digest != own


def test_only_ordinary_files_are_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.png")
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket.png")
    listening.close()
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    for name, seen in {
        "pipe.png": r"is a named pipe \(FIFO\)",
        "socket.png": "is a socket",
        "zero.png": "is a device",
        "folder.png": "is a folder",
        "loop.png": "cannot be read",
        "none.png": "does not exist: correct its path",
    }.items():
        picture = FilePicture(tmp_path / name)
        for use in (picture.image, picture.size, lambda: picture.digest):  # noqa: B023
            with pytest.raises(InputError, match=f"image '.*{name}' {seen}"):
                use()


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(InputError, match="is larger than 1 GiB"):
        FilePicture(tmp_path / "large.png").image()


def test_a_cap_shrinks_the_longer_side_as_the_authors_code_does(tmp_path):
    large = noise("RGB", (700, 333))
    large.save(tmp_path / "large.png")
    whole = FilePicture(tmp_path / "large.png", {"race": "a"}, (("identity", "1"),))
    small = shrunk(whole, 512)
    assert size_of(small) == small.image().size == (512, 243)  # 243.6 is rounded down
    assert np.array_equal(small.image(), large.resize((512, 243), Image.Resampling.LANCZOS))
    assert (small.attributes, small.context, small.name) == (whole.attributes, whole.context, whole.name)


def test_the_digest_tells_a_shrunk_picture_and_only_that():
    whole = BytesPicture.of(encoded(noise("RGB", (40, 30))))
    assert shrunk(whole, 40).digest == whole.digest
    assert np.array_equal(shrunk(whole, 40).image(), whole.image())
    assert shrunk(whole, None) is whole
    digests = {whole.digest, shrunk(whole, 39).digest, shrunk(whole, 20).digest}
    assert len(digests) == 3
    with pytest.raises(InputError, match="max_side must be from 1"):
        shrunk(whole, 0)
