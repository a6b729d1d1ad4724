"""A model, steered or not, that answers probe items in batches.

Pictures are encoded once, in a cache that all steerings of a model share, and steered many at a time. Where features
are not enough, the steerer is attached to the model: if the model cannot answer from features, while pictures are
encoded for a site before the projector's output, and while it answers for a site inside the text model.

`live_questions` makes questions of items for a method that learns from a live model (`ggss.fit_live`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ggss import errors
from ggss.data.pictures import Picture
from ggss.errors import InputError
from ggss.methods.registry import LiveQuestion, PersonShown
from ggss.models import sites
from ggss.models.features import BoundedFeatures, FeatureCache, Features, ImageOrFeatures, steered
from ggss.models.reading import Answer
from ggss.models.vlm import Vlm
from ggss.probes.base import Item
from ggss.steering.steerer import Steerer
from ggss.terminal import track
from ggss.version import library_versions

BATCH = 64  # questions asked together

Steering = tuple[Steerer, float]
"""A steerer and its strength."""


@dataclass(frozen=True)
class SteeredModel:
    """A model that answers items.

    Args:
        cache: the features of its pictures.
        steerings: steerers with their strengths, in the order in which they act.

    Examples:
        >>> from ggss.probes.steered_model import SteeredModel
        >>> SteeredModel.of(vlm).steered(steerer, 0.5).alpha
        0.5
    """

    cache: FeatureCache
    steerings: tuple[Steering, ...] = ()
    _steered_features: BoundedFeatures = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Bounded, because steered features are cheap to compute again.
        object.__setattr__(self, "_steered_features", BoundedFeatures(self.cache.room))

    @classmethod
    def of(cls, vlm: Vlm) -> "SteeredModel":
        """The unsteered model, with a new cache."""
        return cls(FeatureCache(vlm))

    def steered(self, steerer: Steerer, alpha: float | None = None, force: bool = False) -> "SteeredModel":
        """The model under one more steering; alpha: None is the steerer's recommended strength.

        InputError if the steerer was made for another model, unless forced.
        """
        steerer.check(self.vlm, force=force)
        return SteeredModel(self.cache, (*self.steerings, (steerer, steerer.strength(alpha))))

    @property
    def vlm(self) -> Vlm:
        return self.cache.vlm

    @property
    def name(self) -> str:
        return self.vlm.name

    @property
    def identity(self) -> Mapping[str, str]:
        """By name, all of the model that decides its answers."""
        return self.vlm.identity.parts

    @property
    def versions(self) -> dict[str, str]:
        """Of the libraries that decide its numbers."""
        return library_versions()

    @property
    def alpha(self) -> float:
        """The strength of the last steering; 0 without any."""
        return self.steerings[-1][1] if self.steerings else 0.0

    @property
    def suffix(self) -> str:
        """What the steerers append to every prompt."""
        return "".join(steerer.prompt_suffix for steerer, _ in self.steerings)

    def preload(self, pictures: Sequence[Picture], show: bool | None = None) -> None:
        """Encode pictures before they are asked about, where the model answers from features."""
        if self.cache.from_features:
            self.cache.preload(pictures, show)

    def see(self, pictures: Sequence[Picture]) -> list[ImageOrFeatures]:
        """The pictures as the steered model sees them, in order."""
        early = self._steerings(in_text=False)
        if not early or not self.cache.from_features:
            return self.cache.see(pictures)
        cached = self.vlm.sites("all")
        in_tower = any(site not in cached for steerer, _ in early for site in steerer.operators)
        known = self._steered_features.under(self.cache.identity())
        for batch in self.cache.batches([p for p in pictures if p.digest not in known]):
            features = self._encoded(batch, early) if in_tower else self.cache.features(batch)
            for steerer, alpha in () if in_tower else early:
                features = steered(features, steerer, alpha)
            known.add(dict(zip((picture.digest for picture in batch), features, strict=True)))
        visible = [known[picture.digest] for picture in pictures]
        known.make_room()
        return visible

    def _seen_together(self, pictures: Sequence[Picture]) -> list[Features]:
        """The pictures of one prompt as a model sees them that is steered by their common mean."""
        features = self.cache.features(pictures)
        for steerer, alpha in self._steerings(in_text=False):
            features = steered(features, steerer, alpha)
        return features

    def _encoded(self, pictures: Sequence[Picture], early: Sequence[Steering]) -> list[Features]:
        """The pictures encoded with the steerers attached: features lack the sites before the projector's output."""
        with ExitStack() as live:
            for steerer, alpha in early:
                live.enter_context(steerer.attach(self.vlm, alpha, force=True))  # checked by `steered`
            return self.vlm.encode([picture.image() for picture in pictures])

    def _steerings(self, in_text: bool) -> list[Steering]:
        """The steerings, each at its sites inside the text model only, or at all other sites."""
        parts = [
            (steerer.only_at([site for site in steerer.operators if sites.in_text(site) == in_text]), alpha)
            for steerer, alpha in self.steerings
        ]
        return [(steerer, alpha) for steerer, alpha in parts if steerer.operators]

    def read(
        self,
        items: Sequence[Item],
        max_new_tokens: int,
        what: str = "questions",
        batch_size: int = BATCH,
        show: bool | None = None,
    ) -> list[Answer]:
        """One answer per item, in the items' order. what: a title for the progress bar."""
        answers: dict[int, Answer] = {}
        order = batches(items, batch_size)
        for numbers in track(order, f"{self.vlm.name}: {what}", len(order), show):
            batch = self.read_batch([items[number] for number in numbers], max_new_tokens)
            answers |= zip(numbers, batch, strict=True)
        return [answers[number] for number in range(len(items))]

    def read_batch(self, items: Sequence[Item], max_new_tokens: int) -> list[Answer]:
        """The answers to items that are asked as one batch."""
        together = any(steerer.together for steerer, _ in self.steerings)
        if together and len(items) > 1:
            return [answer for item in items for answer in self.read_batch([item], max_new_tokens)]
        pictures = [picture for item in items for picture in item.images]
        apart = not together or not self.cache.from_features
        visible: Iterator[ImageOrFeatures] = iter(self.see(pictures) if apart else self._seen_together(pictures))
        with ExitStack() as live:
            if pictures:
                for steerer, alpha in self._steerings(in_text=True) if self.cache.from_features else self.steerings:
                    live.enter_context(steerer.attach(self.vlm, alpha, force=True))  # checked by `steered`
            return self.vlm.read(
                [item.prompt_for(self.vlm.family.name) + self.suffix for item in items],
                [[next(visible) for _ in item.images] for item in items],
                [tuple(item.options) for item in items],
                max_new_tokens,
                len(items),
            )


def batches(items: Sequence[Item], size: int) -> list[list[int]]:
    """The items' numbers in batches of prompts of similar length, so that little padding is needed.

    Items about the same pictures stay in one batch if they fit, because they may share what the model computes of the
    pictures. Batches depend on the items alone, because the last digit of an answer's probability may depend on its
    batch.
    """
    errors.BATCH.check("the batch size", size)
    by_pictures: dict[tuple[str, ...], list[int]] = {}
    for number, item in enumerate(items):
        by_pictures.setdefault(tuple(picture.digest for picture in item.images), []).append(number)
    words = [len(item.prompt.split()) for item in items]
    groups = [[number] for number in by_pictures.pop((), [])] + list(by_pictures.values())
    order: list[list[int]] = [[]]
    groups.sort(key=lambda group: (len(items[group[0]].images), max(words[i] for i in group), group[0]))
    for group in groups:
        if len(order[-1]) + len(group) > size >= len(group):
            order.append([])
        for number in sorted(group, key=lambda i: (words[i], i)):
            if len(order[-1]) == size:
                order.append([])
            order[-1].append(number)
    return [batch for batch in order if batch]


def live_questions(cache: FeatureCache, items: Sequence[Item]) -> list[LiveQuestion]:
    """The items as questions with the features of their pictures. Use discovery pictures: their answers are learned.

    Answers about one person are compared between values within a question and occupation. Of two people with two
    options, each is chosen or not, and that is compared between the two values shown; two people of one value are not
    compared. Items that are about no attribute are asked, too: on them the method keeps the model's answers.
    """
    questions = []
    for item in items:
        if not item.options:
            raise InputError(f"{item.key!r} has no options, and a method that learns from answers needs them")
        images = cache.features(item.images)
        prompt = item.prompt_for(cache.vlm.family.name)
        questions.append(LiveQuestion(prompt, tuple(images), tuple(item.options), _people(item)))
    return questions


def _people(item: Item) -> tuple[PersonShown, ...]:
    if not item.about:
        return ()
    values = [attributes[item.about] for attributes in item.attributes]
    question = "/".join([item.question, item.context.get("occupation", "")])
    if len(values) == 1:
        return (PersonShown(question, values[0], tuple(item.options)),)
    if len(values) != 2 or len(item.options) != 2:
        raise InputError(f"{item.key!r} shows {len(values)} people with {len(item.options)} options: at most two")
    if values[0] == values[1]:
        return ()
    question = "/".join([question, *sorted(values)])
    outcomes = ("chosen", "not chosen")
    return PersonShown(question, values[0], outcomes), PersonShown(question, values[1], outcomes[::-1])
