"""Files that the user names: only ordinary ones are read, within bounds; text is UTF-8, JSON is strict."""

import io
import os
import stat
import zipfile

import pytest

from ggss import InputError, files


def test_a_file_is_read_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"\0" * 3_000_000)
    assert files.read_bounded(tmp_path / "a", "the file") == b"\0" * 3_000_000
    (tmp_path / "a").write_bytes(b"")
    assert files.read_bounded(tmp_path / "a", "the file") == b""
    assert files.read_bounded("/proc/self/status", "the file").startswith(b"Name:")  # its size is said to be 0


def test_bounds(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_bounded(tmp_path / "a", "the file", largest=5) == b"12345"
    with pytest.raises(InputError, match=r"the file '.*a' is larger than"):
        files.read_bounded(tmp_path / "a", "the file", largest=4)
    monkeypatch.setattr(files, "GROWTH", 10)
    with pytest.raises(InputError, match="has more bytes than it says"):
        files.read_bounded("/proc/self/status", "the file")


def test_what_is_no_file_is_named_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, seen in ((tmp_path / "pipe", "named pipe"), ("/dev/zero", "a device"), (tmp_path, "a folder")):
        with pytest.raises(InputError, match=f"the plan '.*' is .*{seen}.*: give an ordinary file"):
            files.read_utf8(path, "the plan")
    with pytest.raises(InputError, match="does not exist"):
        files.read_utf8(tmp_path / "none", "the plan")
    with pytest.raises(InputError, match=r"cannot be read: .*null"):
        files.read_utf8("a\0b", "the plan")


@pytest.mark.parametrize(
    ("data", "text"), [(b"\xef\xbb\xbfa\r\nb\rc\n", "a\nb\nc\n"), ("é\u2028\x85".encode(), "é\u2028\x85")]
)
def test_text(tmp_path, data, text):
    (tmp_path / "a").write_bytes(data)
    assert files.read_utf8(tmp_path / "a", "the plan") == text


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8"):
        files.read_utf8(tmp_path / "a", "the plan")


def test_json(tmp_path):
    (tmp_path / "a").write_text('{"a": [1, {"b": null}]}')
    assert files.read_json(tmp_path / "a", "the file") == {"a": [1, {"b": None}]}
    (tmp_path / "a").write_text("[" * 31 + "1" + "]" * 31)
    assert files.read_json(tmp_path / "a", "the file")
    for text, seen in (
        ("[" * 32 + "1" + "]" * 32, "nested too deeply"),
        ("[" * 10**6, "nested too deeply"),
        ("{", "is not JSON"),
        ("[NaN]", "NaN is not a number of JSON"),
        ("[-Infinity]", "-Infinity is not a number of JSON"),
        ("9" * 5000, "is not JSON"),
    ):
        (tmp_path / "a").write_text(text)
        with pytest.raises(InputError, match=seen):
            files.read_json(tmp_path / "a", "the file")


def entry(name, mode=stat.S_IFREG | 0o644, **more):
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    for field, value in more.items():
        setattr(made, field, value)
    return made


def archive(path, *entries):
    with zipfile.ZipFile(path, "w") as made:
        for each in entries:
            made.writestr(each, b"text")
    return path


def patched(path, old, new):
    """The zip with other bytes, in its local headers and in its directory."""
    path.write_bytes(path.read_bytes().replace(old, new))
    return path


def opened(path):
    with files.open_zip(path, "the zip") as found:
        return {name: found.read(name) for name in found.namelist()}


def test_a_zip_is_read(tmp_path):
    assert opened(archive(tmp_path / "a.zip", entry("a.txt"), entry("b/c-1_2.txt"))) == {
        "a.txt": b"text",
        "b/c-1_2.txt": b"text",
    }


@pytest.mark.parametrize(
    "name",
    ["../a", "/a", "a/../b", "a/./b", "a//b", "./a", "a\\b", "C:a", "a/", ".a", "a/.b", "~a", "ä", "a b", "a" * 300],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="is not a plain name of a file inside it"):
        opened(archive(tmp_path / "a.zip", entry(name)))


def test_a_name_that_ends_early_is_refused(tmp_path):
    """Python reads a name up to a zero byte."""
    path = patched(archive(tmp_path / "a.zip", entry("good.txt+evil")), b"good.txt+evil", b"good.txt\x00evil")
    with pytest.raises(InputError, match="is not a plain name"):
        opened(path)


@pytest.mark.parametrize("other", ["a.txt", "A.TXT"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path, other):
    with pytest.raises(InputError, match="is there twice"):
        opened(archive(tmp_path / "a.zip", entry("a.txt"), entry(other)))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR])
def test_a_link_or_a_special_file_is_refused(tmp_path, kind):
    with pytest.raises(InputError, match="is a link or another special file"):
        opened(archive(tmp_path / "a.zip", entry("a.txt", kind | 0o777)))


def test_what_is_encrypted_or_compressed_unusually_is_refused(tmp_path):
    with pytest.raises(InputError, match="is encrypted, or compressed in an unusual way"):
        opened(archive(tmp_path / "a.zip", entry("a.txt", compress_type=zipfile.ZIP_BZIP2)))
    path = archive(tmp_path / "b.zip", entry("a.txt"))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="is encrypted"):
        opened(path)


def test_sizes_and_numbers_have_limits(tmp_path, monkeypatch):
    path = archive(tmp_path / "a.zip", *(entry(f"{n}.txt") for n in range(5)))
    for limit, value, message in (
        ("LARGEST_ZIPPED", 3, "'0.txt' would have 4 bytes"),
        ("LARGEST_SUM", 19, "its files would have 20 bytes"),
        ("MOST_ZIPPED", 4, "at most 4 files"),
        ("_DIRECTORY", 50, "at most 20,000 files"),
        ("LARGEST_ZIP", 100, "at most 20,000 files and 0 MiB"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(files, limit, value)
            with pytest.raises(InputError, match=message):
                opened(path)
    assert len(opened(path)) == 5


def test_the_limits_hold_for_what_is_written(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        assert files.add_to_zip(made, "a.txt", [b"te", b"xt"])[0] == 4
        files.check_zip(made, "the zip")
        monkeypatch.setattr(files, "LARGEST_ZIPPED", 3)
        with pytest.raises(InputError, match=r"b\.txt has more than"):
            files.add_to_zip(made, "b.txt", iter([b"te", b"xt"]))
        monkeypatch.setattr(files, "MOST_ZIPPED", 1)
        with pytest.raises(InputError, match="it has 2 files"):
            files.check_zip(made, "the zip")


def test_a_bomb_is_refused_by_what_it_says_and_read_no_further(tmp_path, monkeypatch):
    """One that says that it is small is read up to what it says."""
    monkeypatch.setattr(files, "LARGEST_ZIPPED", 1000)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(entry("a.txt", compress_type=zipfile.ZIP_DEFLATED), b"0" * 10**6)
    with pytest.raises(InputError, match="would have 1,000,000 bytes"):
        opened(path)
    with pytest.raises(InputError, match="damaged or cut short"):
        opened(patched(path, (10**6).to_bytes(4, "little"), (999).to_bytes(4, "little")))


def test_a_zip64_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.zip"
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    archive(path, *(entry(f"{n}.txt") for n in range(3)))
    assert b"PK\x06\x07" in path.read_bytes()
    with pytest.raises(InputError, match="is refused: at most"):
        opened(path)


def test_what_is_no_zip_or_a_part_of_one_gets_a_sentence(tmp_path):
    path = archive(tmp_path / "a.zip", entry("a.txt"), entry("b.txt"))
    data = path.read_bytes()
    for part in (
        b"",
        b"PK",
        b"no zip at all, but long enough for its end",
        data + b"x",
        *map(data.__getitem__, CUTS),
    ):
        path.write_bytes(part)
        with pytest.raises(InputError, match="is no zip, or it was cut short: get it again"):
            opened(path)
    path.write_bytes(data[:-22].replace(b"text", b"tent", 1) + data[-22:])
    with pytest.raises(InputError, match="damaged or cut short"):
        opened(path)
    with pytest.raises(InputError, match=r"the zip .* is a folder"):
        opened(tmp_path)
    assert opened(archive(path, entry("a.txt"))) == {"a.txt": b"text"}


CUTS = [slice(0, -n) for n in (1, 5, 22, 60, 100)]


def test_equal_files_make_equal_zips():
    made = []
    for _ in range(2):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as zipped:
            files.add_to_zip(zipped, "a.txt", [b"text"])
        made.append(buffer.getvalue())
    assert made[0] == made[1]
