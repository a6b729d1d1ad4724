"""`make sites`: docs/sites.md from answers of studies/sites.yaml, `python -m experiments.tools.sites STUDY_FOLDER`.

The page can be written from a study that is not finished: the cells that are missing are named on it.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from ggss.analysis.comparison import Comparison
from ggss.models.sites import in_text
from ggss.smallworld.demo import load_model
from ggss.steering.doctor import leak
from ggss.study.results import Results

PAGE = Path(__file__).parents[2] / "docs" / "sites.md"
BIAS, CAPABILITY, ATTRIBUTE, ALPHA = ("mcq", "2afc"), "smallstar", "race", 1.0

Leaks = dict[str, dict[str, float]]
"""By model and site, the share of an image's effect that passes around the site."""


def cells(results: Results, model: str, label: str) -> list[Comparison | None]:
    """The two bias tasks and the capability, each beside the unsteered model; None where answers are missing."""
    bias = [results.comparison(model, label, task, ALPHA) for task in BIAS]
    return [*bias, results.comparison(model, label, CAPABILITY, ALPHA, ATTRIBUTE)]


def runs_on(results: Results, model: str, label: str) -> bool:
    limited = results.plan.method(label).models
    return limited is None or model in limited


def changed(found: Comparison | None) -> str:
    change = found.change() if found else None
    return "-" if change is None else f"{change.estimate:+.0f} % [{change.low:+.0f}, {change.high:+.0f}]"


def kept(found: Comparison | None) -> str:
    """Points of capability; "same" where the change is shown to be within the margin."""
    if found is None:
        return "-"
    change = found.accuracy().change
    text = f"{100 * change.difference:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    return text + (", same" if found.accuracy().same.equivalent else "")


def parts_of(results: Results) -> tuple[list[str], list[str]]:
    """The methods and the sites of the plan: a label is `METHOD at SITE`."""
    labels = [label.split(" at ") for label in results.methods[1:]]
    return list(dict.fromkeys(method for method, _ in labels)), list(dict.fromkeys(site for _, site in labels))


def leaks(results: Results) -> Leaks:
    methods, sites = parts_of(results)
    found: Leaks = {}
    for model in results.models:
        vlm = load_model(model)
        here = [site for site in sites if any(runs_on(results, model, f"{own} at {site}") for own in methods)]
        found[model] = {site: leak(vlm, site) for site in here}
    return found


def table(results: Results, model: str, measured: Mapping[str, float], methods: list[str]) -> list[str]:
    lines = ["| site | leak | method | MCQ | 2AFC | SmallStar, points |", "| --- | --- | --- | --- | --- | --- |"]
    for site, share in measured.items():
        for method in methods:
            label = f"{method} at {site}"
            if label in results.methods and runs_on(results, model, label):
                *bias, capability = cells(results, model, label)
                if not any((*bias, capability)):
                    continue  # it is named as missing
                shown = [*map(changed, bias), kept(capability)]
                lines.append(f"| `{site}` | {share:.0%} | {method} | {' | '.join(shown)} |")
    return lines


def by_site(results: Results, sites: list[str], methods: list[str]) -> list[str]:
    """For each site and method, over the models that are no controls: how often what is wanted was shown."""
    models = [model.name for model in results.plan.models if not model.control]
    lines = [
        "| site | method | mean change of bias | bias lower, of tasks | capability same, of models |",
        "| --- | --- | --- | --- | --- |",
    ]
    for site in sites:
        for method in methods:
            label = f"{method} at {site}"
            if label not in results.methods:
                continue
            found = [cells(results, model, label) for model in models if runs_on(results, model, label)]
            changes = [change for *bias, _ in found for one in bias if one and (change := one.change())]
            same = [own.accuracy().same.equivalent for *_, own in found if own]
            if not changes:
                continue
            mean = mean_change(results, label)
            lower = sum(change.high < 0 for change in changes)
            lines.append(
                f"| `{site}` | {method} | {mean:+.0f} % | {lower} of {len(changes)} | {sum(same)} of {len(same)} |"
            )
    return lines


def missing(results: Results) -> list[str]:
    """By model, the cells without all of their answers."""
    found = []
    for model in results.models:
        labels = [label for label in results.methods[1:] if runs_on(results, model, label)]
        if gaps := [label for label in labels if None in cells(results, model, label)]:
            found.append(f"{model.removeprefix('small-world/')}: {', '.join(gaps)}")
    return found


def mean_change(results: Results, label: str) -> float | None:
    """Of the bias, over tasks and the models that are no controls."""
    models = [
        model.name for model in results.plan.models if not model.control and runs_on(results, model.name, label)
    ]
    found = [own.change() for model in models for own in cells(results, model, label)[:2] if own]
    changes = [change.estimate for change in found if change]
    return sum(changes) / len(changes) if changes else None


def reading(results: Results, measured: Leaks) -> str:
    """What the numbers say: the judgements are written by hand, the numbers are filled in."""
    (first, *_), sites = parts_of(results)

    def listed(wanted: list[str]) -> str:
        means = [(site, mean_change(results, f"{first} at {site}")) for site in wanted]
        return ", ".join(f"{mean:+.0f} % at `{site}`" for site, mean in means if mean is not None)

    before = [site for site in sites if not in_text(site) and site != "all"]
    inside = [site for site in sites if in_text(site)]
    past = [share for own in measured.values() for site, share in own.items() if in_text(site)]
    return f"""Steer before the text model. Over the models with a planted bias, `{first}` changes the bias on average
by {listed(before)}.
In the text model it is {listed(inside)}:
there {min(past):.0%} to {max(past):.0%} of what an image does to the answer has been read past the site already (its
leak), and steering costs little because it does little.
Which site before the text model is best is not settled here: the intervals overlap. For `{first}` the projector's
output, the published site, is the one where the capability is most often shown to be unchanged; with this many items
that is shown only where hardly any answer changes. The published 2AFC metric uses only pairs whose two orders name
the same picture, so a few answers decide it where steering works."""


def page(results: Results, measured: Leaks) -> str:
    plan, (methods, sites) = results.plan, parts_of(results)
    parts = [
        f"""# Where to steer, in the small world

Written by `make sites` from `studies/sites.yaml`; do not edit. Race steering at strength {ALPHA:g}, at one site at a
time (`all`: every projector of the model, which differs from `projection-mlp2` on qwen3-vl only). Change of the
bias in percent with 95 % intervals over identities, and of SmallStar's accuracy in points; *same* where the change is
shown to be within the margin of {100 * results.statistics.margin:g} points (TOST). About {plan.limit} items a task,
on identities that no method was fitted on; seed {plan.statistics.seed}. Nothing is selected, and nothing is corrected
for the number of rows.

`vision-block2` is the last block of these models. `lm-layer3`, their last layer, is left out: after it no token reads
the image's rows. The leak is the share of the difference which two images make in the next token's logits that is
left while the site's rows are zero. In a text layer it has what later tokens have read from the image in the layers
up to this one; in qwen3-vl also what deepstack takes past the site. More than 100 % is possible: zeros are an unusual
input.

{reading(results, measured)}

## By site

Over the models that are no controls: the mean of the estimates, in how many tasks the whole interval is below 0, and
in how many models the capability is shown to be the same.
""",
        "\n".join(by_site(results, sites, methods)) + "\n",
    ]
    for model in plan.models:
        before = [results.comparison(model.name, "none", task) for task in (*BIAS, CAPABILITY)]
        values = [one.before.value() if one else float("nan") for one in before]
        control = ", the control: its bias shares its directions with what it must see" if model.control else ""
        parts.append(
            f"## {model.name.removeprefix('small-world/')}{control}\n\nUnsteered: MCQ {1e3 * values[0]:.0f} x 10^-3, "
            f"2AFC {values[1]:.2f}, SmallStar {values[2]:.1%}.\n"
        )
        parts.append("\n".join(table(results, model.name, measured[model.name], methods)) + "\n")
    if gaps := missing(results):
        parts.append("## Missing\n\nNot all answered yet, `make sites` goes on:\n\n- " + "\n- ".join(gaps) + "\n")
    parts.append("How sites inside the tower and the text model are steered: [steering.md](steering.md).\n")
    return "\n".join(parts)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the models are tiny
    found = Results.load(sys.argv[1])
    PAGE.write_text(page(found, leaks(found)), encoding="utf-8")
