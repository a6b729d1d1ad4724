"""docs/results.md: what the small-world study shows, with the numbers of the committed tables."""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "results" / "small-world"
PAGE = ROOT / "docs" / "results.md"
BACKBONES = ("llava-vicuna", "llava-mistral", "pixtral", "qwen3-vl")

TEMPLATE = Path(__file__).with_suffix(".md")  # its judgements are written by hand; the numbers are filled in here


def rows(table: str, key: str = "Method") -> dict[str, dict[str, str]]:
    """A table's rows by their label."""
    with (TABLES / f"{table}.csv").open(encoding="utf-8", newline="") as stream:
        return {row[key]: row for row in csv.DictReader(stream)}


def averages(table: str, method: str, models: tuple[str, ...] = BACKBONES) -> str:
    row = rows(table)[method]
    return ", ".join(f"{float(row[f'{model} Avg Δ%']):+.0f} % on {model}" for model in models)


def average(table: str, method: str, model: str) -> str:
    return averages(table, method, (model,)).split(" on ")[0]


def costs(method: str) -> list[float]:
    """Points of SmallStar lost under race steering, least first."""
    row = rows("capability")[method]
    return sorted(-float(row[f"race steering {model} change"]) for model in BACKBONES)


def capability() -> dict[str, str]:
    """How GGSS's change of capability was judged on the backbones."""
    with (TABLES / "capability_significance.csv").open(encoding="utf-8", newline="") as stream:
        judged = [row for row in csv.DictReader(stream) if row["section"] == "GGSS"]
    judged = [row for row in judged if row["Model, steering"].startswith(BACKBONES)]
    costly = [row for row in judged if row["verdict"] != "equivalent"]
    told = [f"{row['Model, steering']} steering, {float(row['Δ points']):+.1f} points" for row in costly]
    return {
        "same": str(len(judged) - len(costly)),
        "cases": str(len(judged)),
        "costly": "; ".join(told) or "none",
    }


def matched_gate(model: str) -> str:
    """GGSS against the Euclidean update with the same gate, and the test between them."""
    table = rows("geometry_ablation", "Variant")
    ggss, flat = (float(table[name][model]) for name in (f"GGSS (spherical + {_GATE})", f"Euclidean + {_GATE}"))
    p = float(table["p (geometry, gate fixed)"][f"{model} percentile or Holm"])
    return f"{ggss:+.0f} % against {flat:+.0f} %, p = {p:.2g}"


def pairs(model: str) -> str:
    """What becomes of 2AFC: the published metric, the pairs that it uses, and the preference over all answers."""
    with (TABLES / "all_metrics.csv").open(encoding="utf-8", newline="") as stream:
        own = {row["Task: metric"]: row for row in csv.DictReader(stream) if row["section"] == model}
    published, share, net = (own[f"2afc: {name}"] for name in ("race_bias_std", "consistency_rate", _NET))
    return (
        f"{float(published['unsteered']):.2f} to {float(published['GGSS']):.2f} over "
        f"{float(share['unsteered']):.0f} and then {float(share['GGSS']):.0f} % of the pairs; net preference over "
        f"all answers {float(net['unsteered']):.2f} to {float(net['GGSS']):.2f}"
    )


def pooled_gates() -> str:
    """The least and the greatest mean gate over the backbones."""
    with (TABLES / "gate_calibration.csv").open(encoding="utf-8", newline="") as stream:
        pooled = [row for row in csv.DictReader(stream) if row["Gate"] == "GGSS, pooled statistics"]
    means = [float(row["Mean gate"]) for row in pooled]
    return f"{min(means):.2f} to {max(means):.2f}"


def against() -> dict[str, str]:
    """How many methods PACE beats, and which beat it, after Holm, model by model; averages of all tasks only."""
    with (TABLES / "pace_against.csv").open(encoding="utf-8", newline="") as stream:
        pairs = list(csv.DictReader(stream))
    whole = [row for row in pairs if not row[f"{_DIFFERENCE} mark"] and row[_DIFFERENCE] != "undefined"]
    found: dict[int, dict[str, list[str]]] = {-1: {}, 1: {}}
    for row in whole:
        difference, p = float(row[_DIFFERENCE]), float(row["sign-flip test Holm"])
        if p <= 0.05 and difference:
            found[1 if difference > 0 else -1].setdefault(row["section"], []).append(row["Method"])
    compared = {model: sum(row["section"] == model for row in whole) for model in (*BACKBONES, "entangled")}
    beaten = [f"{len(found[-1].get(model, []))} of {count} on {model}" for model, count in compared.items()]
    beating = [f"{', '.join(methods)} on {model}" for model, methods in found[1].items()]
    over_ggss = [model for model, methods in found[-1].items() if "GGSS" in methods]
    return {
        "beaten": ", ".join(beaten),
        "beating": "; ".join(beating) or "none",
        "over_ggss": ", ".join(over_ggss) or "no model",
        "pairs": str(len(pairs)),
    }


def lost(method: str, model: str) -> str:
    """Points of SmallStar that race steering changes."""
    return f"{float(rows('capability')[method][f'race steering {model} change']):+.1f}"


def rivals() -> str:
    """The rivals from other papers by their mean over the backbones, best first, with the most that each costs."""
    means = {name: sum(float(rows("beyond")[name][f"{model} Avg Δ%"]) for model in BACKBONES) / 4 for name in _RIVALS}
    return ", ".join(
        f"`{name}` {means[name]:+.0f} % ({costs(name)[-1]:.1f})" for name in sorted(means, key=means.__getitem__)
    )


def page() -> str:
    tests = [rows("significance", "Model")[model] for model in BACKBONES]
    nurses = [model for model, row in zip(BACKBONES, tests, strict=True) if float(row[f"{_TEST} N/D Holm"]) <= 0.05]
    control = rows("recognition", "Model")["entangled"]
    loss = float(rows("capability")["GGSS"]["race steering entangled change"])
    inlp, svd = costs("INLP (sph.)"), costs("Pooled SVD (Eucl.)")
    return TEMPLATE.read_text(encoding="utf-8").format(
        averages=averages("main_results", "GGSS"),
        p_all=f"{max(float(row[f'{_TEST} all tasks p']) for row in tests):.1g}",
        p_holm=f"{max(float(row[f'{_TEST} all tasks Holm']) for row in tests):.2g}",
        nurses=", ".join(nurses) or "none",
        inlp=averages("main_results", "INLP (sph.)"),
        inlp_least=f"{inlp[0]:.0f}",
        inlp_most=f"{inlp[-1]:.0f}",
        svd=averages("svd_ablation", "Pooled SVD (Eucl.)"),
        svd_most=f"{svd[-1]:.1f}",
        merger=average("beyond", "GGSS", "qwen3-vl"),
        sites=average("beyond", "ggss all sites", "qwen3-vl"),
        auto=average("beyond", "ggss-auto", "qwen3-vl"),
        geometry=";\n  ".join(f"{matched_gate(model)} on {model}" for model in BACKBONES),
        gates=pooled_gates(),
        pairs_vicuna=pairs("llava-vicuna"),
        pairs_qwen=pairs("qwen3-vl"),
        control=f"{-loss:.1f}",
        named=f"{float(control[f'{_NAMED} unsteered']):.0f}",
        unnamed=f"{float(control[f'{_NAMED} GGSS']):.0f}",
        pace=averages("beyond", "pace"),
        pace_most=f"{costs('pace')[-1]:.1f}",
        pace_sites=average("beyond", "pace all sites", "qwen3-vl"),
        pace_control=average("control", "pace", "entangled"),
        pace_control_cost=lost("pace", "entangled"),
        ggss_control=average("control", "GGSS", "entangled"),
        ggss_control_cost=lost("GGSS", "entangled"),
        auto_choice=averages("beyond", "auto"),
        auto_control=average("control", "auto", "entangled"),
        rivals=rivals(),
        **against(),
        **capability(),
    )


_TEST, _NAMED, _GATE = "against unsteered,", "race recognition, gender steering", "calibrated gate"
_NET = "race_net_preference_std"
_DIFFERENCE = "Avg Δ%, PACE minus it, points"
_RIVALS = ("directional-ablation", "rlace", "fairsteer", "sfid", "sae")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
