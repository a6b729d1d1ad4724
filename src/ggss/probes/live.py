"""Probe items as questions for a method that learns from a live model (`ggss.fit_live`)."""

from collections.abc import Sequence

from ggss.errors import InputError
from ggss.methods.live_questions import LiveQuestion, PersonShown
from ggss.models.feature_cache import FeatureCache
from ggss.probes.base import Item


def live_questions(cache: FeatureCache, items: Sequence[Item]) -> list[LiveQuestion]:
    """The items, about pictures as the model sees them. Give it discovery pictures: it learns their answers.

    Answers about one person are compared between values within a question and occupation. Of two people with two
    options, each is chosen or not, and that is compared between the two values shown; two people of one value are not
    compared. Items that are about no attribute are asked, too, and only keep the model as it is.
    """
    found = []
    for item in items:
        if not item.options:
            raise InputError(f"{item.key!r} has no options, and a method that learns from answers needs them")
        images = cache.features(item.images)
        found.append(LiveQuestion(item.prompt, tuple(images), tuple(item.options), _people(item)))
    return found


def _people(item: Item) -> tuple[PersonShown, ...]:
    if not item.about:
        return ()
    values = [own[item.about] for own in item.attributes]
    question = "/".join([item.question, item.context.get("occupation", "")])
    if len(values) == 1:
        return (PersonShown(question, values[0], tuple(item.options)),)
    if len(values) != 2 or len(item.options) != 2:
        raise InputError(f"{item.key!r} shows {len(values)} people with {len(item.options)} options: at most two")
    if values[0] == values[1]:
        return ()
    question = "/".join([question, *sorted(values)])
    said = ("chosen", "not chosen")
    return PersonShown(question, values[0], said), PersonShown(question, values[1], said[::-1])
