"""The painter: face-only counterfactuals, and cues that can be seen."""

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier, RidgeCV

from ggss.smallworld.painter import Portrait, face_mask, variants
from ggss.smallworld.people import GENDERS, RACES, Person, draw_person, people
from ggss.smallworld.scenes import Scene

CROWD = list(people("evaluation", 12))


def pixels(portrait: Portrait | Scene) -> np.ndarray:
    return np.asarray(portrait.paint())


def test_no_pixel_outside_the_face_changes_between_variants() -> None:
    for person in CROWD:
        pictures = np.stack([pixels(portrait) for portrait in variants(person)])
        outside = ~face_mask(person)
        assert (pictures[:, outside] == pictures[:1, outside]).all(), person


def test_inside_the_face_every_two_variants_differ() -> None:
    for person in CROWD[::10]:
        pictures = [pixels(portrait) for portrait in variants(person)]
        inside = face_mask(person)
        for k, first in enumerate(pictures):
            for second in pictures[:k]:
                assert (first[inside] != second[inside]).any(axis=-1).mean() > 0.02


def test_the_face_is_a_modest_part_of_the_picture_and_lies_within_it() -> None:
    for person in CROWD:
        mask = face_mask(person)
        assert 0.1 < mask.mean() < 0.25
        assert not np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]]).any()


def test_another_identity_does_change_pixels_outside_the_face() -> None:
    """The control: the comparison above can see a difference."""
    first, second = Person(1_000, "cook"), Person(1_001, "cook")
    outside = ~(face_mask(first) | face_mask(second))
    one, other = (pixels(Portrait(person, "jade", "man")) for person in (first, second))
    assert (one[outside] != other[outside]).any()


def test_a_portrait_is_deterministic_and_its_seed_matters() -> None:
    portrait = Portrait(Person(7, "nurse"), "pearl", "woman")
    again = Portrait(Person(7, "nurse"), "pearl", "woman")
    assert (pixels(portrait) == pixels(again)).all()
    assert portrait.paint().size == (64, 64)
    assert portrait.paint_large().size == (256, 256)
    assert (pixels(portrait) != pixels(Portrait(Person(7, "nurse", seed=1), "pearl", "woman"))).any()


def test_identity_traits_do_not_depend_on_race_or_gender() -> None:
    shown = [dict(portrait.labels()) for portrait in variants(Person(3, "doctor"))]
    rest = [{k: v for k, v in labels.items() if k not in ("race", "gender")} for labels in shown]
    assert all(labels == rest[0] for labels in rest)


@pytest.fixture(scope="module")
def gallery() -> tuple[list[Portrait], np.ndarray]:
    rng = np.random.default_rng(0)
    portraits = [
        Portrait(draw_person(rng), RACES[int(rng.integers(5))], GENDERS[int(rng.integers(2))]) for _ in range(1_200)
    ]
    images = np.stack([np.asarray(portrait.paint().reduce(2), dtype=np.float32).ravel() for portrait in portraits])
    return portraits, images / 255 - 0.5


TOLD = ("race", "gender", "place", "work", "hair_colour", "hair_style", "glasses", "scarf", "wall")


@pytest.mark.parametrize("label", TOLD)
def test_every_label_can_be_read_from_the_pixels(gallery: tuple[list[Portrait], np.ndarray], label: str) -> None:
    portraits, images = gallery
    words = np.array([str(portrait.labels()[label]) for portrait in portraits])
    reader = RidgeClassifier(alpha=10.0).fit(images[:900], words[:900])
    assert reader.score(images[900:], words[900:]) > 0.9
    shuffled = np.random.default_rng(0).permutation(words)
    control = RidgeClassifier(alpha=10.0).fit(images[:900], shuffled[:900])
    assert control.score(images[900:], shuffled[900:]) < 0.65


def test_badge_and_cap_can_be_read_from_the_pixels(gallery: tuple[list[Portrait], np.ndarray]) -> None:
    portraits, images = gallery
    hospital = np.array([portrait.person.place == "hospital" for portrait in portraits])
    for label, chosen in (("wealth", np.full(len(portraits), True)), ("cue", hospital)):
        value = np.array([float(portrait.labels()[label]) for portrait in portraits])[chosen]
        seen = images[chosen]
        cut = 3 * len(seen) // 4
        reader = RidgeCV(alphas=(1.0, 10.0, 100.0)).fit(seen[:cut], value[:cut])
        assert np.corrcoef(reader.predict(seen[cut:]), value[cut:])[0, 1] > 0.9, label


@pytest.mark.parametrize("label", ["hair_colour", "hair_style"])
def test_no_hat_hides_the_hair(gallery: tuple[list[Portrait], np.ndarray], label: str) -> None:
    """The same reader reads hair as well under the cook's and the nurse's hat as on bare heads."""
    portraits, images = gallery
    words = np.array([str(portrait.labels()[label]) for portrait in portraits])
    right = RidgeClassifier(alpha=10.0).fit(images[:900], words[:900]).predict(images[900:]) == words[900:]
    hatted = np.array([portrait.person.occupation in ("cook", "nurse") for portrait in portraits[900:]])
    assert right[hatted].mean() > 0.8
    assert right[hatted].mean() > right[~hatted].mean() - 0.05
