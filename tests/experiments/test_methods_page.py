"""docs/methods.md is what the registry says, and its worked example runs."""

import re
from pathlib import Path

import pytest
import torch

import ggss
from experiments.tools import methods_page
from ggss.methods import registry
from planted import planted
from rounding import assert_same

DOCS = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_page_is_generated_from_the_registry():
    message = "docs/methods.md is old: python -m experiments.tools.methods_page > docs/methods.md"
    assert DOCS.read_text(encoding="utf-8") == methods_page.page(), message


def test_every_method_and_option_is_described():
    text = DOCS.read_text(encoding="utf-8")
    for name in registry.names():
        method = registry.get(name)
        assert f"| `{name}` | {method.summary} |" in text
        assert method.reference in text
        assert all(field.description for field in method.options.model_fields.values())


@pytest.fixture
def example(monkeypatch):
    """The worked example of the page, run as a reader would; the table is as before afterwards."""
    monkeypatch.setattr(registry.METHODS, "_entries", dict(registry.METHODS._entries))
    code = re.search(r"## Adding a method.*?```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL).group(
        1
    )
    assert len(code.splitlines()) < 40
    exec(compile(code, "docs/methods.md", "exec"), {"__name__": "example"})


@pytest.mark.usefixtures("example")
def test_the_worked_example_runs(tmp_path):
    assert registry.names()[-1] == "random-projection"
    acts, _ = planted(identities=4)
    steerer = ggss.fit("random-projection", acts, attribute="race", k=2)
    rows = acts.tokens[0]
    steered = steerer.steer(rows)
    torch.testing.assert_close(steered.norm(dim=1), rows.norm(dim=1), rtol=1e-6, atol=0)
    assert not torch.allclose(steered, rows)
    loaded = ggss.Steerer.from_pretrained(steerer.save_pretrained(tmp_path))
    assert loaded.content_hash == steerer.content_hash
    assert_same(loaded.steer(rows), steered)
    with pytest.raises(ggss.InputError, match="k: input should be greater than or equal to 1"):
        ggss.fit("random-projection", acts, attribute="race", k=0)


def test_a_name_is_taken_once_and_needs_its_words():
    known = registry.get("ggss")
    with pytest.raises(ValueError, match="has one of that name"):
        registry.register(known)
    with pytest.raises(ValueError, match="needs a summary and a reference"):
        registry.register(registry.Method("fresh", "", "nowhere", known.fit))
