"""A bundle: the evidence of a study, or of one or two files of runs, in one zip that others can check.

    write(of_study("my-study"), Path("evidence.zip"))
    verify(Path("evidence.zip")).differences            # () if every number follows from the answers

| file | what it is |
| --- | --- |
| manifest.json | size and sha256 of every other file; versions, licences that are known, the command |
| about.json | what the answers are from, and what a study keeps besides them: gates, warnings, what is missing |
| plan.json | the plan of a study, without the folders of its files |
| answers/*.jsonl | the answers, as run files (`ggss.analysis.records`); of a study one for each task and steering |
| tables/*, report.html, annex-iv.md | computed from all of these, and computed again by `verify` |
| README.md, steerers/*.md, report-with-pictures.html | only hashed: for people, cards, pictures that are asked for |

The same study gives the same bytes: names are in order, and there are no times. Other versions of zlib may compress
otherwise; the manifest is the same then, too.

A bundle is untrusted. It is read within limits and never unpacked to a disk. Nothing in it is run, and no plug-in
that its plan names is imported, unless the user asks for it. A manifest shows what has changed since it was written,
not who wrote it: who can compute everything can write a bundle of other answers. So its hash should come another way.
"""

import hashlib
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import metadata
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal
from zipfile import ZipFile

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ggss.analysis import records
from ggss.analysis.comparison import check_one_run
from ggss.analysis.run import Run, Statistics
from ggss.errors import InputError, no_such
from ggss.escaping import code, markdown
from ggss.files import LARGEST_ZIP, LARGEST_ZIPPED, add_to_zip, check_zip, mark, open_zip, read_bounded, write_whole
from ggss.methods import registry
from ggss.plugins import load_plugins
from ggss.report import documentation, material, page, rendering, tables
from ggss.report.cells import model_title
from ggss.report.material import Material
from ggss.steering.artefact import card
from ggss.steering.exported_files import licence_of
from ggss.steering.fitting import Gates
from ggss.steering.steerer import Steerer
from ggss.study import grid
from ggss.study.checking import folder_of
from ggss.study.grid import Cell
from ggss.study.plan import About, Plan
from ggss.study.results import CACHED_RUNS, Results, check_steerer
from ggss.version import installed_version, library_versions

COMMAND = "ggss bundle"
FORMAT, WHAT = "ggss evidence 1", "the bundle"
MANIFEST, ABOUT, PLAN, README = "manifest.json", "about.json", "plan.json", "README.md"
REPORT, WITH_PICTURES, DOCUMENTATION = "report.html", "report-with-pictures.html", "annex-iv.md"
ANSWERS, TABLES, CARDS = "answers/", "tables/", "steerers/"
BEFORE, AFTER = f"{ANSWERS}before.jsonl", f"{ANSWERS}after.jsonl"

LONGEST_LINE = 2**24  # bytes
LONGEST_LIST = 1000  # models, methods, alphas of a plan
MOST_CELLS = 10**6  # of its grid
MOST_DRAWS = 10**6  # of its statistics

NOT_RECORDED = "not recorded: find out before you pass it on"
LIBRARIES = ("numpy", "scipy", "matplotlib")
_PIECE = 2**20
_LINE, _CELL = 100, 1000  # characters of a line, and of a table's cell, that are shown
_NOT_PATHS = ("name", "description", "run_by", "data", "models", "methods")


class FileHash(BaseModel):
    """Size and sha256 of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bytes: int
    sha256: str


class BundleManifest(BaseModel):
    """manifest.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["ggss evidence 1"]
    command: str
    versions: dict[str, str]
    licences: dict[str, str]
    files: dict[str, FileHash]


class Origin(BaseModel):
    """about.json: where the answers are from, and what a study keeps besides its answers.

    source: the name of the study's folder, or of the files. seed: of the resamples, for runs. versions, machine,
    commands: of the answers. said: who gave them, and where their pictures come from.
    gates, cosines: as in `Results`, by model, method and attribute; notes by model and method.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    seed: int = Field(default=0, ge=0)
    versions: dict[str, str] = {}
    machine: str = ""
    commands: tuple[str, ...] = ()
    said: About = About()
    missing: tuple[material.Missing, ...] = ()
    ended: bool = False
    notes: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    gates: tuple[tuple[str, str, str, Gates], ...] = ()
    cosines: tuple[tuple[str, str, str, float], ...] = ()

    @classmethod
    def of(cls, data: Material, **more: Any) -> "Origin":
        facts = {"versions": data.versions, "machine": data.machine, "commands": data.commands, "said": data.about}
        return cls(source=data.made_from, **facts, **more)


@dataclass(frozen=True)
class Evidence:
    """What goes into a bundle; the rest is computed from it.

    answers: name and lines of each file. attached: files that are put in as they are.
    """

    about: Origin
    command: str
    answers: Iterable[tuple[str, Iterable[bytes]]]
    plan: Mapping[str, Any] | None = None
    licences: Mapping[str, str] = field(default_factory=dict)
    attached: Mapping[str, bytes] = field(default_factory=dict)


def of_study(
    folder: str | Path,
    pictures: bool = False,
    steerers: Sequence[str | Path] = (),
    licences: Mapping[str, str] | None = None,
) -> Evidence:
    """The evidence of a study's folder, finished or not: of its complete runs.

    pictures: a second report has thumbnails of them. steerers: folders whose cards are put in; InputError for one
    that the study did not measure. licences: what the user knows of them, by the names that
    the bundle has; InputError for another name.
    """
    data = material.of_study(folder)
    assert data.figures is not None
    attached = _cards(steerers, lambda steerer: check_steerer(folder, steerer))
    if pictures:
        attached[WITH_PICTURES] = _page(data)
    evidence = of_results(data.figures.results, data)
    command = _command(data.made_from, *["--pictures"] * pictures, *_named_steerers(steerers))
    known = _licences(evidence.licences, licences or {})
    return replace(evidence, command=command, licences=known, attached=attached)


def _licences(recorded: Mapping[str, str], said: Mapping[str, str]) -> dict[str, str]:
    """What is recorded, with what the user says in its place; InputError for what the bundle does not have."""
    for name in said:
        if name not in recorded:
            raise no_such(f"the bundle has no {name!r} to have a licence", name, recorded)
    return {**recorded, **said}


def of_results(results: Results, data: Material) -> Evidence:
    """The evidence of results. data: the same for a report, with what is missing."""
    plan = results.plan
    about = Origin.of(
        data,
        missing=data.missing,
        ended=data.ended,
        notes=tuple((*names, tuple(notes)) for names, notes in data.notes.items()),
        gates=tuple((*names, gates) for names, gates in results.gates.items()),
        cosines=tuple((*names, cosine) for names, cosine in results.cosines.items()),
    )
    licences = {f"model {model.name}": _licence_of_model(plan, model.name) for model in plan.models}
    licences |= {"pictures": data.provenance.licence or NOT_RECORDED}
    contents = _without_folders(plan.model_dump(mode="json"))
    return Evidence(about, _command(data.made_from), _answers(results), contents, licences)


def of_files(
    before: Path,
    after: Path | None = None,
    seed: int = 0,
    steerers: Sequence[str | Path] = (),
    licences: Mapping[str, str] | None = None,
    said: About | None = None,
) -> Evidence:
    """The evidence of one or two files of `ggss probe`.

    seed: of the resamples. said: who ran them, and where their pictures come from. Others as in `of_study`.
    """
    data = material.of_files(before, after, Statistics(seed=seed))  # refuses files that cannot be compared
    data = replace(data, about=said or About())
    answers = [(BEFORE, [read_bounded(before, "the run", LARGEST_ZIPPED)])]
    if after is not None:
        answers.append((AFTER, [read_bounded(after, "the run", LARGEST_ZIPPED)]))
    steered = {run.source.steerer for pair in data.pairs for run in (pair.before, pair.after) if run is not None}

    def check(steerer: Steerer) -> None:
        if steerer.content_hash not in steered:
            raise InputError("the runs have answers under other steerers only: its content differs from theirs")

    known = {f"model {data.models[0].name}": NOT_RECORDED, "pictures": data.provenance.licence or NOT_RECORDED}
    names = [file.name for file in (before, after) if file is not None]
    command = _command(*names, *(["--seed", str(seed)] if seed else []), *_named_steerers(steerers))
    return Evidence(
        Origin.of(data, seed=seed), command, answers, None, _licences(known, licences or {}), _cards(steerers, check)
    )


def _command(*words: str) -> str:
    """The command, without the folders of files and with one name for all bundles, so that equal ones are equal."""
    return shlex.join([*COMMAND.split(), *words, "-o", "evidence.zip"])


def _named_steerers(folders: Sequence[str | Path]) -> list[str]:
    return [word for folder in folders for word in ("--steerer", _last(str(folder)))]


def _cards(folders: Sequence[str | Path], check: Callable[[Steerer], object]) -> dict[str, bytes]:
    """The cards of steerers, by name. check: InputError for one that the answers are not of."""
    cards = {}
    for number, folder in enumerate(folders, start=1):
        steerer = Steerer.from_pretrained(folder)
        try:
            check(steerer)
        except InputError as error:
            raise InputError(f"the card of {str(folder)!r} does not belong here: {error}") from error
        words = re.sub(r"[^A-Za-z0-9]+", "-", f"{number}-{steerer.method}-{steerer.attribute}").strip("-")
        cards[f"{CARDS}{words}.md"] = _encoded(card(steerer))
    return cards


def _answers(results: Results) -> Iterator[tuple[str, Iterable[bytes]]]:
    """A file for each complete run. Its number keeps names apart; what stands in it says which run it is."""
    for number, run in enumerate(results):
        source = run.source
        suffix = registry.get(results.plan.method(source.method).name).prompt_suffix
        strength = f"{source.attribute}-{source.alpha:g}" if source.attribute else ""
        words = "-".join(filter(None, [model_title(source.model), source.method, strength, run.task]))
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.")[:100]
        yield f"{ANSWERS}{number:05d}-{slug}.jsonl", (record.line for record in records.records(run, suffix))


def _licence_of_model(plan: Plan, name: str) -> str:
    with suppress(InputError, OSError):
        return licence_of(folder_of(plan.model(name))) or NOT_RECORDED
    return NOT_RECORDED


def _without_folders(contents: Mapping[str, Any]) -> dict[str, Any]:
    """A plan with the names of files in place of their absolute paths, which are of no concern to others."""
    return {name: value if name in _NOT_PATHS else _named(value) for name, value in contents.items()}


def _named(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _named(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner) for inner in value]
    if isinstance(value, str) and (PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        return _last(value)
    return value


def _last(place: str) -> str:
    return place.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def write(evidence: Evidence, target: Path) -> BundleManifest:
    """Write a bundle, completely or not at all; returns its manifest. InputError if it would be too large to read."""
    versions = _versions()
    licences = {"ggss": metadata("ggss")["License-Expression"] or "Apache-2.0"} | dict(evidence.licences)
    files: dict[str, FileHash] = {}
    with tempfile.TemporaryFile() as file:
        with ZipFile(file, "w") as archive:

            def add(name: str, pieces: Iterable[bytes]) -> None:
                size, sha256 = add_to_zip(archive, name, pieces)
                files[name] = FileHash(bytes=size, sha256=sha256)

            for name, lines in evidence.answers:
                add(name, lines)
            add(ABOUT, [_json(evidence.about.model_dump(mode="json"))])
            if evidence.plan is not None:
                add(PLAN, [_json(evidence.plan)])
            # Computed from what is in the zip now, so that nothing else can have a part in it.
            computed = _computed(_Contents(archive, str(target)), _plan_of(evidence.plan))
            readme = _encoded(_readme(evidence, versions, licences))
            for name, data in sorted([*computed.items(), *evidence.attached.items(), (README, readme)]):
                add(name, [data])
            manifest = BundleManifest(
                format=FORMAT,
                command=evidence.command,
                versions=versions,
                licences=licences,
                files=dict(sorted(files.items())),
            )
            add_to_zip(archive, MANIFEST, [_json(manifest.model_dump())])
            check_zip(archive, WHAT)
        if file.tell() > LARGEST_ZIP:
            raise InputError(f"the bundle would have {file.tell() / 2**30:.1f} GiB, and 4 are the most that is read")
        file.seek(0)
        write_whole(target, iter(lambda: file.read(_PIECE), b""))
    return manifest


def _versions() -> dict[str, str]:
    """Of what decides the numbers and how they are printed."""
    return library_versions() | {name: installed_version(name) for name in LIBRARIES}


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _page(data: Material) -> bytes:
    """The report with everything open, as text that can be compared, and without the day."""
    return _encoded(page.render(data, command=COMMAND, appendix=True, written=f"by {COMMAND}"))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _readme(evidence: Evidence, versions: Mapping[str, str], licences: Mapping[str, str]) -> str:
    """What is in the zip and how to check it, for somebody who has never heard of it."""
    files = {
        REPORT: "the report, without pictures: open it in a browser",
        DOCUMENTATION: "technical documentation, to be completed by its owner",
        f"{TABLES}*": "every table",
        f"{ANSWERS}*": "every answer that the numbers are computed from, a line each",
        **({PLAN: "what was run; `ggss study run` reads it"} if evidence.plan is not None else {}),
        ABOUT: "what the answers are from, and what is missing",
        **dict.fromkeys(sorted(evidence.attached), "attached"),
        MANIFEST: "the sha256 of each of these files",
    }
    lines = [
        f"# Evidence: {markdown(evidence.about.source)}",
        "",
        f"<!-- {mark(COMMAND)} -->",
        "",
        f"Made by {code(evidence.command)} with {', '.join(f'{n} {v}' for n, v in versions.items())}.",
        "",
        "`ggss verify evidence.zip` checks every hash, computes every number again from the answers, and names each "
        "that differs. It needs no model and no picture. Whoever can compute the numbers can also make a bundle of "
        "other answers: have the sha256 of `manifest.json` from its author.",
        "",
        "| file | what it is |",
        "| --- | --- |",
        *(f"| {code(name)} | {words} |" for name, words in files.items()),
        "",
        "| licence of | |",
        "| --- | --- |",
        *(f"| {markdown(name)} | {markdown(licence)} |" for name, licence in licences.items()),
    ]
    return "\n".join(lines) + "\n"


class _Contents:
    """The files of a zip that was checked, read in memory. name: of the zip, for messages."""

    def __init__(self, archive: ZipFile, name: str) -> None:
        self.archive, self.name = archive, name
        self.names = frozenset(archive.namelist())
        self.answer_files = sorted(name for name in self.names if name.startswith(ANSWERS))
        self.runs_of = lru_cache(CACHED_RUNS)(self._runs_of)
        self._counts: dict[str, dict[Cell, int]] = {}

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise InputError(f"{self.name!r} has no {name}: it is no complete bundle")
        return self.archive.read(name)

    def hash(self, name: str) -> FileHash:
        digest, size = hashlib.sha256(), 0
        with self.archive.open(name) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += len(piece)
        return FileHash(bytes=size, sha256=digest.hexdigest())

    def _runs_of(self, name: str) -> dict[str, Run]:
        """The runs of a file of answers, by task. InputError names every line that was changed."""
        return records.read_complete(self._lines(name), Path(name))

    def counts_of(self, name: str) -> dict[Cell, int]:
        """By cell, how many answers a file has. InputError as for `runs_of`."""
        if name not in self._counts:
            runs = self.runs_of(name).values()
            self._counts[name] = {_cell(run): len(run.items) for run in runs}
        return self._counts[name]

    def _lines(self, name: str) -> Iterator[bytes]:
        with self.archive.open(name) as file:
            while line := file.readline(LONGEST_LINE):
                if len(line) >= LONGEST_LINE:  # zipfile may return more than it is asked for
                    raise InputError(f"{name} has a line of more than {LONGEST_LINE >> 20} MiB: no answer is so long")
                yield line

    def about(self) -> Origin:
        try:
            return Origin.model_validate_json(self.read(ABOUT))
        except ValidationError as error:
            raise InputError(f"{ABOUT} in {self.name!r} is not as `{COMMAND}` writes it ({_first(error)})") from error

    def plan(self, plugins: bool) -> Plan | None:
        """The plan of a study; None for runs. plugins: import those that it names, which runs their code."""
        if PLAN not in self.names:
            return None
        try:
            contents = json.loads(self.read(PLAN).decode())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{PLAN} in {self.name!r} is not JSON ({type(error).__name__})") from error
        if not isinstance(contents, dict):
            raise InputError(f"{PLAN} in {self.name!r} is no plan: it holds {type(contents).__name__}")
        if contents.get("plugins") and not plugins:
            raise InputError(
                f"the plan in {self.name!r} needs plug-ins, which are code: {contents['plugins']!r}. Read them, then "
                "verify with --plugins, which imports them"
            )
        too_large = f"{PLAN} in {self.name!r} asks for more than is computed:"
        if any(isinstance(value, list | dict) and len(value) > LONGEST_LIST for value in contents.values()):
            raise InputError(f"{too_large} a list in it has more than {LONGEST_LIST:,} entries")
        if contents.get("plugins"):
            load_plugins(contents["plugins"])
        plan = _plan_of(contents, f"{PLAN} in {self.name!r}")
        assert plan is not None
        draws = max(plan.statistics.resamples, plan.statistics.permutations)
        cells = len(plan.models) * len(plan.methods) * len(plan.alphas) * len(plan.steering) * len(plan.tasks)
        if draws > MOST_DRAWS or cells > MOST_CELLS:
            raise InputError(f"{too_large} {draws:,} resamples of {MOST_DRAWS:,}, {cells:,} runs of {MOST_CELLS:,}")
        return plan


class BundledRuns(Mapping[Cell, Run]):
    """The runs in a bundle by cell of its plan. Each is read when it is needed."""

    def __init__(self, contents: _Contents, plan: Plan) -> None:
        self._contents, self._plan = contents, plan
        self._files: dict[Cell, str] = {}
        cells = set(grid.all_cells(plan))
        for name in contents.answer_files:
            for cell in contents.counts_of(name):
                if cell not in cells or cell in self._files:
                    raise InputError(f"{name} has answers that the plan does not ask for, or another file has, too")
                self._files[cell] = name

    def __getitem__(self, cell: Cell) -> Run:
        return self._contents.runs_of(self._files[cell])[cell.task].read_by(self._plan.parser)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _cell(run: Run) -> Cell:
    source = run.source
    return Cell(source.model, source.method, source.attribute, float(source.alpha), run.task)


def _plan_of(contents: Mapping[str, Any] | None, where: str = PLAN) -> Plan | None:
    """The plan of a study, whose plug-ins are imported already; None for runs."""
    if contents is None:
        return None
    plan = Plan.of({**contents, "plugins": []}, where)
    return plan.model_copy(update={"plugins": tuple(contents.get("plugins", ()))})


def _computed(contents: _Contents, plan: Plan | None) -> dict[str, bytes]:
    """By name, all files that follow from plan and answers."""
    about = contents.about()
    computed: dict[str, bytes] = {}
    if plan is not None:
        gates = {(model, method, attribute): gates for model, method, attribute, gates in about.gates}
        cosines = {(model, method, attribute): cosine for model, method, attribute, cosine in about.cosines}
        results = Results(plan, BundledRuns(contents, plan), gates, cosines)
        with tempfile.TemporaryDirectory() as folder:
            tables.write(results, folder, latex=False)
            computed |= {f"{TABLES}{file.name}": file.read_bytes() for file in Path(folder).iterdir()}
        notes = {(model, method): notes for model, method, notes in about.notes}
        data = material.of_results(results, "", about.missing, notes, about.source)
    else:
        before = contents.runs_of(BEFORE) if BEFORE in contents.names else {}
        after = contents.runs_of(AFTER) if AFTER in contents.names else None
        if not before:
            raise InputError(f"{contents.name!r} has neither {PLAN} nor {BEFORE}: it is no complete bundle")
        check_one_run(before, BEFORE)
        check_one_run(after or before, AFTER)
        data = material.of_runs(before, after, Statistics(seed=about.seed), about.source)
        for table in documentation.measured_tables(data):
            computed[f"{TABLES}{table.name}.md"] = rendering.markdown(table).encode()
            computed[f"{TABLES}{table.name}.csv"] = rendering.comma_separated(table).encode()
    recorded = {"versions": about.versions, "machine": about.machine, "commands": about.commands, "about": about.said}
    data = replace(data, ended=about.ended, **recorded)
    computed[REPORT] = _page(data)
    computed[DOCUMENTATION] = _encoded(documentation.render(data))
    return computed


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it should be. what: `hash`, `missing`, `extra`, `answers`, `value` or `last digit`.

    row, column: of a table's cell; row alone for a line of text. expected: by the manifest, or as computed again.
    """

    what: Literal["hash", "missing", "extra", "answers", "value", "last digit"]
    file: str
    row: str = ""
    column: str = ""
    bundled: str = ""
    expected: str = ""

    @property
    def words(self) -> str:
        place = ", ".join(part for part in (self.file, self.row, self.column and f"column {self.column!r}") if part)
        return {
            "hash": f"{place}: its sha256 is {self.bundled[:12]}, and the manifest says {self.expected[:12]}",
            "missing": f"{place}: {self.expected}, and it is not there",
            "extra": f"{place}: {self.bundled}",
            "answers": f"{place}: {self.bundled}",
            "value": f"{place}: {self.bundled!r} in the bundle, {self.expected!r} computed again",
            "last digit": f"{place}: {self.bundled!r} in the bundle, {self.expected!r} computed again; only the last "
            "printed digit differs",
        }[self.what]


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    manifest_sha256: the hash of the manifest, which stands for all files. files: how many were hashed. answers: how
    many were read. computed: the names of what was computed again; empty if answers were damaged. unchecked: by name,
    why a file was only hashed. versions: by library, that of the bundle and the one here, where they differ.
    """

    manifest: BundleManifest
    manifest_sha256: str
    files: int
    answers: int
    computed: tuple[str, ...]
    unchecked: Mapping[str, str]
    versions: Mapping[str, tuple[str, str]]
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        return not self.differences


def verify(path: str | Path, plugins: bool = False) -> Verification:
    """Check every hash of a bundle, compute every number again from its answers, and name what differs.

    plugins: import the plug-ins that its plan names, which runs their code. InputError if it is no bundle, or if it
    is damaged, too large, or made so that unpacking it would do harm.
    """
    with open_zip(path, WHAT) as archive:
        contents = _Contents(archive, str(path))
        text = contents.read(MANIFEST)
        try:
            manifest = BundleManifest.model_validate_json(text)
        except ValidationError as error:
            raise InputError(
                f"{contents.name!r} is not a bundle that this ggss reads: {MANIFEST} is not as `{COMMAND}` writes it "
                f"({_first(error)})"
            ) from error
        damaged, answers = _read_answers(contents)
        differences = [*_hash_differences(contents, manifest), *damaged]
        computed: dict[str, bytes] = {}
        try:
            computed = {} if damaged else _computed_again(contents, plugins)
        except InputError as error:
            if not differences:
                raise
            differences.append(Difference("answers", PLAN, bundled=f"nothing can be computed: {error}"))
        now = _versions()
        versions = {
            name: (manifest.versions.get(name, rendering.ABSENT), number)
            for name, number in now.items()
            if manifest.versions.get(name) != number
        }
        unchecked = _unchecked(contents, computed, versions)
        if computed:
            differences += _differences(contents, computed, unchecked)
        digest = hashlib.sha256(text).hexdigest()
        count = len(contents.names) - 1
        return Verification(
            manifest, digest, count, answers, tuple(sorted(computed)), unchecked, versions, tuple(differences)
        )


def _computed_again(contents: _Contents, plugins: bool) -> dict[str, bytes]:
    try:
        return _computed(contents, contents.plan(plugins))
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        # Answers with the right checksums may still make no sense together: whoever wrote them made the checksums.
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"no numbers can be computed from the answers in {contents.name!r} ({reason})") from error


def _hash_differences(contents: _Contents, manifest: BundleManifest) -> Iterator[Difference]:
    for name in sorted({*contents.names, *manifest.files} - {MANIFEST}):
        if name not in contents.names:
            yield Difference("missing", name, expected="the manifest has it")
        elif name not in manifest.files:
            yield Difference("extra", name, bundled="it is not in the manifest")
        elif (found := contents.hash(name)) != manifest.files[name]:
            yield Difference("hash", name, bundled=found.sha256, expected=manifest.files[name].sha256)


def _read_answers(contents: _Contents) -> tuple[list[Difference], int]:
    """Every file of answers that cannot be read, and how many answers the others have."""
    damaged, count = [], 0
    for name in contents.answer_files:
        try:
            count += sum(contents.counts_of(name).values())
        except InputError as error:
            damaged.append(Difference("answers", name, bundled=str(error)))
    return damaged, count


def _unchecked(
    contents: _Contents, computed: Mapping[str, bytes], versions: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """By name, why a file is only hashed: nothing computes it, or another version may write it otherwise."""
    attached = sorted(name for name in contents.names if name in (README, WITH_PICTURES) or name.startswith(CARDS))
    unchecked = dict.fromkeys(attached, "it is not computed")
    for ending, library in ((".html", "ggss"), (DOCUMENTATION, "ggss"), (".png", "matplotlib")):
        if library in versions:
            reason = f"written by {library} {versions[library][0]}, and {versions[library][1]} may write it otherwise"
            unchecked |= {name: reason for name in computed if name.endswith(ending)}
    return unchecked


def _differences(
    contents: _Contents, computed: Mapping[str, bytes], unchecked: Mapping[str, str]
) -> Iterator[Difference]:
    """What differs from the files that were computed again."""
    rest = {name for name in contents.names - {MANIFEST, ABOUT, PLAN} if not name.startswith(ANSWERS)}
    for name in sorted((rest | computed.keys()) - unchecked.keys()):
        if name not in computed:
            yield Difference("extra", name, bundled="it does not follow from the answers")
        elif name not in rest:
            yield Difference("missing", name, expected="it follows from the answers")
        else:
            yield from _file_differences(name, contents.read(name), computed[name])


def _file_differences(name: str, bundled: bytes, expected: bytes) -> Iterator[Difference]:
    """The entries in which two files differ: cells of tables, lines of other text, all of a picture."""
    if bundled == expected:
        return
    if name.endswith(".png"):
        yield Difference("value", name, bundled="a picture", expected="another picture")
        return
    first, second = (data.decode("utf-8", "backslashreplace") for data in (bundled, expected))
    for row, column, old, new in rendering.differences(first, second, name.endswith(".csv")):
        # Versions are in the manifest, and what differs in them is no difference of numbers.
        if not (old.startswith(tables.TABULATED) and new.startswith(tables.TABULATED)):
            what = "last digit" if rendering.only_last_digit(old, new) else "value"
            yield Difference(what, name, row, column, *_shortened(old, new, _CELL if column else _LINE))


def _shortened(first: str, second: str, width: int) -> tuple[str, str]:
    """Two texts, if they are long, from shortly before the place where they begin to differ."""
    if max(len(first), len(second)) <= width:
        return first, second
    pairs = enumerate(zip(first, second, strict=False))
    same = next((place for place, (old, new) in pairs if old != new), 0)
    begin = max(0, same - width // 4)
    return f"… {first[begin : begin + width]} …", f"… {second[begin : begin + width]} …"


def holds_bundle(path: Path) -> bool:
    """Whether a file is a bundle, so that `ggss bundle` may replace it."""
    try:
        with open_zip(path, WHAT) as archive:
            contents = _Contents(archive, str(path))
            BundleManifest.model_validate_json(contents.read(MANIFEST))
    except (InputError, ValidationError):
        return False
    return True


def _first(error: ValidationError) -> str:
    details = error.errors()[0]
    return json.dumps(f"{'.'.join(map(str, details['loc']))}: {details['msg']}")[1:-1]
