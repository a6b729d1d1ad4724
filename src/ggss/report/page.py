"""The report: one HTML file with everything in it, that opens without a network and reads without a script.

    write(of_study("my-study"), Path("report.html"))
    print_pdf(Path("report.html"), Path("report.pdf"))  # if this machine has a Chromium

It opens with a cover that fits one screen and one sheet of paper; methods, tables and people follow. What takes many
screens is behind a click, and is parsed when it is opened: a browser that runs scripts holds `<noscript>` elements as
text, and one that does not shows them. Only the rows of people that are not the most telling ones are compressed, and
need the script. An appendix has everything open, for print.

Text from outside (prompts, answers, names, labels) is escaped by Jinja2's autoescape, and control characters in it
are made visible. The template has no reference to anything outside the file.
"""

import base64
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ggss import hashing, probes
from ggss.analysis.groups import GroupValues
from ggss.analysis.run import Measured
from ggss.escaping import visible
from ggss.files import mark, write_whole
from ggss.probes import Display
from ggss.report import cells, charts, summary
from ggss.report.charts import Link
from ggss.report.material import Discovered, Material, TaskPair
from ggss.report.people import Filters, Thumbnails, changed_items, shown_tasks
from ggss.report.summary import Cover
from ggss.steering.artefact import REMOVES, card
from ggss.version import __version__

COMMAND = "ggss report"
BINS = 20  # of the gate's histogram
GROUP_CHARTS = 4  # that are shown first: those in which groups differ most
SHORT = 10  # digits of a hash on the cover
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PDF_SECONDS = 300
_GLUED = re.compile(r"(?<=\d) (?=%)|(?<=[αp]) (?==)|(?<=[αp] =) ")  # spaces at which a line does not end
UNDISCOVERED = {
    True: "Singular values, stability and the gate over each picture are not kept with a study's answers: `--gates` "
    "loads the models, fits the steering again as the study did, and shows them.",
    False: "A file of answers does not hold the steerer: what discovery found is on its card.",
}


@dataclass(frozen=True)
class GroupChart:
    """A number for each group, before and after: the chart, and the rows of its table (group, before, after, link).

    chart: empty for an answer that only the table has. spread: how far the groups were apart before. of_shares: it is
    a share, and no amount.
    """

    pair: TaskPair
    title: str
    chart: Markup
    rows: tuple[tuple[str, str, str, Link], ...]
    spread: float
    of_shares: bool


def write(
    material: Material, target: Path, public: bool = False, command: str = COMMAND, appendix: bool = False
) -> Path:
    """Write the report of a study or of runs. public: without pictures and raw answers. appendix: everything open.

    command: recorded in the file as the command that wrote it, and may replace it.
    """
    write_whole(target, render(material, public, command, appendix).encode("utf-8", "backslashreplace"))
    return target


def render(
    material: Material,
    public: bool = False,
    command: str = COMMAND,
    appendix: bool = False,
    written: str = "",
) -> str:
    """The page as text. written: said in place of the day, for a page that is to be the same on every day."""
    album, filters = Thumbnails(public), Filters()
    models = summary.judged(material)
    first = summary.cover(material, models)
    methods = charts.compared_methods(material)
    groups = sorted(_group_charts(material, filters), key=lambda chart: (not chart.of_shares, -chart.spread))
    tasks = shown_tasks(material, album, filters)
    return _template().render(
        mark=mark(command),
        version=__version__,
        public=public,
        appendix=appendix,
        written=written or _today(),
        material=material,
        provenance=material.provenance,
        cover=first,
        plot=charts.before_after(first.plot, _plot_words(material, first)) if first.plot else Markup(),
        unread=summary.unread(material.models),
        identities=_identities(material),
        libraries={name: number for name, number in material.versions.items() if " " not in name},
        missing=[entry for entry in material.missing if material.shows(entry.model, entry.method)],
        missing_others=[entry for entry in material.missing if not material.shows(entry.model, entry.method)],
        judged=models,
        heat=summary.heat_table(models),
        titles={pair.task: pair.probe.title for pair in material.pairs},
        change_words=summary.change_words,
        published=_published,
        meanings=_meanings(material),
        notes_shown=[entry for entry in material.notes.items() if material.shows(*entry[0])],
        notes_others=[entry for entry in material.notes.items() if not material.shows(*entry[0])],
        groups=groups,
        group_charts=GROUP_CHARTS,
        methods=methods,
        matrix=charts.matrix(methods) if any(len(model.rows) > 1 for model in methods) else [],
        tasks=tasks,
        texts=any(row.written for task in tasks for row in task.rows),
        filters=filters,
        dimensions=summary.judged_dimensions(material.models),
        changed=changed_items(material.models, album, filters),
        discovery=[(model, [_discovery(steering) for steering in model.discovered]) for model in material.models],
        floors=sorted(
            {steering.floor for model in material.models for steering in model.discovered if steering.maps}
        ),
        heats=any(steering.maps for model in material.models for steering in model.discovered) and not public,
        undiscovered=UNDISCOVERED[material.figures is not None],
        model_number={model.name: number for number, model in enumerate(material.models)},
        hyper=_hyperparameters(material),
        sheet=_data_sheet(material),
        suites=list(dict.fromkeys(pair.before.source.suite for pair in material.pairs)),
        plan=_yaml(material.plan),
        prompts=_prompts(material),
        card=REMOVES,
        symbols=album.symbols,
        lost=album.lost,
        style=_text("report.css"),
        script=_text("report.js"),
    )


def _today() -> str:
    """The day on which the report is written; SOURCE_DATE_EPOCH is another one, for a file that is to be repeated."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    return (datetime.fromtimestamp(int(seconds), UTC) if seconds.isdecimal() else datetime.now()).strftime("%Y-%m-%d")


def _plot_words(material: Material, first: Cover) -> str:
    """The cover's picture for those who do not see it."""
    names = f" on {', '.join(model.title for model in material.subjects)}"
    rows = [f"{row.group}, {row.name}: {charts.percents(row)}" for row in first.plot]
    return f"Before and after steering{names}. {'; '.join(rows)}"


def _identities(material: Material) -> list[tuple[str, str]]:
    """What was asked and answered, with the first digits of their hashes: models, questions, answers, steerer."""
    parts = {model.title: dict(model.pairs[0].before.source.identity) for model in material.models}
    rows = [(title, hashing.of(known)) for title, known in parts.items() if known]
    asked = {pair.task: pair.before.source.suite_hash for pair in material.pairs}
    suites = dict.fromkeys(pair.before.source.suite for pair in material.pairs)
    rows.append((f"questions ({', '.join(filter(None, suites)) or 'own'})", hashing.of(dict(sorted(asked.items())))))
    rows += [(name, value) for name, value in material.hashes.items() if name in ("answers", "steerer")]
    rows += [(name, value) for name, value in material.versions.items() if " " in name]
    return [(name, value[:SHORT]) for name, value in rows]


def _published(run: Measured, display: Display) -> str:
    """The published value; where its interval is about another estimate, that one stands with the interval."""
    corrected = run.corrected()
    with_interval = cells.displayed_text(corrected, display)
    published = cells.displayed_text(replace(corrected, estimate=run.value()), display)
    return published if published == with_interval else f"{published.split(' [')[0]} ({with_interval})"


def _meanings(material: Material) -> list[tuple[str, str, str]]:
    """What the published metric of each bias task is: title, meaning, unit."""
    displays = {pair.task_title: pair.measured.display() for pair in material.pairs if pair.judges_bias}
    return [(title, display.meaning, display.unit) for title, display in displays.items()]


def _template() -> Any:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters |= {
        "method": cells.method_title,
        "model": cells.model_title,
        "number": cells.number,
        "span": cells.span,
        "chance": cells.chance,
        "share": lambda p: f"{p:.2f}",
        "packed": _packed,
        "visible": visible,
        "glued": lambda text: _GLUED.sub("\u00a0", visible(text)),
    }
    environment.globals |= {"bounds": cells.bounds, "isfinite": math.isfinite}
    return environment.from_string(_text("report.html"))


def _packed(html: Markup) -> Markup:
    """Content that the page's script shows when it is opened: compressed, as it is long and repeats itself."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = deflate.compress(html.encode("utf-8", "backslashreplace")) + deflate.flush()
    return Markup(f'<script type="text/plain" class="packed">{base64.b64encode(data).decode()}</script>')


def _text(name: str) -> str:
    return (files("ggss.report") / "templates" / name).read_text(encoding="utf-8")


def _group_charts(material: Material, filters: Filters) -> Iterator[GroupChart]:
    """All answers to each question of the tasks about people. Only the one in which groups differ most is drawn."""
    for pair in (pair for model in material.models for pair in model.pairs if pair.about):
        later = {_answer_key(values): values for values in pair.groups_after}
        for kind in dict.fromkeys((values.question, values.occupation) for values in pair.groups_before):
            answers = [values for values in pair.groups_before if (values.question, values.occupation) == kind]
            widest = max(answers, key=lambda values: values.spread)
            for values in answers:
                after = later.get(_answer_key(values)) or _given_by_nobody(values, pair.groups_after)
                yield _group_chart(pair, values, after, filters, drawn=values is widest)


def _given_by_nobody(before: GroupValues, later: Sequence[GroupValues]) -> GroupValues | None:
    """Shares of zero for an answer that is no longer given; None if the question was not answered at all."""
    alike = [other for other in later if (other.question, other.occupation) == (before.question, before.occupation)]
    if not before.answer or not alike:
        return None
    values = {}
    for group, interval in alike[0].values.items():
        zero = 0.0 * interval.estimate  # or NaN, where a share is undefined
        values[group] = replace(interval, estimate=zero, low=zero, high=zero)
    return replace(before, values=values)


def _answer_key(values: GroupValues) -> tuple[str, str, str]:
    return values.question, values.occupation, values.answer


def _group_chart(
    pair: TaskPair, before: GroupValues, after: GroupValues | None, filters: Filters, drawn: bool
) -> GroupChart:
    links = {
        group: Link(f"#{pair.key}", _filter(pair, before, filters.group(pair.about, group), filters))
        for group in before.values
    }
    scale, unit = (100.0, "%") if before.is_share else (1.0, "")
    about = ", ".join(word for word in (before.question, before.occupation) if word)
    title = f"{before.what} ({about})" if about else before.what
    later = after.values if after else {}
    spec, space = (".1f", " %") if before.is_share else (",.0f", "")
    rows = tuple(
        (
            group,
            cells.span(interval, spec, scale, space),
            cells.span(later[group], spec, scale, space) if group in later else "",
            links[group],
        )
        for group, interval in before.values.items()
    )
    description = f"{pair.title} on {cells.model_title(pair.model)}: {title}, by {pair.about}"
    chart = charts.groups(before.values, later or None, description, links, scale, unit) if drawn else Markup()
    return GroupChart(pair, title, chart, rows, before.spread, before.is_share)


def _filter(pair: TaskPair, values: GroupValues, group: str, filters: Filters) -> str:
    parts = {
        "task": pair.key,
        "group": group,
        "occupation": filters.occupation(values.occupation),
        "question": filters.question(values.question),
    }
    return "&".join(f"{name}={value}" for name, value in parts.items() if value)


def _discovery(discovered: Discovered) -> dict[str, Any]:
    """What discovery found of an attribute, in numbers and charts."""
    steerer, site = discovered.steerer, next(iter(discovered.steerer.operators))
    diagnostics = steerer.diagnostics.get(site, {})
    statistics = {
        name: values.tolist() for name, values in steerer.statistics.get(site, {}).items() if values.ndim == 1
    }
    basis = getattr(steerer.operators[site], "basis", None)
    removed = 0 if basis is None else basis.shape[1]
    explained = statistics.get("explained_variance", [])
    of_shifts = f"share of the variance of the shifts along each direction; the first {removed} are removed"
    gate = discovered.gate
    counts = [0.0] * BINS
    for value in gate.tolist():
        counts[min(int(value * BINS), BINS - 1)] += 100 / len(gate)
    return {
        "attribute": discovered.attribute,
        "diagnostics": diagnostics,
        "removed": removed,
        "explained": sum(explained[:removed]),
        "singular": statistics.get("singular_values", [])[: 2 * removed + 4],
        "directions": charts.bars(
            [100 * share for share in explained[:24]],
            [str(n + 1) for n in range(min(len(explained), 24))],
            f"{discovered.attribute}: {of_shifts}",
            lambda n: n < removed,
        )
        if explained
        else Markup(),
        "gate": charts.bars(
            counts,
            [f"{n / BINS:.2g}" for n in range(BINS)],
            f"{discovered.attribute}: how far the gate opens on the tokens of the pictures shown, percent of tokens",
        )
        if len(gate)
        else Markup(),
        "mean": float(gate.mean()) if len(gate) else math.nan,
        "floor": discovered.floor,
        "card": visible(card(steerer)),
    }


def _hyperparameters(material: Material) -> list[tuple[str, str]]:
    """By method of a plan, its options with their defaults; without a plan, by steerer."""
    if material.figures is not None:
        entries = [
            (entry.label, entry.options, entry.sites) for entry in material.figures.plan.methods if entry.steers
        ]
        return [(cells.method_title(label), _listed(options | {"sites": sites})) for label, options, sites in entries]
    rows = {
        f"{discovered.steerer.method}, {discovered.attribute}": _listed(discovered.steerer.options)
        for model in material.models
        for discovered in model.discovered
    }
    return list(rows.items())


def _listed(options: Mapping[str, Any]) -> str:
    """Options with their values; those that the method chooses by itself have none."""
    chosen = {name: value for name, value in options.items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in chosen.items()) or "as the method chooses"


def _data_sheet(material: Material) -> list[dict[str, Any]]:
    """One row for each task."""
    rows: dict[str, dict[str, Any]] = {}
    for pair in material.pairs:
        items = pair.before.items
        values: dict[str, int] = {}
        for item in items:
            for of in item.attributes:
                if pair.about:
                    values[of[pair.about]] = values.get(of[pair.about], 0) + 1
        rows[pair.task] = {
            "task": pair.task,
            "summary": probes.get(pair.task).summary,
            "suite": pair.before.source.suite,
            "items": len(items),
            "clusters": len({item.cluster for item in items}),
            "pictures": len({picture.digest for item in items for picture in item.images}),
            "groups": ", ".join(f"{value} {count:,}" for value, count in sorted(values.items())),
        }
    return list(rows.values())


def _prompts(material: Material) -> list[tuple[str, str]]:
    """By task and question, the prompt of the first item."""
    prompts: dict[tuple[str, str], str] = {}
    for pair in material.pairs:
        for item in pair.before.items if pair.about else ():
            prompts.setdefault((pair.task, item.question), item.prompt)
    return [(f"{task}: {question}" if question else task, text) for (task, question), text in prompts.items()]


def _yaml(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return ""
    return visible(yaml.safe_dump(json.loads(json.dumps(plan)), sort_keys=False, allow_unicode=True, width=100))


def browser() -> str | None:
    """The Chromium on this machine's path, if any."""
    return next((program for name in BROWSERS if (program := shutil.which(name))), None)


def print_pdf(page: Path, target: Path, appendix: Material | None = None, public: bool = False) -> str:
    """Print a page as PDF; returns why it did not work, or "" if it did.

    appendix: what the page shows, to print it with everything open; public: without pictures and raw answers.
    """
    program = browser()
    if program is None:
        return f"no Chromium was found ({', '.join(BROWSERS)})"
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "page.pdf"
        if appendix is not None:
            page = write(appendix, Path(folder) / "appendix.html", public, appendix=True)
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to sandbox for root
        command = [program, "--headless", "--disable-gpu", *sandbox, f"--user-data-dir={folder}/profile"]
        command += ["--no-pdf-header-footer", f"--print-to-pdf={printed}", page.resolve().as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=PDF_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return f"{program} failed: {type(error).__name__}"
        if not printed.is_file():
            return f"{program} wrote nothing"
        shutil.copyfile(printed, target)
    return ""
