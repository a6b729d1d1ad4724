"""`auto`: the choice on held-out contexts, what it is made of, and what it writes down."""

import pytest
import torch

import ggss
from ggss.activations import Rows
from ggss.methods import auto
from ggss.methods.auto import Candidate, choose, contrast, halves
from planted import planted
from test_pace import SITE, pictures, scenes

SOME = (Candidate("ggss"), Candidate("pace"), Candidate("pace", {"k": 2}))


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
    steerer = ggss.tune(acts, "race")
    assert (steerer.method, steerer.recommended_alpha) == ("auto", 1.0)
    fitted = ggss.fit("pace", acts, attribute="race").operators[SITE]
    assert torch.equal(steerer.operators[SITE].detection, fitted.detection)
    notes = steerer.diagnostics[SITE]["notes"]
    assert notes[0].startswith("Chosen on held-out contexts, without asking the model: pace")
    assert notes[1].startswith("ggss: contrast left 0.")
    left = {note.split(": ")[0]: float(note.split("contrast left ")[1].split(",")[0]) for note in notes[1:8]}
    assert left["pace"] < 0.3 < min(left["ggss"], left["pace, k = 4"])
    card = (steerer.save_pretrained(tmp_path) / "README.md").read_text()
    assert "contrast left" in card
    assert ggss.Steerer.from_pretrained(tmp_path).content_hash == steerer.content_hash


def test_among_equals_the_one_that_moves_least_is_chosen(monkeypatch):
    acts, _ = pictures()
    monkeypatch.setattr(auto, "CLOSE", 1.0)  # all are close enough
    notes = choose(acts, "race", scenes(), SOME).diagnostics["notes"]
    moved = [note for note in notes if "tokens moved" in note]
    sizes = {note.split(": ")[0]: float(note.split("tokens moved ")[1]) for note in moved}
    assert list(sizes) == ["ggss", "pace", "pace, k = 2"]
    least = min(sizes, key=lambda label: sizes[label])
    assert f"without asking the model: {least}. " in notes[0]


def test_a_candidate_that_cannot_be_fitted_is_told_and_not_chosen():
    acts, _ = pictures()
    impossible = Candidate("pace", {"k": 39})
    notes = choose(acts, "race", None, (impossible, Candidate("pace"))).diagnostics["notes"]
    assert any("pace, k = 39 could not be fitted" in note for note in notes)
    with pytest.raises(ggss.InputError, match="no candidate can be fitted"):
        choose(acts, "race", None, (impossible,))


def test_each_site_has_its_own_choice():
    first, second = pictures()[0], pictures(seed=4, width=48)[0]
    sites = {SITE: Rows(first.pooled, first.tokens), "deepstack-0": Rows(second.pooled, second.tokens)}
    both = ggss.tune(ggss.Activations.from_rows(sites, first.attributes, first.contexts), "race")
    alone = ggss.tune(second, "race")
    assert torch.equal(both.operators["deepstack-0"].detection, alone.operators[SITE].detection)
    assert "Chosen on held-out" in both.diagnostics["deepstack-0"]["notes"][0]


def leaning(identities=20, seed=0):
    """Race in axis 0 and gender in axis 1, in tokens of people who differ along their sum.

    So what an oblique removal detects as race is axis 0 minus axis 1, and it moves gender's contrast along axis 0.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, attributes, contexts = [], [], []
    for identity in range(identities):
        person = 3 * torch.randn(6, 1, generator=generator)
        for gender, sign in (("man", -1.0), ("woman", 1.0)):
            for race, side in (("jade", -1.0), ("pearl", 1.0)):
                rows = 0.2 * torch.randn(6, 24, generator=generator)
                rows[:, 20] += 6
                rows[:, :2] += person
                rows[:, 0] += side
                rows[:, 1] += sign
                tokens.append(rows)
                attributes.append({"race": race, "gender": gender})
                contexts.append(("cook", identity))
    return ggss.Activations(tokens, attributes, contexts)


def test_a_contrast_that_steering_raises_is_told_with_the_remedy():
    acts = leaning()
    steerer = ggss.tune(acts, "race")
    (warning,) = steerer.warnings
    assert "it shows more of gender than before" in warning
    assert "Use --attribute race,gender unless gender has to stay as it is" in warning
    fitted = ggss.fit("pace", acts, attribute="race")
    raised = contrast(auto._steered(acts, fitted.operators[SITE]), "gender", acts) / contrast(acts, "gender", acts)
    said = float(warning.split("leaves ")[1].split(" of the contrast")[0])
    assert said == pytest.approx(raised, abs=0.15)
    assert said > 1.2
    assert float(warning.split("leaves at most ")[1].split(" of each")[0]) < 0.3
    # The control: where the two are apart nothing is raised, and nothing is said but the number.
    apart, _ = pictures()
    calm = ggss.tune(apart, "race")
    assert not calm.warnings
    assert any(
        note.startswith("Steering race leaves 1.00 of the contrast of gender")
        for note in calm.diagnostics[SITE]["notes"]
    )


def test_several_attributes_are_judged_by_the_one_of_which_most_is_left():
    acts, plain = leaning(), Candidate("svd-pooled-euclidean")
    both = choose(acts, ("race", "gender"), None, (plain,))
    line = next(note for note in both.diagnostics["notes"] if note.startswith("svd-pooled-euclidean: contrast left"))
    first, second = halves(acts)
    most = []
    for train, test in ((first, second), (second, first)):
        steered = auto._steered(test, ggss.fit(plain.method, train, attribute=("race", "gender")).operators[SITE])
        most.append(max(contrast(steered, name, test) / contrast(test, name, test) for name in ("race", "gender")))
    assert float(line.split("left ")[1].split(",")[0]) == pytest.approx(sum(most) / 2, abs=0.005)
    assert not both.diagnostics["warnings"]
    for name in ("race", "gender"):
        assert contrast(auto._steered(acts, both.operator), name, acts) < 0.2 * contrast(acts, name, acts)


def test_a_candidate_of_a_package_that_is_missing_is_left_out(monkeypatch):
    acts, _ = pictures()
    notes = choose(acts, "race", None, (Candidate("of-another-package"), Candidate("pace"))).diagnostics["notes"]
    assert "of-another-package" not in " ".join(notes)
    kept = Candidate("bend-token-euclidean", keeps_tokens=True)
    monkeypatch.setattr(auto, "MOST_NUMBERS", 100)
    notes = choose(acts, "race", None, (kept, Candidate("pace"))).diagnostics["notes"]
    assert any(note.startswith("bend-token-euclidean was left out: it would keep") for note in notes)


def test_what_keeps_all_tokens_is_chosen_only_where_nothing_else_is_close():
    kept = Candidate("bend-token-euclidean", keeps_tokens=True)
    acts, _ = pictures()
    weak = Candidate("ggss")  # which leaves .85 where bend-token leaves .27
    assert "model: bend-token-euclidean." in choose(acts, "race", None, (kept, weak)).diagnostics["notes"][0]
    close, _ = planted()  # both leave little, and bend-token moves tokens a bit less
    notes = choose(close, "race", None, (kept, Candidate("pace"))).diagnostics["notes"]
    moved = [float(note.split("tokens moved ")[1]) for note in notes[1:3]]
    assert moved[0] < moved[1]
    assert "model: pace." in notes[0]


def test_rows_of_padding_change_no_score():
    """A method that compares complete pictures gets them with their padding, as when the model is steered."""
    acts, _ = pictures()
    rows = [torch.cat([tokens[:3], torch.zeros(1, tokens.shape[1]), tokens[3:]]) for tokens in acts.tokens]
    padded = ggss.Activations(rows, acts.attributes, acts.contexts)
    assert len(padded.tokens[0]) == len(acts.tokens[0])
    candidates = (Candidate("bend-token-euclidean", keeps_tokens=True), Candidate("pace"))
    plain, with_padding = (choose(one, "race", None, candidates).diagnostics["notes"][1:3] for one in (acts, padded))
    assert with_padding == plain
