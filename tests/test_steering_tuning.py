"""`tune`: the choice on held-out contexts, what it is made of, and what it writes down."""

import pytest
import torch

import ggss
from ggss.steering import tuning
from ggss.steering.tuning import Candidate, contrast, halves
from test_methods_pace import SITE, pictures, scenes

SOME = (Candidate("ggss"), Candidate("pace"), Candidate("pace", alpha=0.5), Candidate("pace", {"k": 2}))


def test_the_two_halves_share_no_person_and_lose_none():
    acts, _ = pictures()
    first, second = halves(acts)
    assert not set(first.contexts) & set(second.contexts)
    assert len(first) + len(second) == len(acts)
    assert torch.equal(second.tokens[0], acts.tokens[10])
    assert [len(part) for part in first.tokens[:2]] == [8, 8]
    with pytest.raises(ggss.InputError, match="there are 3 contexts"):
        halves(pictures(identities=3)[0])


def test_the_contrast_is_that_of_the_parts():
    acts, _ = pictures()
    table = torch.stack(list(acts.tokens)).double()[acts.groups("race").index]
    c = table.mean(0) - table.mean((0, 1))
    expected = float(c.norm()) * len(table) ** 0.5
    assert contrast(acts, "race", acts) == pytest.approx(expected, rel=1e-4)
    half = ggss.Activations([0.5 * tokens for tokens in acts.tokens], acts.attributes, acts.contexts)
    assert contrast(half, "race", acts) == pytest.approx(expected / 2, rel=1e-4)


def test_what_leaves_least_is_chosen_and_the_reason_is_kept(tmp_path):
    acts, _ = pictures()
    steerer = ggss.tune(acts, "race", candidates=SOME)
    assert (steerer.method, steerer.recommended_alpha) == ("pace", 1.0)
    assert steerer.options["k"] is None
    fitted = ggss.fit("pace", acts, attribute="race")
    assert steerer.content_hash == fitted.content_hash
    notes = steerer.diagnostics[SITE]["notes"]
    assert notes[0].startswith("Chosen on held-out contexts, without asking the model: pace, alpha 1.")
    assert notes[1].startswith("ggss, alpha 1: contrast left 0.")
    left = [float(note.split("contrast left ")[1].split(",")[0]) for note in notes[1:5]]
    assert left[1] < 0.3 < min(left[0], left[2], left[3])
    card = (steerer.save_pretrained(tmp_path) / "README.md").read_text()
    assert "contrast left" in card


def test_among_equals_the_one_that_moves_least_is_chosen(monkeypatch):
    acts, _ = pictures()
    monkeypatch.setattr(tuning, "CLOSE", 1.0)  # all are close enough
    steerer = ggss.tune(acts, "race", candidates=SOME, neutral=scenes())
    assert (steerer.method, steerer.recommended_alpha) in {("pace", 0.5), ("pace", 1.0)}
    moved = [note for note in steerer.diagnostics[SITE]["notes"] if "tokens moved" in note]
    sizes = {note.split(": ")[0]: float(note.split("tokens moved ")[1]) for note in moved}
    least = min(sizes, key=lambda label: sizes[label])
    assert least in steerer.diagnostics[SITE]["notes"][0]
    assert sizes["pace, alpha 0.5"] < sizes["pace, alpha 1"]


def test_a_candidate_that_cannot_be_fitted_is_told_and_not_chosen():
    acts, _ = pictures()
    steerer = ggss.tune(acts, "race", candidates=(Candidate("pace", {"k": 39}), Candidate("pace")))
    assert any("k = 39, alpha 1 could not be fitted" in note for note in steerer.diagnostics[SITE]["notes"])
    with pytest.raises(ggss.InputError, match="no candidate can be fitted"):
        ggss.tune(acts, "race", candidates=(Candidate("pace", {"k": 39}),))
