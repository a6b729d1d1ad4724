"""The settings of GGSS: their defaults, and the values that the plan explores."""

from ggss.methods import registry
from ggss.report import cells, names
from ggss.report.figures import Figures
from ggss.report.rendering import Column, Row, Table


def hyperparameters(figures: Figures) -> Table | str:
    if not cells.any_run(figures, [names.GGSS], figures.results.models):
        return "needs runs of ggss on the bias tasks"
    defaults = registry.checked_options(registry.get(names.GGSS), {}).model_dump()
    points = names.grid_points(figures.results)
    explored = {
        "κ (gate sharpness)": ("kappa", sorted({kappa for kappa, _ in points})),
        "floor (of the gate)": ("floor", sorted({floor for _, floor in points})),
    }
    rows = [Row("α (strength)", ("best-avg-α", _listed(figures.results.alphas)))]
    for label, (option, values) in explored.items():
        rows.append(Row(label, (f"{defaults[option]:g}", _listed(values))))
    rows.append(Row("k (dimensions of the subspace)", ("values of the attribute less one", "fixed")))
    return Table(
        "hyperparameters",
        "The settings of GGSS and the values that were explored (neither direction is better)",
        "Setting",
        (Column("default"), Column("explored")),
        tuple(rows),
        "κ, floor and k are the same in all tables but sensitivity; α is chosen once for each model.",
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
