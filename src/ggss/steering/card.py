"""The README of a steerer, written from its own fields."""

import json
from typing import TYPE_CHECKING

from ggss.escaping import code, markdown

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

REMOVES = """\
It removes what counterfactual images showed of one perceived attribute at one layer. It does not make a model fair
and does not remove what its weights know. At high strength the model can no longer name the attribute when it is
asked. Measure bias, capability and recognition on your own task before you choose a strength."""
REMOVES_NOTHING = """\
It changes no activation, at any strength: nothing that the model sees of a person is removed. Measure bias and
capability on your own task with it and without it."""


MEASURED = {"effective_rank", "variance_share", "chance_share", "split_half_cosines"}

NOT_MEASURED = "what all tokens still show was not measured, because they were not kept (`--keep-tokens`)."


def card(steerer: "Steerer") -> str:
    """Markdown for people who use the artefact and cannot ask its author."""
    source = steerer.source
    attribute = " x ".join([steerer.attribute] if isinstance(steerer.attribute, str) else steerer.attribute)
    alpha = steerer.recommended_alpha

    def known(name: str) -> str:
        return code(str(source.get(name, "unknown")))

    facts = {
        "method": f"{code(steerer.method)} {markdown(str(steerer.options or ''))}",
        "attribute": markdown(f"{attribute}: {', '.join(map(str, steerer.values))}"),
        "sites": ", ".join(f"{code(site)} (width {op.width})" for site, op in steerer.operators.items()),
        "model": f"{known('model')} {markdown(str(source.get('revision') or ''))}",
        "fingerprint of the vision path": known("fingerprint"),
        "discovery images": f"{source.get('images', 'unknown')}, hash {known('data_hash')}",
        "image backend": known("backend"),
        "recommended alpha": "none measured: try 0.25 to 1.5 on your own probes"
        if alpha is None
        else f"{alpha:g}; used when no other is given",
        "versions": ", ".join(f"{name} {number}" for name, number in steerer.versions.items()) or "unknown",
    }
    suffix = steerer.prompt_suffix
    if suffix:
        facts["appended to every prompt"] = code(json.dumps(suffix, ensure_ascii=False))
    removes = any(op.kind != "identity" for op in steerer.operators.values())
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""---
library_name: ggss
tags: [ggss, activation-steering, fairness]
---
# A {markdown(steerer.method)} steerer for {markdown(attribute)}

| | |
| --- | --- |
{table}

## What discovery measured

{_diagnostics(steerer)}

## How to use it

```python
import ggss

vlm = ggss.load_vlm({json.dumps(source.get("model", "MODEL"))})
steerer = ggss.Steerer.from_pretrained("THIS FOLDER")
with steerer.attach(vlm, alpha={steerer.strength()}):
    print(vlm.answer(["What does this person earn?"{" + steerer.prompt_suffix" if suffix else ""}], [[image]]))
```

## What it does not do

{REMOVES if removes else REMOVES_NOTHING}
"""


def _diagnostics(steerer: "Steerer") -> str:
    lines = []
    for site, found in steerer.diagnostics.items():
        if {name for name, value in found.items() if value is not None} >= MEASURED:
            cosines = ", ".join(f"{c:.2f}" for c in found["split_half_cosines"]) or "too few contexts"
            transfer = found.get("transfer")
            lines.append(
                f"- {code(site)}: effective rank {found['effective_rank']:.1f}; {found['variance_share']:.1%} of the "
                f"variance that is not the attribute's inside the subspace (chance {found['chance_share']:.1%}); "
                + (f"transfer between halves {transfer:.0%}; " if transfer is not None else "")
                + f"split-half cosines {cosines}."
            )
        if read := found.get("all_tokens"):
            lines.append(
                f"- {code(site)}: a probe of all tokens names the attribute of people it has not seen in "
                f"{read['before']:.0%} of the images before and {read['after']:.0%} after steering at alpha 1 "
                f"(guessing: {read['chance']:.0%}); tokens move by {read['displacement']:.0%} of their length."
            )
        elif site in steerer.operators and steerer.operators[site].kind != "identity":
            lines.append(f"- {code(site)}: {NOT_MEASURED}")
        lines += [f"- {markdown(text)}" for text in found.get("notes", [])]
    lines += [f"- **Warning.** {markdown(text)}" for text in steerer.warnings]
    return "\n".join(lines) or "Nothing was recorded."
