"""Whether a steerer fits a model: its `source` is compared with the model that it is to act in.

A steerer may be used in another dtype, with other attention and other library versions. Another version of
transformers may have other settings; then only settings that both versions have are compared. A steerer that does not
record its model, such as one from a `.pt` file, is unverified: every use says so unless it is forced.
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

LEARNED_FROM = "questions"  # the key of a source that says how many questions a live model answered for the fit
ONLY_TOGETHER = (
    "steers the pictures of a prompt by their common mean (pooled_over=prompt), and a server steers each picture on "
    "its own: fit it with pooled_over=image"
)
FORCED = " (allowed by --any-model, or force=True)"
_BY_VERSION = "tokenizer"  # a hash of what the tokenizers library writes, which differs between its versions


def fitting_paths(
    steerer: "Steerer", vlm: "Vlm | nn.Module", force: bool = False, weights: str | None = None
) -> dict[str, str]:
    """The module path of each site of the steerer in a model; InputError as in `Steerer.check`."""
    from ggss.models import Vlm, family_of, resolve
    from ggss.models.families import known_family
    from ggss.models.sites import is_layer, layer_path, layer_width
    from ggss.models.wrappers import unwrapped

    model: Any = vlm.model if isinstance(vlm, Vlm) else unwrapped(vlm)
    source_paths = steerer.source.get("paths")
    recorded: dict[str, str] = source_paths if isinstance(source_paths, dict) else {}
    family = family_of(model, paths=recorded)
    known = family.site_paths(model.config)
    paths = known | {site: layer_path(model, site) for site in steerer.operators if is_layer(site)}
    mismatches = [
        f"site {site!r}: the model has {', '.join(known)}" for site in steerer.operators if site not in paths
    ]
    for site, operator in steerer.operators.items():
        module = resolve(model, paths[site]) if site in paths else None
        width = layer_width(model.config, site) if is_layer(site) else getattr(module, "out_features", None)
        if width and width != operator.width:
            mismatches.append(f"width at {site}: the steerer has {operator.width}, the model {width}")
    if known_family(model.config) is None:  # of a family in the table, another version may name modules otherwise
        mismatches += [
            f"site {site!r}: the steerer was made at {recorded[site]}, the model has it at {paths[site]}"
            for site in steerer.operators
            if site in paths and recorded.get(site, paths[site]) != paths[site]
        ]
    if not force and not mismatches:
        processor = vlm.processor if isinstance(vlm, Vlm) else None
        mismatches += differences(steerer, model, processor, family.name, weights)
        if not mismatches and unverified(steerer):
            log.warning(
                "the %s steerer does not record which model it was made for, so only its width was compared: it may "
                "have been made for another model. Convert its checkpoint again with --model, or confirm that it "
                "fits this one (--any-model, or force=True)",
                steerer.method,
            )
    if mismatches:
        raise problems(
            f"the {steerer.method} steerer for {steerer.source.get('model', 'an unnamed model')} "
            "does not fit this model",
            mismatches,
        )
    return {site: paths[site] for site in steerer.operators}


def unverified(steerer: "Steerer") -> bool:
    """Whether a steerer does not record which weights it was made with. One that changes no activation needs none."""
    changes_rows = any(operator.kind != "identity" for operator in steerer.operators.values())
    return changes_rows and steerer.source.get("fingerprint") is None


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
    """What differs between a steerer's model and this one, a sentence each; all of it is allowed by `force`.

    Compared are the family, the weights that decide what the steerer acts on, and their settings.
    processor: None if it is not known; then it is not compared. weights: the fingerprint of the vision weights of a
    model that another engine holds. The text weights are then unknown, so a steerer that needs them does not fit.
    """
    from ggss.models.identity import fingerprint, text_fingerprint, text_settings, visual_settings

    source = steerer.source
    pairs = {
        "family": (source.get("family"), family),
        "vision weights": (source.get("fingerprint"), weights or fingerprint(model)),
    }
    settings_of = {"settings": visual_settings}
    # The text model decides what there is to steer inside it, and what a method has learned from answers.
    if any(map(in_text, steerer.operators)) or LEARNED_FROM in source:
        text_weights = text_fingerprint(model) if weights is None else "weights that this engine does not tell"
        pairs["text weights"] = source.get("text_fingerprint"), text_weights
        settings_of["text_settings"] = text_settings
    if source.get("family") == family:
        same_version = steerer.versions.get("transformers") == library_versions()["transformers"]
        for name, settings in settings_of.items():
            if isinstance(recorded := source.get(name), dict):
                pairs |= _settings(recorded, settings(model, processor), same_version, processor is not None)
    return [
        f"{what}: the steerer was made with {recorded!s:.40}, the model has {actual!s:.40}{FORCED}"
        for what, (recorded, actual) in pairs.items()
        if recorded is not None and recorded != actual
    ]


def _settings(
    recorded: Mapping[str, Any], actual: Mapping[str, Any], same_version: bool, with_processor: bool
) -> dict[str, tuple[Any, Any]]:
    """The settings to compare, by name, as (recorded, actual). with_processor: those of the processor, too."""
    names = {name for name in (*recorded, *actual) if with_processor or name.startswith(("config.", "text_config."))}
    if not same_version:
        names = (names & recorded.keys() & actual.keys()) - {_BY_VERSION}
    return {name: (recorded.get(name, "none"), actual.get(name, "none")) for name in sorted(names)}
