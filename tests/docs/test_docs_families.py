"""docs/families.md: written by its tool, complete, and without an entry that is silently wrong."""

import json
from pathlib import Path

import pytest
import transformers

from experiments.tools import families, tiny_vlms

SEEN = json.loads(families.SEEN.read_text(encoding="utf-8"))


def test_the_page_is_what_was_seen():
    message = "docs/families.md is old: make families"
    assert Path(families.PAGE).read_text(encoding="utf-8") == families.page(SEEN), message


def test_every_class_of_the_installed_transformers_is_on_it():
    if transformers.__version__ not in SEEN:
        pytest.skip(f"the page was not made with transformers {transformers.__version__}: make families")
    assert set(SEEN[transformers.__version__]) == set(tiny_vlms.CLASSES)


@pytest.mark.parametrize("version", SEEN)
def test_no_entry_is_silently_wrong(version):
    for kind, entry in SEEN[version].items():
        assert entry["status"] in ("proved", "refused", "not tried"), (kind, entry)
        if entry["status"] == "proved":
            assert entry["rows"] in ("batch", "one at a time")
            assert (entry["passed"], entry["failed"]) == (5, [])
            assert entry["leak"] is not None
        else:
            assert entry["sentence"]


def test_the_tool_tells_wrong_rows_from_right_ones(monkeypatch):
    """A negative control: a family that counts rows of pixels as images must not be called proved."""
    vlm = tiny_vlms.build("internvl")
    wrong = families.tried("internvl")
    assert wrong["status"] == "proved"
    encode = vlm.encode
    monkeypatch.setattr(vlm, "encode", lambda images, **options: encode(images[::-1], **options))
    monkeypatch.setattr(tiny_vlms, "build", lambda kind: vlm)
    assert families.tried("internvl")["rows"] == "WRONG"
    assert families.tried("internvl")["status"] == "failed"
