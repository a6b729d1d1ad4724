"""What a plan needs of a model, before a weight is loaded: memory, room for features, prompts that are too long."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ggss.data.picture import size_of
from ggss.errors import InputError
from ggss.models.families import known_family
from ggss.models.loading import load_description
from ggss.models.placement import PLACES, placement
from ggss.models.prompt_length import PromptLengths
from ggss.models.sites import MLP1
from ggss.models.size import ModelSize, free_memory
from ggss.probes import Item
from ggss.study.checking import CheckedPlan
from ggss.study.plan import Plan
from ggss.study.plan_items import PlanItems


@dataclass(frozen=True)
class TooLong:
    """A task some of whose prompts, with their answers, are longer than the model's context."""

    task: str
    prompts: int
    of: int
    tokens: int
    context: int


@dataclass(frozen=True)
class Footprint:
    """A model in a plan, in bytes. cache: keys and values of a batch of the longest prompts (`tokens` each).

    features: of all pictures, in memory up to a limit and then on disk; None for a family that keeps images. free: on
    the device, None if it does not say. fits: how many of the longest prompts fit beside the weights.
    """

    model: str
    device: str
    dtype: str
    weights: int
    tokens: int
    batch: int
    cache: int
    features: int | None
    free: int | None
    fits: int | None
    too_long: tuple[TooLong, ...]


def footprints(checked: CheckedPlan) -> tuple[list[Footprint], dict[str, str]]:
    """Of all models; and by model, why it is not known: without a network, a model of the hub may not be."""
    found, unknown = [], {}
    for model in checked.plan.models:
        try:
            found.append(footprint(checked.plan, model.name, checked.asked))
        except InputError as error:
            unknown[model.name] = str(error)
    return found, unknown


def footprint(plan: Plan, name: str, items: PlanItems) -> Footprint:
    """From the model's config and processor, and the sizes of the pictures."""
    wanted = plan.model(name)
    config, processor = load_description(name, wanted.trust_remote_code)
    size, lengths = ModelSize.of(config), PromptLengths(processor)
    place = placement(config, wanted.dtype, wanted.device_map, name)
    longest, too_long = _longest(plan, items, lengths, size.context)
    free = _free(place.device)
    family = known_family(config)
    sites = [site for site in family.site_paths(config) if site != MLP1] if family and family.pack else []
    seen = sum(lengths.image_tokens(size_of(picture)) for picture in items.pictures())
    return Footprint(
        model=name,
        device=str(place.device),
        dtype=str(place.dtype).removeprefix("torch."),
        weights=size.weights(place.dtype),
        tokens=longest,
        batch=plan.questions_together,
        cache=size.cache(longest, place.dtype) * plan.questions_together,
        features=seen * size.hidden * place.dtype.itemsize * len(sites) if sites else None,
        free=free,
        fits=None if free is None else size.batch(longest, place.dtype, free),
        too_long=tuple(too_long),
    )


def longest_prompt(plan: Plan, items: PlanItems, lengths: PromptLengths) -> int:
    """The tokens of the plan's longest prompt with its answer."""
    return _longest(plan, items, lengths, None)[0]


def prompt_tokens(items: Sequence[Item], max_new_tokens: int, lengths: PromptLengths) -> list[int]:
    """The tokens of each item's prompt and of the longest answer to it."""
    asked = [(item.prompt, [size_of(picture) for picture in item.images]) for item in items]
    return [length + max_new_tokens for length in lengths(asked)]


def _longest(plan: Plan, items: PlanItems, lengths: PromptLengths, context: int | None) -> tuple[int, list[TooLong]]:
    found, longest = [], 0
    for task in plan.tasks:
        tokens = prompt_tokens(items.items(task), items.max_new_tokens(task), lengths)
        longest = max(longest, *tokens)
        if context and (over := [length for length in tokens if length > context]):
            found.append(TooLong(task, len(over), len(tokens), max(over), context))
    return longest, found


def _free(device: object) -> int | None:
    """On a device; for a model that is spread, on all accelerators together."""
    if device not in PLACES:
        return free_memory(str(device)) if isinstance(device, str) else None
    if not torch.accelerator.is_available():
        return free_memory("cpu")
    each = [
        free_memory(f"{torch.accelerator.current_accelerator()}:{i}") for i in range(torch.accelerator.device_count())
    ]
    return None if None in each else sum(one for one in each if one is not None)
