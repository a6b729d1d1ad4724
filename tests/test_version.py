"""Digests of code: what changes numbers changes them, what does not does not."""

import pytest

from ggss import version
from ggss.version import code_digest

CODE = b'''"""A module."""

LIMIT = None


def steer(rows, alpha=1.0):
    """Steer."""
    return rows * alpha
'''


def digest(code: bytes, name: str = "method.py") -> str:
    return code_digest({name: code})


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"""Steer."""', b'"""Steer rows."""'), (b"LIMIT", b"# why\nLIMIT"), (b"rows * alpha", b"(rows  *  alpha)")],
    ids=["docstring", "comment", "layout"],
)
def test_what_cannot_change_a_number_is_no_change(old, new):
    assert digest(CODE.replace(old, new)) == digest(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"1.0", b"1.5"), (b"*", b"+"), (b"None", b"0"), (b"None", b"'None'"), (b"LIMIT = None", b"LIMIT: None")],
    ids=["number", "operator", "None", "text", "no value"],
)
def test_what_can_change_a_number_is_a_change(old, new):
    assert digest(CODE.replace(old, new)) != digest(CODE)


def test_files_that_are_no_python_count_by_their_bytes():
    assert digest(b"a: 1", "data.yaml") != digest(b"a:  1", "data.yaml")
    assert digest(b"def (", "broken.py") != digest(b"def  (", "broken.py")
    assert digest(CODE, "other.py") != digest(CODE)


def test_paths_of_ggss_are_there():
    """A path that is renamed would otherwise be left out of the digest without a word."""
    package = version.Path(version.__file__).parent
    assert [path for path in (*version.ANSWERING, *version.FITTING) if not (package / path).exists()] == []


def test_a_release_counts_by_its_number(tmp_path, monkeypatch):
    assert {len(digest) for digest in version.ggss_code().values()} == {64}
    monkeypatch.setattr(version, "__version__", "1.2.0")
    assert {len(digest) for digest in version.ggss_code().values()} == {64}, "a source tree may have been edited"
    monkeypatch.setattr(version, "__file__", str(tmp_path / "site-packages" / "ggss" / "version.py"))
    assert set(version.ggss_code().values()) == {"1.2.0"}
