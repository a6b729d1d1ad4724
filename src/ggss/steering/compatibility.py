"""Which model a steerer was made for: what its `source` says is compared with the model it is to act in.

A steerer may be used in another dtype, with other attention and other library versions. Another version of
transformers may know other settings, and then those that both know are compared. A steerer that does not say its
model, such as one from a `.pt` file, is unverified: every use says so unless it is forced.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from ggss.errors import problems
from ggss.models.sites import in_text
from ggss.version import library_versions

if TYPE_CHECKING:
    from ggss.models import Vlm
    from ggss.steering.steerer import Steerer


log = logging.getLogger(__name__)

LEARNED_FROM = "questions"  # of a source: how many a live model answered for the fit
FORCED = " (allowed by --any-model, or force=True)"
_BY_VERSION = "tokenizer"  # a hash of what the tokenizers library writes, which another version writes otherwise


def fitting_paths(
    steerer: "Steerer", vlm: "Vlm | nn.Module", force: bool = False, weights: str | None = None
) -> dict[str, str]:
    """The module path of each of the steerer's sites in a model; InputError as `Steerer.check` says."""
    from ggss.models import Vlm, family_of, resolve
    from ggss.models.families import known_family
    from ggss.models.sites import is_layer, layer_path, layer_width
    from ggss.models.wrappers import unwrapped

    model: Any = vlm.model if isinstance(vlm, Vlm) else unwrapped(vlm)
    made = steerer.source.get("paths")
    recorded: dict[str, str] = made if isinstance(made, dict) else {}
    family = family_of(model, paths=recorded)
    known = family.site_paths(model.config)
    paths = known | {site: layer_path(model, site) for site in steerer.operators if is_layer(site)}
    found = [f"site {site!r}: the model has {', '.join(known)}" for site in steerer.operators if site not in paths]
    for site, chosen in steerer.operators.items():
        module = resolve(model, paths[site]) if site in paths else None
        width = layer_width(model.config, site) if is_layer(site) else getattr(module, "out_features", None)
        if width and width != chosen.width:
            found.append(f"width at {site}: the steerer has {chosen.width}, the model {width}")
    if known_family(model.config) is None:  # of a family in the table, another version may name modules otherwise
        found += [
            f"site {site!r}: the steerer was made at {recorded[site]}, the model has it at {paths[site]}"
            for site in steerer.operators
            if site in paths and recorded.get(site, paths[site]) != paths[site]
        ]
    if not force and not found:
        processor = vlm.processor if isinstance(vlm, Vlm) else None
        found += differences(steerer, model, processor, family.name, weights)
        if not found and unverified(steerer):
            log.warning(
                "the %s steerer does not record which model it was made for, so only its width was compared: it may "
                "have been made for another model. Convert its checkpoint again with --model, or say that you know "
                "(--any-model, or force=True)",
                steerer.method,
            )
    if found:
        raise problems(
            f"the {steerer.method} steerer for {steerer.source.get('model', 'an unnamed model')} "
            "does not fit this model",
            found,
        )
    return {site: paths[site] for site in steerer.operators}


def unverified(steerer: "Steerer") -> bool:
    """Whether a steerer does not tell which weights it was made with. One that changes no activation needs none."""
    acts = any(chosen.kind != "identity" for chosen in steerer.operators.values())
    return acts and steerer.source.get("fingerprint") is None


def compare_sizes(steerer: "Steerer", max_side: int | None) -> None:
    """Log a warning if pictures have another cap on their size than those that the steerer was fitted on.

    One that does not record its cap is not compared.
    """
    fitted = steerer.source.get("max_side", max_side)
    if fitted != max_side:
        log.warning(
            "the %s steerer was fitted on pictures %s, and these are %s: their tokens differ. Give --max-side the "
            "value of its discovery, or discover it again",
            steerer.method,
            _capped(fitted),
            _capped(max_side),
        )


def _capped(max_side: object) -> str:
    return "of any size" if max_side is None else f"of at most {max_side} pixels on the longer side"


def differences(
    steerer: "Steerer", model: nn.Module, processor: Any, family: str, weights: str | None = None
) -> list[str]:
    """What differs between a steerer's model and this one: the family, the weights that decide what it acts on, and
    the settings of these. All of it is allowed by `force`.

    processor: None if it is not known; then nothing of it is compared. weights: the fingerprint of the vision weights
    of a model that another engine holds; it does not tell the text weights, so what needs them does not fit.
    """
    from ggss.models.identity import fingerprint, text_fingerprint, text_settings, visual_settings

    source = steerer.source
    pairs = {
        "family": (source.get("family"), family),
        "vision weights": (source.get("fingerprint"), weights or fingerprint(model)),
    }
    compared = {"settings": visual_settings}
    # The text model decides what there is to steer inside it, and what a method has learned from answers.
    if any(map(in_text, steerer.operators)) or LEARNED_FROM in source:
        known = text_fingerprint(model) if weights is None else "weights that this engine does not tell"
        pairs["text weights"] = source.get("text_fingerprint"), known
        compared["text_settings"] = text_settings
    if source.get("family") == family:
        same = steerer.versions.get("transformers") == library_versions()["transformers"]
        for name, seen in compared.items():
            if isinstance(made := source.get(name), dict):
                pairs |= _settings(made, seen(model, processor), same, processor is not None)
    return [
        f"{what}: the steerer was made with {own!s:.40}, the model has {its!s:.40}{FORCED}"
        for what, (own, its) in pairs.items()
        if own is not None and own != its
    ]


def _settings(
    made: Mapping[str, Any], seen: Mapping[str, Any], same_version: bool, prepared: bool
) -> dict[str, tuple[Any, Any]]:
    """By name, the settings that are compared. prepared: whether those of the processor are known."""
    names = {name for name in (*made, *seen) if prepared or name.startswith(("config.", "text_config."))}
    if not same_version:
        names = (names & made.keys() & seen.keys()) - {_BY_VERSION}
    return {name: (made.get(name, "none"), seen.get(name, "none")) for name in sorted(names)}
