"""A bundle: what is in it is what the study says, everything is computed again, and whatever was changed is named."""

import csv
import io
import json
import sys
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

import ggss
import invented_study as invented
from ggss.analysis import Statistics, compare_all, records, verdict
from ggss.analysis.records import Record
from ggss.analysis.selection import ComparedTasks
from ggss.errors import InputError
from ggss.probes.suites import Provenance
from ggss.report import bundle, tables
from ggss.report.bundle import ABOUT, AFTER, BEFORE, MANIFEST, PLAN, README, of_files, of_results, verify, write
from ggss.report.material import Material, Missing
from ggss.report.material import of_results as material_of
from ggss.study import grid
from ggss.study.plan import About
from ggss.study.results import Results
from planted import planted
from test_comparison import STEERED, runs

SECRET = "/home/somebody/secret"
CELL = "tables/main_results.csv"


def small(**changed) -> Results:
    chosen = {
        "models": [invented.QWEN],
        "methods": ["none", "prompt", "ggss"],
        "alphas": [1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "measures": [{"tasks": ["recognition-race"], "at": "all"}],
        "statistics": {"resamples": 100, "permutations": 100},
        "discovery": f"{SECRET}/faces.csv",
        "run_by": "the auditors",
        "data": {"licence": "CC BY 4.0"},
        "suite": {"name": "reflect", "images": f"{SECRET}/faces.csv"},
    }
    return invented.results(invented.plan(**chosen | changed))


def material(results: Results) -> Material:
    notes = {(invented.QWEN, "ggss"): ("the gate opens late",)}
    missing = [Missing(invented.QWEN, "ggss", "some of it is missing")]
    return material_of(results, missing=missing, notes=notes, made_from="my study")


@pytest.fixture(scope="module")
def results():
    return small()


@pytest.fixture(scope="module")
def evidence(results, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "evidence.zip"
    write(of_results(results, material(results)), path)
    return path


@pytest.fixture(scope="module")
def run_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tasks = ("mcq", "smallstar")
    records.write(runs(0.9, tasks=tasks).values(), folder / "before.jsonl")
    records.write(runs(0.1, seed=1, tasks=tasks, source=STEERED).values(), folder / "after.jsonl")
    return folder


def files_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def changed(source: Path, target: Path, edits: dict[str, bytes | None], resigned: bool = False) -> Path:
    """A copy of a bundle with other contents of some files, None for a file that is gone.

    resigned: the manifest is made to fit.
    """
    files = {name: data for name, data in (files_of(source) | edits).items() if data is not None}
    if resigned:
        manifest = json.loads(files[MANIFEST])
        manifest["files"] = {
            name: {"bytes": len(data), "sha256": sha256(data).hexdigest()}
            for name, data in files.items()
            if name != MANIFEST
        }
        files[MANIFEST] = json.dumps(manifest).encode()
    return zipped(target, files)


def edited_table(data: bytes, new: str) -> tuple[bytes, str, str]:
    """The table with another number in the row of GGSS, the next digit by default; its column, and what was there."""
    rows = list(csv.reader(io.StringIO(data.decode())))
    row = next(row for row in rows if any("GGSS" in text for text in row))
    place = next(place for place, text in enumerate(row) if text.lstrip("-").replace(".", "").isdigit())
    old, row[place] = row[place], new or row[place][:-1] + str((int(row[place][-1]) + 1) % 10)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode(), rows[0][place], old


def with_other_answer(data: bytes, signed: bool) -> bytes:
    """The lines of a run with another answer in the third."""
    lines = data.splitlines(keepends=True)
    record = Record.model_validate(json.loads(lines[2]))
    other = record.model_copy(update={"answer": "B" if record.answer != "B" else "C"})
    lines[2] = (other.signed() if signed else other).line
    return b"".join(lines)


def answers_of(path: Path, words: str) -> str:
    return next(name for name in files_of(path) if name.startswith("answers/") and words in name)


def test_a_bundle_is_computed_again_and_nothing_differs(evidence, results):
    verification = verify(evidence)
    assert verification.differences == ()
    assert verification.answers == sum(len(run.items) for run in results)
    assert {CELL, "report.html", "annex-iv.md", "tables/README.md"} <= set(verification.computed)
    assert list(verification.unchecked) == [README]
    assert verification.versions == {}
    names = set(files_of(evidence))
    assert set(verification.manifest.files) == names - {MANIFEST}
    assert verification.manifest_sha256 == sha256(files_of(evidence)[MANIFEST]).hexdigest()


def test_its_tables_are_those_of_the_study(evidence, results, tmp_path):
    """The study's runs have other prompts and pictures than those of the bundle, and the same numbers."""
    tables.write(results, tmp_path, show=False, latex=False)
    files = files_of(evidence)
    expected = {f"tables/{file.name}": file.read_bytes() for file in tmp_path.iterdir()}
    assert {name: data for name, data in files.items() if name.startswith("tables/")} == expected


def test_answers_are_read_by_the_rule_of_the_plan(tmp_path):
    plan = small(parser="release").plan

    def denied(cell, item, rng):
        answer = invented.answer(cell, item, rng)
        return f"It cannot be {answer}" if rng.random() < 0.3 else answer

    cells = list(grid.all_cells(plan))
    by_rule = {
        rule: Results(plan, {cell: invented.run(cell, denied).read_by(rule) for cell in cells})
        for rule in ("careful", "release")
    }
    for rule, results in by_rule.items():
        tables.write(results, tmp_path / rule, show=False, latex=False)
    write(of_results(by_rule["release"], material(by_rule["release"])), tmp_path / "evidence.zip")
    expected, other = ((tmp_path / rule / "main_results.csv").read_bytes() for rule in ("release", "careful"))
    assert files_of(tmp_path / "evidence.zip")[CELL] == expected != other


def test_prompts_are_as_they_were_asked(evidence):
    """With what a method appends to them."""
    lines = files_of(evidence)[answers_of(evidence, "prompt-mcq")].splitlines()
    suffix = ggss.methods.get("prompt").prompt_suffix
    assert suffix
    assert all(json.loads(line)["prompt"].endswith(suffix) for line in lines)


def test_what_a_study_keeps_besides_its_answers_is_in_it(evidence):
    files = files_of(evidence)
    report, documentation = files["report.html"].decode(), files["annex-iv.md"].decode()
    for words in ("some of it is missing", "the gate opens late"):
        assert words in report
        assert words in documentation
    about = json.loads(files[ABOUT])
    assert about["gates"][0][:3] == [invented.QWEN, "ggss", "race"]
    manifest = json.loads(files[MANIFEST])
    assert manifest["command"] == "ggss bundle 'my study' -o evidence.zip"
    assert manifest["licences"]["ggss"] == "Apache-2.0"
    assert manifest["licences"][f"model {invented.QWEN}"].startswith("not recorded")
    assert manifest["licences"]["pictures"] == "CC BY 4.0"
    assert "CC BY 4.0" in documentation
    assert "the auditors" in documentation
    assert {"ggss", "torch", "numpy", "scipy"} <= manifest["versions"].keys()
    assert "To be written by you" in documentation


def test_no_folder_of_the_user_is_in_it(evidence):
    assert not [name for name, data in files_of(evidence).items() if SECRET.encode() in data]
    plan = json.loads(files_of(evidence)[PLAN])
    assert (plan["discovery"], plan["suite"]["images"]) == ("faces.csv", "faces.csv")


def test_two_bundles_of_a_study_are_equal_on_whatever_day(evidence, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    again = small()
    write(of_results(again, material(again)), tmp_path / "other-name.zip")
    assert (tmp_path / "other-name.zip").read_bytes() == evidence.read_bytes()
    with zipfile.ZipFile(evidence) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("resigned", [False, True])
def test_an_edited_cell_of_a_table_is_named_with_both_values(evidence, tmp_path, resigned):
    data, column, old = edited_table(files_of(evidence)[CELL], "12.5")
    verification = verify(changed(evidence, tmp_path / "edited.zip", {CELL: data}, resigned))
    assert [difference.what for difference in verification.differences] == ["hash"] * (not resigned) + ["value"]
    difference = verification.differences[-1]
    assert (difference.file, difference.column) == (CELL, column)
    assert "GGSS" in difference.row
    assert (difference.bundled, difference.expected) == ("12.5", old)
    assert all(part in difference.words for part in (CELL, column, "GGSS", "12.5", old))


def test_an_edited_cell_in_markdown_is_named_too(evidence, tmp_path):
    name = "tables/main_results.md"
    text = files_of(evidence)[name].decode()
    row = next(line for line in text.splitlines() if line.startswith("| GGSS |"))
    cells = row[2:-2].split(" | ")
    edited = text.replace(row, row.replace(cells[2], "**1.0**"))
    (difference,) = verify(changed(evidence, tmp_path / "e.zip", {name: edited.encode()}, True)).differences
    assert (difference.what, difference.bundled, difference.expected) == ("value", "**1.0**", cells[2])
    assert "GGSS" in difference.row
    assert "MCQ" in difference.column


def test_a_last_digit_is_called_one(evidence, tmp_path):
    data, _, _ = edited_table(files_of(evidence)[CELL], "")
    (difference,) = verify(changed(evidence, tmp_path / "edited.zip", {CELL: data}, True)).differences
    assert difference.what == "last digit"
    assert "only the last printed digit" in difference.words


def test_a_hash_that_is_wrong_is_named(evidence, tmp_path):
    manifest = json.loads(files_of(evidence)[MANIFEST])
    manifest["files"][PLAN]["sha256"] = "0" * 64
    (difference,) = verify(
        changed(evidence, tmp_path / "e.zip", {MANIFEST: json.dumps(manifest).encode()})
    ).differences
    assert (difference.what, difference.file, difference.expected) == ("hash", PLAN, "0" * 64)
    assert difference.bundled == sha256(files_of(evidence)[PLAN]).hexdigest()


def test_an_edited_answer_is_named_by_its_line(evidence, tmp_path):
    name = answers_of(evidence, "ggss-race-1-mcq")
    data = with_other_answer(files_of(evidence)[name], signed=False)
    verification = verify(changed(evidence, tmp_path / "edited.zip", {name: data}))
    assert [(difference.what, difference.file) for difference in verification.differences] == [
        ("hash", name),
        ("answers", name),
    ]
    assert "line 3: it was changed" in verification.differences[1].words
    assert verification.computed == ()


def test_an_answer_that_was_edited_with_all_its_checksums_changes_numbers(evidence, tmp_path):
    name = answers_of(evidence, "ggss-race-1-mcq")
    data = with_other_answer(files_of(evidence)[name], signed=True)
    differences = verify(changed(evidence, tmp_path / "edited.zip", {name: data}, True)).differences
    assert {difference.what for difference in differences} <= {"value", "last digit"}
    named = {difference.file for difference in differences}
    assert {CELL, "report.html", "annex-iv.md", "tables/README.md"} <= named
    assert any(difference.file == "tables/README.md" and "sha256" in difference.bundled for difference in differences)


def test_files_that_are_gone_or_new_are_named(evidence, tmp_path):
    name = answers_of(evidence, "ggss-race-1-mcq")
    edits = {CELL: None, "tables/new.csv": b"a,b\n"}
    found = verify(changed(evidence, tmp_path / "edited.zip", edits)).differences
    assert sorted((difference.what, difference.file) for difference in found) == [
        ("extra", "tables/new.csv"),
        ("extra", "tables/new.csv"),
        ("missing", CELL),
        ("missing", CELL),
    ]
    without = verify(changed(evidence, tmp_path / "fewer.zip", {name: None}, True)).differences
    assert ("extra", CELL) in {(difference.what, difference.file) for difference in without}, "GGSS is not run then"
    twice = {"answers/twice.jsonl": files_of(evidence)[name]}
    with pytest.raises(InputError, match="another file has, too"):
        verify(changed(evidence, tmp_path / "twice.zip", twice, True))


def test_other_versions_are_said_and_pages_are_not_compared(evidence, tmp_path):
    manifest = json.loads(files_of(evidence)[MANIFEST])
    manifest["versions"] |= {"ggss": "0.0.1", "numpy": "1.0"}
    edits = {MANIFEST: json.dumps(manifest).encode()}
    verification = verify(changed(evidence, tmp_path / "old.zip", edits))
    assert verification.equal
    assert verification.versions["numpy"][0] == "1.0"
    assert {"report.html", "annex-iv.md"} <= verification.unchecked.keys()
    assert CELL not in verification.unchecked


def test_plug_ins_of_a_plan_are_not_imported(evidence, tmp_path, monkeypatch):
    (tmp_path / "hostile_plugin.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan = json.loads(files_of(evidence)[PLAN]) | {"plugins": ["hostile_plugin"]}
    path = changed(evidence, tmp_path / "edited.zip", {PLAN: json.dumps(plan).encode()}, True)
    with pytest.raises(InputError, match=r"plug-ins, which are code: \['hostile_plugin'\].*--plugins"):
        verify(path)
    assert "hostile_plugin" not in sys.modules
    with pytest.raises(InputError, match="SystemExit: imported"):
        verify(path, plugins=True)


def test_a_study_with_a_plug_in_names_it_without_its_folder(tmp_path, monkeypatch):
    (tmp_path / "my_own_plugin.py").write_text("registered = True\n")
    study = small(plugins=[str(tmp_path / "my_own_plugin.py")])
    path = tmp_path / "evidence.zip"
    write(of_results(study, material(study)), path)
    assert json.loads(files_of(path)[PLAN])["plugins"] == ["my_own_plugin.py"]
    assert not [name for name, data in files_of(path).items() if str(tmp_path).encode() in data]
    with pytest.raises(InputError, match=r"\['my_own_plugin\.py'\]"):
        verify(path)
    monkeypatch.chdir(tmp_path)
    assert verify(path, plugins=True).equal


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"statistics": {"resamples": 10**9}}, "1,000,000,000 resamples"),
        ({"alphas": [n / 1000 for n in range(1, 1200)]}, "more than 1,000 entries"),
        ({"methods": "all"}, "is not a plan"),
    ],
)
def test_a_plan_that_asks_for_too_much_is_refused(evidence, tmp_path, edit, message):
    plan = json.loads(files_of(evidence)[PLAN]) | edit
    with pytest.raises(InputError, match=message):
        verify(changed(evidence, tmp_path / "edited.zip", {PLAN: json.dumps(plan).encode()}, True))


def test_a_plan_that_was_edited_and_cannot_be_read_is_a_difference(evidence, tmp_path):
    verification = verify(changed(evidence, tmp_path / "edited.zip", {PLAN: b"[" * 100_000}))
    assert [difference.what for difference in verification.differences] == ["hash", "answers"]
    assert "is not JSON" in verification.differences[1].words


def test_answers_that_make_no_sense_get_a_sentence(evidence, tmp_path):
    """Signed by whoever made them, but one has the probability of a single option."""
    name = answers_of(evidence, "none-mcq")
    lines = files_of(evidence)[name].splitlines(keepends=True)
    record = Record.model_validate(json.loads(lines[0]))
    lines[0] = record.model_copy(update={"probabilities": (0.5,)}).signed().line
    with pytest.raises(InputError, match=r"item 0 has 4 options, but 1 probabilities"):
        verify(changed(evidence, tmp_path / "edited.zip", {name: b"".join(lines)}, True))


@pytest.mark.parametrize("name", [MANIFEST, ABOUT])
@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"format": "other"}', b"\xff\xfe"])
def test_a_zip_without_what_makes_it_a_bundle_is_none(evidence, tmp_path, name, data):
    with pytest.raises(InputError, match=name):
        verify(changed(evidence, tmp_path / "other.zip", {name: data}, resigned=name != MANIFEST))


def test_a_zip_of_something_else_is_no_bundle(tmp_path):
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        verify(zipped(tmp_path / "holiday.zip", {"beach.jpg": b"sand"}))


def test_an_endless_line_is_refused(evidence, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "LONGEST_LINE", 1000)
    name = answers_of(evidence, "none-mcq")
    data = files_of(evidence)[name].replace(b"\n", b" " * 2000 + b"\n", 1)
    found = verify(changed(evidence, tmp_path / "edited.zip", {name: data})).differences
    assert any("no answer is so long" in difference.words for difference in found)


def test_a_truncated_or_damaged_zip_gets_a_sentence(run_files, tmp_path):
    path = tmp_path / "evidence.zip"
    write(of_files(run_files / "before.jsonl"), path)
    data = path.read_bytes()
    damaged = tmp_path / "damaged.zip"
    for length in [*range(0, len(data), len(data) // 25), len(data) - 1]:
        damaged.write_bytes(data[:length])
        with pytest.raises(InputError, match="cut short"):
            verify(damaged)
    refused = 0
    for place in range(100, len(data), len(data) // 25):
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            verify(damaged)
        except InputError:
            refused += 1
    assert refused > 20


@pytest.fixture(scope="module")
def two_runs(run_files):
    path = run_files / "evidence.zip"
    write(of_files(run_files / "before.jsonl", run_files / "after.jsonl", seed=3), path)
    return path


def test_runs_of_two_files_have_the_numbers_of_compare(run_files, two_runs):
    files = files_of(two_runs)
    before, after = run_files / "before.jsonl", run_files / "after.jsonl"
    assert (files[BEFORE], files[AFTER]) == (before.read_bytes(), after.read_bytes())
    assert PLAN not in files
    assert b"ggss bundle before.jsonl after.jsonl --seed 3 -o evidence.zip" in files[MANIFEST]
    compared = compare_all(records.load(before), records.load(after), Statistics(seed=3))
    tasks = ComparedTasks.of(list(compared.values()))
    (row,) = csv.DictReader(io.StringIO(files["tables/bias.csv"].decode()))
    assert float(row["p, Holm"]) == pytest.approx(tasks.bias_holm[0], rel=1e-7)
    assert row["verdict"] == verdict.of_bias(tasks.bias[0], tasks.bias_holm[0]).words


def test_an_edited_cell_of_runs_is_all_that_differs(two_runs, tmp_path):
    data, column, old = edited_table(files_of(two_runs)["tables/bias.csv"], "12.5")
    (difference,) = verify(changed(two_runs, tmp_path / "e.zip", {"tables/bias.csv": data}, True)).differences
    assert (difference.column, difference.bundled, difference.expected) == (column, "12.5", old)
    assert "row 1 (m, GGSS of race" in difference.row


def test_another_seed_gives_other_numbers_and_is_noticed(two_runs, tmp_path):
    about = json.loads(files_of(two_runs)[ABOUT]) | {"seed": 7}
    assert verify(changed(two_runs, tmp_path / "e.zip", {ABOUT: json.dumps(about).encode()}, True)).differences


def test_one_run_alone_is_measured(run_files, tmp_path):
    path = tmp_path / "evidence.zip"
    write(of_files(run_files / "before.jsonl"), path)
    assert verify(path).equal
    assert "not compared" in files_of(path)["tables/bias.csv"].decode()


def test_the_card_of_a_steerer_is_put_in_if_the_runs_were_steered_by_it(run_files, tmp_path):
    steerer = ggss.fit("ggss", planted()[0], attribute="race")
    steerer.save_pretrained(tmp_path / "race")
    before = run_files / "before.jsonl"
    with pytest.raises(InputError, match=r"the card of .*race' does not belong here"):
        of_files(before, steerers=[tmp_path / "race"])
    source = replace(STEERED, steerer=steerer.content_hash)
    records.write(runs(0.1, tasks=("mcq",), source=source).values(), tmp_path / "after.jsonl")
    said = About(data=Provenance(licence="CC0"))
    found = of_files(
        tmp_path / "after.jsonl", steerers=[tmp_path / "race"], licences={"pictures": "CC BY"}, said=said
    )
    assert found.attached == {"steerers/1-ggss-race.md": (tmp_path / "race" / "README.md").read_bytes()}
    assert found.command == "ggss bundle after.jsonl --steerer race -o evidence.zip"
    assert found.licences["pictures"] == "CC BY"
    assert of_files(tmp_path / "after.jsonl", said=said).licences["pictures"] == "CC0"


def test_what_is_attached_is_only_hashed(results, tmp_path):
    path = tmp_path / "evidence.zip"
    attached = {"steerers/1-ggss-race.md": b"# A card\n", "report-with-pictures.html": b"<p>faces"}
    write(replace(of_results(results, material(results)), attached=attached), path)
    verification = verify(path)
    assert verification.equal
    assert sorted(verification.unchecked) == [README, *sorted(attached)]
    edited = changed(path, tmp_path / "e.zip", {"steerers/1-ggss-race.md": b"# Another card\n"})
    assert [difference.what for difference in verify(edited).differences] == ["hash"]
