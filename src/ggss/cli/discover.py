"""`ggss discover`: from counterfactual images to a steerer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ggss import errors
from ggss.cli.arguments import Force, Json, Loading, MaxSide, Model, choices, loads_model, options

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer


DEFAULT, AUTO = "ggss", "auto"


def _checked_method(name: str) -> str:
    """The name of a method. An unknown one is refused before anything else is checked."""
    if name not in (DEFAULT, AUTO):
        from ggss.methods import registry

        registry.get(name)
    return name


@loads_model
def discover(
    model: Model,
    images: Annotated[
        str,
        typer.Option(
            help="A manifest (CSV or JSON lines with a path column), a pattern of file names with the columns in "
            "braces, or a registered set's name."
        ),
    ],
    attribute: Annotated[
        list[str], typer.Option(help="The attribute to remove; race,gender removes both, and their intersections.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write the steerer to.")],
    attributes: Annotated[
        str,
        typer.Option(help="The columns that are varied, comma separated; all that are not held fixed by default."),
    ] = "",
    context: Annotated[
        str,
        typer.Option(help="The columns that are held fixed, comma separated; occupation and identity by default."),
    ] = "",
    unpaired: Annotated[
        bool,
        typer.Option(
            "--unpaired",
            help="The pictures have labels and no versions of a person. They are matched by --context, or by all "
            "other columns if neither --attributes nor --context is given.",
        ),
    ] = False,
    ordered: Annotated[
        list[str] | None,
        typer.Option(help="An attribute that is a number, such as an age in years: one direction, by regression."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help='A name from `ggss methods`; or "auto": method and k are chosen on held-out contexts.',
            callback=_checked_method,
            is_eager=True,
        ),
    ] = DEFAULT,
    option: Annotated[list[str] | None, typer.Option(help="A method option, NAME=VALUE; may be repeated.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Hold out images, COLUMN=VALUE[,VALUE]; may be repeated.")
    ] = None,
    neutral: Annotated[
        Path | None,
        typer.Option(
            help="A folder of pictures without people, for a method that uses them (pace): how tokens vary "
            "elsewhere.",
            show_default=False,
        ),
    ] = None,
    sites: Annotated[str, typer.Option(help='Where to steer: "projection-mlp2" (the paper\'s), "all", ...')] = "",
    keep_tokens: Annotated[
        bool,
        typer.Option(
            "--keep-tokens", help="Keep all tokens on disk, to say what a probe still reads from them after steering."
        ),
    ] = False,
    max_side: MaxSide = None,
    pooling: Annotated[
        Literal["kept", "release"],
        typer.Option(
            help="A picture's row: the mean of the kept tokens, or of all tokens in the model's dtype as in the "
            "authors' code.",
        ),
    ] = "kept",
    batch_size: Annotated[int, typer.Option(help="Images per pass of the vision tower.", **errors.BATCH.bounds)] = 8,
    force: Force = False,
    *,
    loading: Loading,
    as_json: Json = False,
) -> None:
    """Find the subspace that carries an attribute and write a steerer.

    A site is a place in the model whose output is steered; k is the number of directions that carry the attribute
    there. Methods have their own k: --option k=4 chooses another.

    A steerer that is in the folder is replaced; a folder with anything else needs --force. The images are checked
    before the model is loaded. The model's activations are kept in a cache, so that a second run, or another method,
    starts immediately.

    Without versions of a person, use --unpaired: pictures are compared within groups that agree in the other columns,
    and how far those columns predict the attribute is said.

    A pattern names columns by braces: --images 'faces/{occupation}/{identity}/{race}_{gender}.png'

    Example: ggss discover small-world/llava-vicuna --images faces/manifest.csv --attribute race -o race-steerer
    """
    from ggss.data.counterfactuals import Counterfactuals, folder_of_pictures
    from ggss.errors import InputError, keeps
    from ggss.files import check_folder
    from ggss.methods import registry
    from ggss.steering.artefact import holds_steerer

    method_options = options(option or [])
    chosen = registry.get(method)
    registry.checked_options(chosen, method_options)
    if chosen.fit_live is not None:
        raise InputError(f"{method} learns from a live model's answers: use ggss.fit_live in Python")
    check_folder(out, "ggss discover", holds_steerer, force)
    attribute = [name for names in attribute for name in _columns(names) or []]
    varied = _columns(attributes) or (attribute if unpaired and not context else None)
    registry.check_pairing(chosen, unpaired, ordered or [])
    faces = Counterfactuals.load(
        images, varied, _columns(context), choices(exclude or []), unpaired=unpaired, ordered=ordered or []
    ).shrunk(max_side)
    faces.validate(attribute)
    if neutral is not None and not chosen.takes_neutral:
        using = [name for name in registry.names() if registry.get(name).takes_neutral]
        raise InputError(f"{method} does not use neutral pictures; leave out --neutral, or use {', '.join(using)}")
    registry.check_neutral_given(chosen, neutral is not None)
    neutral_pictures = None if neutral is None else folder_of_pictures(neutral).shrunk(max_side)

    from ggss.activations import SITE
    from ggss.activations.collect import collect
    from ggss.steering.fitting import fit

    vlm = loading.load(model)
    with keeps("the activations so far are in the cache, and the same command goes on from there"):
        where = sites or ("all" if method == AUTO else SITE)
        summarise = chosen.takes_statistics and not keep_tokens and "parts" not in method_options
        with_tokens = keep_tokens or (chosen.needs_tokens and not summarise)
        acts = collect(
            vlm,
            faces,
            where,
            keep_tokens=with_tokens,
            summarise=summarise,
            batch_size=batch_size,
            pooling=pooling,
        )
        neutral_acts = None
        if neutral_pictures is not None:
            neutral_acts = collect(
                vlm, neutral_pictures, where, keep_tokens=with_tokens, summarise=summarise, batch_size=batch_size
            )
    target = attribute[0] if len(attribute) == 1 else tuple(attribute)
    steerer = fit(method, acts, attribute=target, neutral=neutral_acts, **method_options)
    steerer.save_pretrained(out)
    if as_json:
        print(json.dumps(described(steerer, out), indent=2))
    else:
        show(steerer, out)


def _columns(text: str) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] or None


def described(steerer: "Steerer", out: Path) -> dict[str, Any]:
    from ggss.steering.steerer import MATCHING

    return {
        "steerer": str(out),
        "method": steerer.method,
        "attribute": steerer.attribute,
        "values": list(steerer.values),
        "sites": {site: operator.width for site, operator in steerer.operators.items()},
        "images": steerer.source.get("images"),
        "ordered": steerer.source.get("ordered", []),
        "matching": steerer.source.get(MATCHING),
        "diagnostics": steerer.diagnostics,
        "warnings": steerer.warnings,
    }


def show(steerer: "Steerer", out: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from ggss.steering.artefact import MatchingEntry
    from ggss.steering.steerer import MATCHING
    from ggss.terminal import Terminal

    console = Terminal()
    table = Table(
        "site",
        "width",
        "k",
        "explained",
        "effective rank",
        "other variance inside",
        "transfer",
        "all tokens",
        "moved",
    )
    for site, operator in steerer.operators.items():
        diagnostics = steerer.diagnostics.get(site, {})
        read = diagnostics.get("all_tokens")
        basis = operator.tensors().get("basis")
        k = basis.shape[1] if basis is not None else diagnostics.get("k", 0)
        explained = steerer.statistics.get(site, {}).get("explained_variance")
        table.add_row(
            site,
            str(operator.width),
            str(k or "-"),
            "-" if explained is None else f"{float(explained[:k].sum()):.0%}",
            f"{diagnostics['effective_rank']:.1f}" if "effective_rank" in diagnostics else "-",
            f"{diagnostics['variance_share']:.1%} (chance {diagnostics['chance_share']:.1%})"
            if "variance_share" in diagnostics
            else "-",
            f"{diagnostics['transfer']:.0%}" if diagnostics.get("transfer") is not None else "-",
            f"{read['before']:.0%} -> {read['after']:.0%} (chance {read['chance']:.0%})" if read else "not measured",
            f"{read['displacement']:.0%}" if read else "-",
        )
    console.print(table)
    console.print(
        "site: where the model is steered. k: in how many directions. explained: how much of the differences between "
        "versions lies in these. other variance inside: how much of the differences between people lies there, too. "
        "transfer: how much of the versions of one half of the people lies in the directions of the other half.",
        style="dim",
    )
    for name, compared in steerer.source.get(MATCHING, {}).items():
        console.print(Text(MatchingEntry.model_validate(compared).sentences(name)))
    for site, diagnostics in steerer.diagnostics.items():
        for text in diagnostics.get("notes", []):
            console.print(Text(f"{site}: {text}"))
    for text in steerer.warnings:
        console.print(Text("Warning:", "yellow"), text)
    names = (steerer.attribute,) if isinstance(steerer.attribute, str) else steerer.attribute
    console.print(f"{steerer.method} steerer for {' and '.join(names)} written to", Text(str(out), "bold"))
