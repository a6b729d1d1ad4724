"""Files that the user names: only ordinary ones are read, within bounds; text is UTF-8, JSON is strict."""

import os

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
