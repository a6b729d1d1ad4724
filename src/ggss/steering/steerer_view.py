"""A steerer in a notebook: what it removes, at which sites, what discovery measured and warned of."""

from typing import TYPE_CHECKING, Any

from ggss import notebook
from ggss.errors import InputError
from ggss.escaping import plot

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

SHOWN = 16  # directions of a plot; more if more are removed


def html(steerer: "Steerer") -> str:
    rows = []
    for site, operator in steerer.operators.items():
        found = steerer.diagnostics.get(site, {})
        basis = operator.tensors().get("basis")
        k = 0 if basis is None else basis.shape[1]
        explained = steerer.statistics.get(site, {}).get("explained_variance")
        rows.append(
            (
                site,
                operator.width,
                k or "-",
                "-" if explained is None else f"{float(explained[:k].sum()):.0%}",
                f"{found['effective_rank']:.1f}" if found.get("effective_rank") is not None else "-",
                " ".join(f"{cosine:.2f}" for cosine in found.get("split_half_cosines") or ()) or "-",
            )
        )
    names = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    told = [notebook.line(f"of {steerer.source['model']}")] if steerer.source.get("model") else []
    told += [notebook.line(f"values: {', '.join(map(str, steerer.values))}")] if steerer.values else []
    strength = steerer.recommended_alpha
    told.append(notebook.line("no recommended strength" if strength is None else f"recommended alpha {strength:g}"))
    told += [notebook.line(f"appended to prompts: {steerer.prompt_suffix}")] if steerer.prompt_suffix else []
    columns = ("site", "width", "k", "explained", "effective rank", "split-half cosines")
    told += [notebook.table(columns, rows)] if rows else []
    warned = [notebook.line(f"Warning: {sentence}") for sentence in steerer.warnings]
    return notebook.titled(f"{steerer.method} steerer for {names}", *told, *warned)


def draw(steerer: "Steerer", axis: Any) -> Any:
    """The explained variance of each direction; those that are removed in a darker colour."""
    found = {
        site: own["explained_variance"]
        for site, own in steerer.statistics.items()
        if own.get("explained_variance") is not None
    }
    if not found:
        raise InputError(f"{steerer.method} stored no explained variance: there is nothing to plot of it")
    axis = notebook.new_axis(axis)
    for site, explained in found.items():
        basis = steerer.operators[site].tensors().get("basis")
        k = 0 if basis is None else basis.shape[1]
        shares = [100 * float(share) for share in explained[: max(SHOWN, k)]]
        marks = axis.plot(range(1, len(shares) + 1), shares, "o-", label=plot(f"{site}, k = {k}"), markersize=4)[0]
        axis.plot(range(1, k + 1), shares[:k], "o", color=marks.get_color(), markersize=8)
    axis.set_xlabel("direction (large: removed)")
    axis.set_ylabel("explained variance, %")
    axis.set_title(plot(f"{steerer.method} for {steerer.attribute}"))
    axis.legend()
    return axis
