"""The plan `release` as it ships: what it asks, how large its pictures are, and a run of it on a small mock."""

from pathlib import Path

import pytest
import yaml

from experiments.tools import fidelity, mock_paper
from experiments.tools.release_differences import published
from ggss.data.pictures import size_of
from ggss.models import Vlm
from ggss.models.prompts import PICTURE, SYSTEM, PromptLengths
from ggss.report import cells, tables
from ggss.steering import fitting
from ggss.study import runner
from ggss.study.checking import CheckedPlan
from ggss.study.plan import Plan
from ggss.study.results import Results
from test_paper_plan import QWEN, read

# The paper's other tables are of tasks and methods that the authors' code does not have.
NOT_RELEASED = {"mme", "mme_categories", "recognition", "ceo_salary", "gate_calibration", "prompt_invariance"}
TABLES = {table.file for table in fidelity.TABLES} - NOT_RELEASED | {"all_metrics", "spillover"}


@pytest.fixture(scope="module")
def mock(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mock")
    amount = mock_paper.Amount(people=("1", "5"), questions=12, pictures=2, models=[QWEN], width=48)
    mock_paper.main(folder, None, amount)
    said = yaml.safe_load((folder / "release.yaml").read_text())
    fewer = {"alphas": [0.5, 1.0], "statistics": {"resamples": 100, "permutations": 100}, "batch_size": 256}
    (folder / "release.yaml").write_text(yaml.safe_dump(said | fewer))
    return folder


@pytest.fixture(scope="module")
def results(mock: Path) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vlm, "read", read)
        patch.setattr(fitting, "probe_tokens", lambda *tokens, **how: None)  # a diagnostic that decides no number
        runner.run(Plan.load(mock / "release.yaml"), mock / "study", show=False)
    return Results.load(mock / "study")


def test_the_plan_has_the_methods_and_the_grid_of_the_papers():
    paper, release = Plan.load(mock_paper.PLAN), Plan.load(mock_paper.RELEASE)
    assert [model.name for model in release.models] == [model.name for model in paper.models]
    assert (release.alphas, release.steering, release.seed) == (paper.alphas, paper.steering, paper.seed)
    assert {method.label for method in release.methods} <= {method.label for method in paper.methods}
    same = ("leace-spherical", "leace-gated", "ggss-no-slerp", "ggss", "ggss-no-gate")
    for label in same:  # rows of the paper that its text describes otherwise
        assert release.method(label).options == paper.method(label).options


def test_pictures_are_shrunk(mock):
    checked = CheckedPlan(Plan.load(mock / "release.yaml"))
    shown = [
        picture
        for task in ("mcq", "2afc", "nurse-doctor")
        for item in checked.plan_items.items(task)
        for picture in item.images
    ]
    assert {size_of(picture) for picture in shown} == {(512, 512)} == {picture.image().size for picture in shown[:2]}
    assert {size_of(picture) for picture in checked.discovery.pictures()} == {(512, 512)}


# Of a picture of 1024 pixels and of one of 512, in the prompt: with the rows' ends of Pixtral and LLaVA-NeXT.
@pytest.mark.parametrize(
    ("name", "whole", "small"),
    [
        ("pixtral", 64 * 65, 32 * 33),
        ("llava-vicuna", 24 * 24 + 48 * 49, 24 * 24 + 48 * 49),
        ("qwen3-vl", 32 * 32, 16 * 16),
    ],
)
def test_a_prompt_has_as_many_tokens_of_a_picture_as_with_the_published_processor(name, whole, small):
    lengths = PromptLengths(published(name).processor)
    assert [lengths.image_tokens((side, side)) for side in (1024, 512)] == [whole, small]


def test_prompts_have_the_shape_of_the_release(mock):
    items = CheckedPlan(Plan.load(mock / "release.yaml")).plan_items
    pair, star = items.items("2afc")[0], items.items("mmstar")[0]
    assert pair.prompt_for("Qwen3-VL").startswith(
        f"You answer questions.{SYSTEM}Picture one:{PICTURE}Picture two:{PICTURE}"
    )
    for family in ("Pixtral", "LLaVA-NeXT"):
        assert pair.prompt_for(family).startswith(f"{PICTURE}{PICTURE}Picture one:\nPicture two:\n")
        assert star.prompt_for(family).endswith("\nThe letter alone, please.")
    # Two people: a quarter of the 80, 360 and 160 questions of eight.
    assert [len(items.items(task)) for task in ("mcq", "2afc", "nurse-doctor")] == [20, 90, 40]


def test_the_tables_of_the_release_come_out_with_every_method(results, tmp_path):
    written = tables.write(results, tmp_path, show=False)
    assert set(written.tables) == TABLES
    shown = "\n".join(path.read_text() for path in tmp_path.glob("*.csv"))
    assert [label for label in results.methods if cells.method_title(label) not in shown] == []
    assert {run.parser for run in results} == {"release"}


def test_the_check_of_the_mock_names_what_is_not_there(mock):
    """Of a small mock: first questions, then a table."""
    every = {*tables.TABLES.names(), tables.REPORT}
    assert every - set(mock_paper.LACKING["release"]) == TABLES
    for plan, lacking in mock_paper.LACKING.items():
        (mock / f"{plan}-tables").mkdir()
        for name in every - set(lacking):
            (mock / f"{plan}-tables" / f"{name}.md").touch()
    with pytest.raises(SystemExit, match=r"release.yaml has other numbers of questions .*: {'mcq': 20"):
        mock_paper.check(mock)
    (mock / "release-tables" / "svd_ablation.md").unlink()
    with pytest.raises(SystemExit, match="lacks the tables svd_ablation: see release-tables"):
        mock_paper.check(mock)
