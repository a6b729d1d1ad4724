"""Unpaired pictures and ordered attributes: compared within strata, measured, or refused."""

import re

import pytest
import torch

import ggss
from experiments.bench import unpaired
from experiments.bench.planted_tokens import World
from ggss.activations import SITE, Activations
from ggss.errors import InputError
from ggss.methods import registry
from ggss.methods.diagnostics import explained
from ggss.methods.subspace import permuted_within, targets
from planted import planted

WIDTH, TOKENS = 32, 4
GROUP, PLACE, AGE = 0, 1, 2  # the axes of what is planted


def pictures(count=400, confounding=0.8, seed=0, matched=True, ages=False):
    """One picture of each person: a group along axis 0, a place along axis 1 that goes with it, an age along axis 2.

    confounding: the correlation of group and place. matched: by place; else place is an attribute like others.
    """
    generator = torch.Generator().manual_seed(seed)
    place = torch.randint(2, (count,), generator=generator)
    same = torch.rand(count, generator=generator) < (1 + confounding) / 2
    group = torch.where(same, place, 1 - place)
    age = (20 + 40 * torch.rand(count, generator=generator) + 20 * place).round()
    tokens = 0.3 * torch.randn(count, TOKENS, WIDTH, generator=generator)
    tokens[:, :, 3:] += 0.5 * torch.randn(count, 1, WIDTH - 3, generator=generator)
    tokens[:, :, WIDTH - 1] += 3
    tokens[:, :, GROUP] += (2.0 * group - 1)[:, None]
    tokens[:, :, PLACE] += (2.0 * place - 1)[:, None]
    tokens[:, :, AGE] += (age - 50)[:, None] / 15
    labels = [{"group": f"g{g}"} for g in group.tolist()]
    places = [f"p{p}" for p in place.tolist()]
    if ages:
        labels = [row | {"age": f"{number:.0f}"} for row, number in zip(labels, age.tolist(), strict=True)]
    if not matched:
        labels = [row | {"place": name} for row, name in zip(labels, places, strict=True)]
    contexts = [(("place", name),) if matched else () for name in places]
    return Activations(list(tokens), labels, contexts, unpaired=True, ordered="age" if ages else ())


def difference(steerer, planted_axis, read_axis):
    """Of two pictures that differ along one axis: the steered difference along another, as a share of it."""
    rows = torch.zeros(2, WIDTH)
    rows[:, WIDTH - 1] = 3
    rows[:, planted_axis] = torch.tensor([-1.0, 1.0])
    low, high = steerer.steer(rows, alpha=1.0)
    return float((high - low)[read_axis]) / 2


def kept(steerer, axis):
    return difference(steerer, axis, axis)


@pytest.mark.parametrize("method", ["leace-spherical", "pace", "pace-no-whitening", "pace-norm"])
def test_matching_separates_the_attribute_from_what_goes_with_it(method):
    matched = ggss.fit(method, pictures(), "group")
    assert abs(kept(matched, GROUP)) < 0.15
    assert kept(matched, PLACE) > 0.85
    assert abs(difference(matched, GROUP, PLACE)) < 0.15  # what is removed of the group is no place
    assert abs(difference(matched, PLACE, GROUP)) < 0.15  # and no place is taken for a group
    unmatched = ggss.fit(method, pictures(matched=False), "group")
    assert abs(difference(unmatched, GROUP, PLACE)) > 0.3  # the negative control


def test_without_confounding_matching_changes_nothing():
    for matched in (True, False):
        steerer = ggss.fit("pace", pictures(confounding=0.0, matched=matched), "group")
        assert abs(kept(steerer, GROUP)) < 0.1
        assert abs(difference(steerer, GROUP, PLACE)) < 0.1
        assert kept(steerer, PLACE) > 0.9


def test_the_covariance_is_that_of_labels_which_are_independent_of_strata():
    acts = pictures()
    known, rows = targets(acts, "group"), acts.pooled.double()
    moved = rows + known.independent @ known.slopes(known.z.T @ rows)
    place = torch.tensor([1.0 if context == acts.contexts[0] else 0.0 for context in acts.contexts]).double()
    before, after = (torch.corrcoef(torch.stack([x[:, GROUP], x[:, PLACE]]))[0, 1] for x in (rows, moved))
    assert float(before) > 0.5
    assert abs(float(after)) < 0.05
    torch.testing.assert_close(moved.mean(0), rows.mean(0))
    torch.testing.assert_close(moved[:, GROUP].std(), rows[:, GROUP].std(), rtol=0.05, atol=0)
    torch.testing.assert_close(known.z.T @ moved, (known.z.T @ known.z) @ known.slopes(known.z.T @ moved))
    assert abs(float((known.z.T @ place[:, None]).norm())) < 1e-9


def as_unpaired(acts):
    """A complete set, fitted as unpaired pictures that are matched by person."""
    return Activations(acts.tokens, acts.attributes, acts.contexts, unpaired=True)


def test_an_unpaired_fit_of_a_complete_set_is_the_paired_fit():
    acts, _ = planted()
    rows = torch.cat(list(acts.tokens))[:50]
    for method, options in (
        ("leace-spherical", {}),
        ("pace", {"parts": 1, "k": 4, "shrinkage": 0.1}),
        ("pace", {"parts": "positions", "k": 4, "shrinkage": 0.1, "weights": "tokens"}),
        ("pace-no-whitening", {"parts": 1, "k": 4}),
    ):
        complete, matched = (ggss.fit(method, a, "race", **options) for a in (acts, as_unpaired(acts)))
        torch.testing.assert_close(matched.steer(rows), complete.steer(rows), rtol=1e-4, atol=1e-4)
        assert matched.values == complete.values
    largest = [
        ggss.fit("pace", a, "race", parts=1).statistics[SITE]["eigenvalues_race"][:4]
        for a in (acts, as_unpaired(acts))
    ]
    torch.testing.assert_close(*largest, rtol=1e-4, atol=0)


def slopes(acts, columns):
    """By least squares: what pooled rows gain from columns [N, m], with an intercept for each stratum."""
    names = list(dict.fromkeys(acts.contexts))
    strata = torch.nn.functional.one_hot(torch.tensor([names.index(c) for c in acts.contexts])).double()
    design = torch.cat([columns, strata], 1)
    return torch.linalg.lstsq(design, acts.pooled.double()).solution[: columns.shape[1]]


def test_contrasts_are_those_of_a_regression_with_an_intercept_for_each_stratum():
    acts = pictures(ages=True)
    for name, column in (
        ("group", torch.tensor([[float(label == "g0")] for label in acts.labels("group")])),
        ("age", torch.tensor([[float(label)] for label in acts.labels("age")])),
    ):
        known = targets(acts, name)
        contrast = (known.z.T @ acts.pooled.double())[0] / float((known.z[:, 0] ** 2).sum())
        expected = slopes(acts, column.double())[0]
        torch.testing.assert_close(contrast, expected * float(column.double().std(correction=0)) ** (name == "age"))
    unmatched = pictures(matched=False, ages=True)
    known = targets(unmatched, "group")
    contrast = (known.z.T @ unmatched.pooled.double())[0] / float((known.z[:, 0] ** 2).sum())
    column = torch.tensor([[float(label == "g0")] for label in acts.labels("group")]).double()
    assert float((contrast - slopes(acts, column)[0])[PLACE].abs()) > 1  # the control: here the place is in it


def test_labels_are_permuted_within_strata_only():
    strata = torch.tensor([0, 1, 0, 1, 0, 2])
    rows = torch.arange(6.0)[:, None]
    permuted = permuted_within(strata, rows, torch.Generator().manual_seed(1))
    for stratum in range(3):
        assert set(permuted[strata == stratum].flatten().tolist()) == set(rows[strata == stratum].flatten().tolist())
    assert not torch.equal(permuted, rows)


def test_labels_that_mean_nothing_remove_nothing():
    acts = pictures(seed=3)
    shuffled = permuted_within(
        targets(acts, "group").strata, torch.arange(len(acts))[:, None], torch.Generator().manual_seed(5)
    )
    labels = [acts.attributes[i] for i in shuffled.flatten().tolist()]
    steerer = ggss.fit("pace", Activations(acts.tokens, labels, acts.contexts, unpaired=True), "group")
    assert steerer.diagnostics[SITE]["k"] == 0
    assert "Nothing is removed" in steerer.warnings[-1]


def test_confounding_is_said_loudly_and_only_where_there_is_some():
    matched = ggss.fit("leace-spherical", pictures(), "group")
    (text,) = matched.warnings
    assert text.startswith("Confounded: what pictures are matched by explains 52%, by chance at most 2%")
    assert "most of all place" in text
    compared = matched.source["matching"]["group"]
    assert compared["matched_by"] == ["place"]
    assert compared["images"] == compared["compared"] == 400
    assert compared["strata"] == compared["compared_strata"] == 2
    assert 0.5 < compared["predicted"]["share"] < 0.75  # the squared correlation, 0.64
    assert compared["by_column"]["place"] == compared["predicted"]

    (text,) = ggss.fit("leace-spherical", pictures(matched=False), "group").warnings
    assert text.startswith("Confounded after matching: place explains 52%")
    assert "Match by place, too" in text

    quiet = ggss.fit("leace-spherical", pictures(confounding=0.0), "group")
    assert quiet.warnings == []
    assert quiet.source["matching"]["group"]["predicted"]["share"] < 0.02


def test_chance_makes_no_warning_in_small_sets():
    """With 24 pictures in 12 cells chance alone explains much; the adjusted share is about 0, and seldom above."""
    shares, alarms = [], 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        coded = torch.nn.functional.one_hot(torch.randint(3, (24,), generator=generator), 3).double()
        cells = torch.arange(24) % 12
        found = explained(coded, cells, torch.zeros(24, dtype=torch.long))
        shares.append(found.share)
        alarms += found.confounded
    assert abs(sum(shares) / 60) < 0.05
    assert alarms <= 3


def test_what_is_left_within_strata_is_adjusted_and_needs_enough_pictures():
    strata = torch.arange(300) % 3
    column = torch.arange(300) // 3 % 2
    label = torch.nn.functional.one_hot(column).double()
    assert explained(label, column, strata).share == pytest.approx(1.0)
    assert explained(label, strata, strata).share == pytest.approx(0.0)  # nothing beyond the strata themselves
    assert explained(label, torch.arange(300), strata) is None  # a name for each picture says nothing


def test_few_pictures_that_can_be_compared_are_said():
    acts = pictures(confounding=0.0)
    contexts = [context if i % 4 == 0 else (("place", f"only {i}"),) for i, context in enumerate(acts.contexts)]
    steerer = ggss.fit("leace-spherical", Activations(acts.tokens, acts.attributes, contexts, unpaired=True), "group")
    assert any(
        "Few pictures are compared: 100 of 400 pictures are in the 2 of 302 strata" in t for t in steerer.warnings
    )


@pytest.mark.parametrize("method", [name for name in registry.fitted_names() if registry.get(name).steers])
def test_methods_that_need_pairs_refuse_in_a_sentence(method):
    if registry.get(method).takes_unpaired:
        assert ggss.fit(method, pictures(200, ages=True), "group").method == method
        return
    with pytest.raises(InputError, match=f"{method} compares the versions of a person.*leace-spherical.*pace"):
        ggss.fit(method, pictures(20), "group")
    acts, _ = planted(4)
    for number, row in enumerate(acts.attributes):
        row["race"] = str(number % 5)
    with pytest.raises(InputError, match=f"{method} compares classes, and 'race' is ordered.*leace-spherical.*pace"):
        ggss.fit(method, Activations(acts.tokens, acts.attributes, acts.contexts, ordered="race"), "race")


def test_unsteered_baselines_take_anything():
    assert ggss.fit("none", pictures(20), "group").source.get("matching") is None


def test_unpaired_pictures_have_positions_if_they_are_equally_long_and_never_clusters():
    acts = pictures(100)
    assert ggss.fit("pace", acts, "group").diagnostics[SITE]["parts"] == TOKENS
    assert ggss.fit("pace", acts, "group", parts=1).diagnostics[SITE]["parts"] == 1
    with pytest.raises(InputError, match=r"parts=4 are clusters .* these pictures are unpaired"):
        ggss.fit("pace", acts, "group", parts=4)
    tokens = [rows[: 2 + number % 2] for number, rows in enumerate(acts.tokens)]
    unequal = Activations(tokens, acts.attributes, acts.contexts, unpaired=True)
    steerer = ggss.fit("pace", unequal, "group")
    assert "whole pictures: these have 2 to 3 tokens" in steerer.diagnostics[SITE]["notes"][0]
    with pytest.raises(InputError, match="needs images of one number of tokens, these have 2 to 3"):
        ggss.fit("pace", unequal, "group", parts="positions")


def test_positions_find_what_cancels_in_the_mean_token():
    """The group lies along opposite directions in the two halves of a picture."""
    acts = pictures(confounding=0.5)
    for rows in acts.tokens:
        rows[: TOKENS // 2, GROUP] *= -1
    turned = Activations(acts.tokens, acts.attributes, acts.contexts, unpaired=True)
    assert abs(kept(ggss.fit("pace", turned, "group"), GROUP)) < 0.2
    assert kept(ggss.fit("pace", turned, "group", parts=1), GROUP) > 0.8  # the control


def test_pictures_of_different_lengths_count_equally():
    """A picture of many tokens has one mean token like any other: sizes that go with a group are not removed."""
    acts = pictures(confounding=0.0)
    tokens = [
        rows.repeat(3, 1) if label == "g0" else rows
        for rows, label in zip(acts.tokens, acts.labels("group"), strict=True)
    ]
    longer = Activations(tokens, acts.attributes, acts.contexts, unpaired=True)
    steerer = ggss.fit("pace", longer, "group")
    assert abs(kept(steerer, GROUP)) < 0.1
    assert kept(steerer, PLACE) > 0.9
    assert kept(steerer, AGE) > 0.9


def labelled(labels, contexts):
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randn(2, 8, generator=generator) for _ in labels]
    return Activations(tokens, [{"group": label} for label in labels], contexts, unpaired=True)


@pytest.mark.parametrize(
    ("labels", "contexts", "problem"),
    [
        ("aabb", "xxyy", "no two pictures of different 'group' agree"),
        ("abcd", "xxyy", "no stratum links .* of 'group' with its other values"),
        ("aaaa", "xxyy", "fewer than two values"),
    ],
)
def test_values_that_cannot_be_compared_are_refused(labels, contexts, problem):
    with pytest.raises(InputError, match=problem):
        ggss.fit("leace-spherical", labelled(labels * 3, contexts * 3), "group")


def test_values_may_be_linked_by_others():
    """a and c never meet, but both meet b."""
    assert targets(labelled("abbc" * 5, "xxyy" * 5), "group").directions == 2


def test_groups_of_unpaired_pictures_are_refused():
    with pytest.raises(InputError, match="unpaired"):
        pictures(20).groups("group")


def test_parts_of_unpaired_activations_stay_unpaired():
    acts = pictures(40, ages=True)
    assert acts.at(SITE).unpaired
    assert acts.of([0, 1, 2]).ordered == ("age",)


# Ordered attributes.


@pytest.mark.parametrize("method", ["leace-spherical", "pace"])
def test_a_number_has_one_direction_by_regression(method):
    steerer = ggss.fit(method, pictures(ages=True), "age")
    assert steerer.source["ordered"] == ["age"]
    assert abs(kept(steerer, AGE)) < 0.15
    assert kept(steerer, PLACE) > 0.9
    assert kept(steerer, GROUP) > 0.9
    assert _rank(steerer) == 1
    assert list(steerer.values) == sorted(steerer.values, key=float)


def complete(values=("2", "10", "30")):
    """A complete set in which a number lies along axis 0, with one person's versions of each value."""
    generator = torch.Generator().manual_seed(0)
    tokens, labels, contexts = [], [], []
    for person in range(20):
        own = torch.randn(1, WIDTH, generator=generator)
        for value in values:
            rows = own + 0.2 * torch.randn(TOKENS, WIDTH, generator=generator)
            rows[:, 0] += float(value) / 10
            rows[:, 1] += float(value == values[1])  # what is not linear in the number
            tokens.append(rows)
            labels.append({"age": value})
            contexts.append(person)
    return tokens, labels, contexts


@pytest.mark.parametrize("method", ["leace-spherical", "pace"])
def test_a_number_in_a_complete_set_is_one_direction_and_classes_are_more(method):
    ordered = Activations(*complete(), ordered="age")
    slope = ggss.fit(method, ordered, "age")
    classes = ggss.fit(method, Activations(*complete()), "age")
    assert [_rank(steerer) for steerer in (slope, classes)] == [1, 2]
    assert slope.values == ("2", "10", "30")  # by their numbers
    assert classes.values == ("10", "2", "30")  # by their names


def _rank(steerer):
    tensors = steerer.operators[SITE].tensors()
    return int(torch.linalg.matrix_rank(tensors["map" if "map" in tensors else "movement"], rtol=1e-4))


def test_an_unpaired_slope_of_a_complete_set_is_the_paired_slope():
    tokens, labels, contexts = complete()
    fits = [
        ggss.fit("pace", Activations(tokens, labels, contexts, ordered="age", unpaired=alone), "age", shrinkage=0.1)
        for alone in (False, True)
    ]
    largest = [steerer.statistics[SITE]["eigenvalues_age"][:1] for steerer in fits]
    torch.testing.assert_close(*largest, rtol=1e-4, atol=0)


def test_a_label_that_is_no_number_is_refused():
    with pytest.raises(InputError, match=re.escape("2 of its values are no numbers, such as '30-39', 'old'")):
        Activations([torch.randn(2, 4)] * 3, [{"age": a} for a in ("30-39", "old", "7")], range(3), ordered="age")
    with pytest.raises(InputError, match="no attribute 'ages'"):
        Activations([torch.randn(2, 4)] * 2, [{"age": a} for a in "12"], range(2), ordered="ages")


def test_many_numbers_are_asked_about_and_never_guessed():
    years = Activations(*complete([str(year) for year in range(20, 31)]))
    with pytest.raises(InputError, match="'age' has 11 values, all numbers: say that it is ordered"):
        ggss.fit("pace", years, "age")
    few = Activations(*complete([str(year) for year in range(20, 30)]))
    assert len(ggss.fit("pace", few, "age").values) == 10


def test_intersections_with_a_number_are_refused_where_classes_are_crossed():
    acts = pictures(ages=True)
    with pytest.raises(InputError, match="age is ordered and has no intersections"):
        ggss.fit("leace-spherical", acts, ("group", "age"))
    both = ggss.fit("pace", acts, ("group", "age"))  # it fits each alone and removes both
    assert abs(kept(both, GROUP)) < 0.15
    assert abs(kept(both, AGE)) < 0.15
    assert list(both.source["matching"]) == ["group", "age"]
    assert "age" not in both.source["matching"]["group"]["left"]


# What is kept of it.


def test_a_steerer_records_that_it_was_fitted_unpaired(tmp_path):
    steerer = ggss.fit("pace", pictures(matched=False, ages=True), "group")
    steerer.save_pretrained(tmp_path)
    card = " ".join((tmp_path / "README.md").read_text().split())
    assert ", unpaired, hash" in card
    assert "Fitted to unpaired pictures" in card
    assert "400 of 400 are in 1 of 1 strata with several values of group" in card
    assert "place 52%" in card
    assert "**Warning.** Confounded after matching: place" in card
    assert "is not measured on unpaired pictures" in card
    back = ggss.Steerer.from_pretrained(tmp_path)
    assert back.source["matching"] == steerer.source["matching"]
    assert back.warnings == steerer.warnings != []


def test_the_card_of_a_number_has_its_range(tmp_path):
    steerer = ggss.fit("pace", Activations(*complete(), ordered="age"), "age")
    steerer.save_pretrained(tmp_path)
    assert "age: a number, from 2 to 30" in (tmp_path / "README.md").read_text()
    assert ggss.Steerer.from_pretrained(tmp_path).source["ordered"] == ["age"]


def test_a_steerer_of_two_keeps_how_both_were_compared():
    acts = pictures(matched=False, ages=True)
    group, age = (ggss.fit("leace-gated", acts, name) for name in ("group", "age"))
    both = group + age
    assert both.source["matching"] == group.source["matching"] | age.source["matching"]
    assert [text for text in both.warnings if "place" in text]


def test_the_page_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(unpaired, "COUNT", 75)
    monkeypatch.setattr(unpaired, "CONFOUNDING", (0.7,))
    monkeypatch.setattr(unpaired, "ALARM_COUNTS", (60,))
    unpaired.main(["--quick", "-o", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    assert "| 0.7 | `leace-spherical` | matched |" in text
    assert "| 75 | paired |" in text
    assert capsys.readouterr().out.strip() == text.strip()


def test_a_matched_fit_comes_near_the_paired_one_where_the_confounding_is_known():
    outcome = unpaired.outcomes(World(overlap=0.3, parts=1), "leace-spherical", 300, 0.7)
    pooled, content_lost = 0, 2
    assert outcome["matched"][pooled] < outcome["paired"][pooled] + 0.15
    assert outcome["not matched"][pooled] > outcome["matched"][pooled]
    assert outcome["matched"][content_lost] < outcome["paired"][content_lost] + 3
    assert outcome["not matched"][content_lost] > outcome["matched"][content_lost] + 3
