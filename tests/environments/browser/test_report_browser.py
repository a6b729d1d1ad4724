"""The report in a real Chromium, from a file: `make test-browser`. The study's own report in `results` is among them.

The cover fits a screen and a sheet of paper, the page a number of screens. No console error, no network request,
filters and links work, a keyboard reaches everything, and axe-core finds no serious violation, in light and dark, at
desk and phone width.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import parse_qs

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.sync_api import Browser, Page, sync_playwright

import invented_study as invented
from ggss.report import material
from ggss.report import page as report_page

VIEWS = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
SCREENS = {"desk": 15, "phone": 30}  # before anything is opened
SHEETS = 12  # of paper, without the appendix
PAPER = (184 * 96 / 25.4, 273 * 96 / 25.4)  # of A4 within the margins, in pixels of print
PAGES = ["file", "large", "study"]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        yield started
        started.close()


def written(folder: Path, models: list[object], methods: list[str]) -> Path:
    plan = invented.plan(
        models=models,
        methods=["none", *methods],
        measures=[{"tasks": ["mmstar", "recognition-race"], "at": "all"}],
        steering=invented.STEERING | {"race x gender": {"tasks": ["mcq", "2afc", "nurse-doctor", "mmstar"]}},
    )
    return report_page.write(material.of_results(invented.results(plan)), folder / "report.html")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return written(tmp_path_factory.mktemp("report"), [invented.QWEN], ["ggss", "inlp-spherical"])


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Of many models and methods, as a study of the paper is."""
    models = [invented.QWEN, "org/two", "org/three", "org/four", {"name": invented.CONTROL, "control": True}]
    methods = ["prompt", "ggss", "inlp-euclidean", "inlp-spherical", "bend-euclidean", "leace-spherical", "pace"]
    return written(tmp_path_factory.mktemp("large"), models, methods)


@pytest.fixture(scope="module")
def study():
    """The report of the small-world study, as it stands in the repository."""
    return Path(__file__).parents[3] / "results" / "small-world" / "report.html"


@pytest.fixture
def opened(browser: Browser, file: Path):
    page = browser.new_page(viewport=VIEWS["desk"])
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.close()


def visible_items(page: Page) -> int:
    return page.locator("details.task:visible .row:visible .item:visible").count()


def choose(page: Page, name: str, value: str) -> int:
    """Choose a filter; returns how many answers the page then says are shown."""
    before = page.inner_text("#count")
    page.select_option(f"select[name={name}]", value)
    page.wait_for_function("before => document.getElementById('count').textContent !== before", arg=before)
    return int(page.inner_text("#count").split()[0])


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("size", VIEWS)
def test_the_page_takes_no_more_screens_than_it_may(browser, request, name, size):
    page = browser.new_page(viewport=VIEWS[size])
    page.goto(request.getfixturevalue(name).as_uri())
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height <= SCREENS[size] * VIEWS[size]["height"]
    if size == "desk":
        bottoms = [
            page.evaluate("name => document.querySelector(name).getBoundingClientRect().bottom", part)
            for part in ("#cover", "#cover .signature")
        ]
        assert max(bottoms) <= VIEWS[size]["height"], "the cover fits the screen, below the menu"
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_the_cover_is_one_sheet_and_the_rest_a_few(browser, request, name, tmp_path):
    source, target = request.getfixturevalue(name), tmp_path / "report.pdf"
    assert report_page.print_pdf(source, target) == ""
    assert 2 <= sheets(target) <= SHEETS
    page = browser.new_page(viewport={"width": round(PAPER[0]), "height": 900})
    page.emulate_media(media="print")
    page.goto(source.as_uri())
    assert page.evaluate("document.getElementById('cover').getBoundingClientRect().height") <= PAPER[1]
    # What is wider than the paper makes Chromium print everything smaller.
    assert page.evaluate("document.documentElement.scrollWidth") <= round(PAPER[0])
    page.close()


def sheets(file: Path) -> int:
    return len(re.findall(rb"/Type ?/Page[^s]", file.read_bytes()))


def test_no_error_and_no_network(opened, file):
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith(("data:", "blob:"))] == [file.as_uri()]


def test_filters(opened):
    everything = choose(opened, "question", "q0")
    assert visible_items(opened) == everything > 0
    changed = choose(opened, "changed", "1")
    assert visible_items(opened) == changed
    assert 0 < changed < everything
    assert changed + choose(opened, "changed", "0") == everything
    opened.click("button[type=reset]")
    opened.wait_for_function("() => document.getElementById('count').textContent.endsWith(' tasks')")
    assert opened.locator("details.task:visible").count() > 1


def test_rows_behind_a_click_are_made_when_they_are_opened(opened):
    rows = opened.locator("details.task .row")
    before = rows.count()
    assert before == 10, "the most telling rows of the first task"
    opened.locator("details.more > summary").first.click()
    opened.wait_for_function("before => document.querySelectorAll('details.task .row').length > before", arg=before)
    second = opened.locator("details.task").nth(1)
    assert second.locator(".row").count() == 0
    second.locator("summary").first.click()
    second.locator(".row").first.wait_for()
    assert opened.said == []


def test_a_group_leads_to_its_items(opened):
    link = opened.locator("#bias svg.chart a[data-filter]").first
    chosen = {name: values[0] for name, values in parse_qs(link.get_attribute("data-filter")).items()}
    link.click()
    opened.wait_for_function("() => document.getElementById('count').textContent.includes(' answers')")
    assert opened.locator("details.task:visible").count() == 1
    items = opened.locator("details.task:visible .row:visible .item:visible")
    assert items.count() == invented.PEOPLE * 2  # every identity as a man and as a woman
    for n in range(items.count()):
        assert chosen["group"] in items.nth(n).get_attribute("data-g").split()
    assert opened.evaluate("document.activeElement.id") == chosen["task"]


def test_a_method_is_chosen_in_the_plane(opened):
    rows = opened.locator("#strength-table tbody tr:visible")
    assert rows.count() == 0
    for place in ("svg.chart a[data-filter^=method] circle", "table.matrix a[data-filter^=method]"):
        opened.locator(place).first.click()
        assert rows.count() == 1
        opened.click("#all-methods button")
        assert rows.count() == 2


@pytest.mark.parametrize("size", VIEWS)
def test_a_jump_lands_below_the_menu(browser, file, size):
    """Also over rows that were never on the screen before: their heights are known."""
    page = browser.new_page(viewport=VIEWS[size], reduced_motion="reduce")
    page.goto(file.as_uri())
    for part in ("capability", "discovery", "method", "people", "bias"):
        page.locator(f"nav a[href='#{part}']").click()
        page.wait_for_function(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )
        where = "name => document.querySelector(name).getBoundingClientRect()"
        menu, heading = page.evaluate(where, "nav"), page.evaluate(where, f"#h-{part}")
        lowest = page.evaluate("document.documentElement.scrollHeight - scrollY - innerHeight") < 2
        assert menu["top"] == 0
        assert menu["bottom"] <= heading["top"] + 1
        assert lowest or heading["top"] <= menu["bottom"] + 40
    page.close()


def test_a_table_on_a_phone_shows_every_cell(browser, file):
    """No table of numbers is wider than the screen: a row is a list there, each value with its name."""
    page = browser.new_page(viewport=VIEWS["phone"])
    page.goto(file.as_uri())
    cut = page.evaluate(
        """() => [...document.querySelectorAll('table.stack td')].filter(one => one.checkVisibility())
            .filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.outerHTML.slice(0, 80))"""
    )
    assert cut == []
    named = page.evaluate("getComputedStyle(document.querySelector('#bias table.stack td'), '::before').content")
    assert named == '"Before"'
    page.close()


def test_lost_questions_open(opened):
    link = opened.locator("a[href^='#lost-']").first
    name = link.get_attribute("href")
    assert not opened.evaluate(f"document.querySelector('{name}').open")
    link.click()
    assert opened.evaluate(f"document.querySelector('{name}').open")


def test_a_keyboard_reaches_everything(opened, study):
    """Every link, field and summary that is shown is in the order of Tab, and Enter works on it."""
    assert unreachable(opened) == []
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    opened.locator("#bias svg.chart a[data-filter]").first.focus()
    opened.keyboard.press("Enter")
    opened.wait_for_function("() => document.getElementById('count').textContent.includes(' answers')")
    assert opened.locator("details.task:visible").count() == 1
    opened.goto(study.as_uri())
    assert unreachable(opened) == []


def unreachable(page: Page) -> list[str]:
    return page.evaluate(
        """() => [...document.querySelectorAll('a[href], select, button, summary')]
            .filter(one => one.checkVisibility() && one.tabIndex < 0).map(one => one.outerHTML.slice(0, 80))"""
    )


@pytest.mark.parametrize("name", ["file", "study"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", VIEWS)
def test_axe_finds_no_serious_violation(browser, request, name, scheme, size):
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(viewport=VIEWS[size], color_scheme=scheme)
    page.goto(request.getfixturevalue(name).as_uri())
    for box in page.locator("details:not([open]) > summary").all():
        if box.is_visible():
            box.click()
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= VIEWS[size]["width"]  # nothing is cut off
    page.close()


def test_it_is_readable_without_a_script(browser, file):
    """All but the filters, and the rows that are not among the most telling ones."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("#filters").is_hidden()
    assert page.locator("details.task").first.locator(".row").count() == 10
    second = page.locator("details.task").nth(1)
    second.locator("summary").first.click()
    assert second.locator(".row").first.is_visible()
    second.locator("details.more > summary").click()
    assert "need a browser that runs scripts" in second.locator("details.more").inner_text()
    context.close()


def test_an_appendix_prints_everything(file, tmp_path):
    plan = invented.plan(models=[invented.QWEN], methods=["none", "ggss"], measures=[])
    short, long = tmp_path / "short.pdf", tmp_path / "long.pdf"
    found = material.of_results(invented.results(plan))
    source = report_page.write(found, tmp_path / "report.html")
    assert report_page.print_pdf(source, short) == report_page.print_pdf(source, long, found) == ""
    assert sheets(long) > 2 * sheets(short)
