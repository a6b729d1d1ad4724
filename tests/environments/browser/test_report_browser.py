"""The report in a real Chromium, from a file: `make test-browser`.

No console error, no network request, filters and links work, a keyboard reaches everything, and axe-core finds no
serious violation, in light and dark, at desk and phone width.
"""

import os
import shutil
import sys
from pathlib import Path
from urllib.parse import parse_qs

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from playwright.sync_api import Browser, Page, sync_playwright

import invented_study as invented
from ggss.report import material, page
from ggss.report import page as report_page

VIEWS = {"desk": {"width": 1180, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    plan = invented.plan(
        models=[invented.QWEN],
        methods=["none", "ggss", "inlp-spherical"],
        measures=[{"tasks": ["mmstar", "recognition-race"], "at": "all"}],
    )
    target = tmp_path_factory.mktemp("report") / "report.html"
    return report_page.write(material.of_results(invented.results(plan)), target)


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
    shown = "section.task:not([hidden]) .row:not([hidden]) .item:not([hidden])"
    return page.evaluate(f"() => document.querySelectorAll('{shown}').length")


def test_no_error_and_no_network(opened, file):
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [file.as_uri()]


def test_filters(opened):
    everything = visible_items(opened)
    opened.select_option("select[name=changed]", "1")
    changed = visible_items(opened)
    opened.select_option("select[name=changed]", "0")
    assert 0 < changed < everything
    assert changed + visible_items(opened) == everything
    assert f"{everything} answers" in opened.inner_text("#count")
    opened.click("button[type=reset]")
    opened.wait_for_function("() => document.getElementById('count').textContent.indexOf(' of ') < 0")
    assert visible_items(opened) == everything


def test_a_group_leads_to_its_items(opened):
    link = opened.locator("#bias svg.chart a[data-filter]").first
    wanted = {name: values[0] for name, values in parse_qs(link.get_attribute("data-filter")).items()}
    link.click()
    assert opened.locator("section.task:visible").count() == 1
    items = opened.locator("section.task:visible .row:visible .item:visible")
    assert items.count() == invented.PEOPLE * 2  # every identity as a man and as a woman
    for n in range(items.count()):
        assert wanted["group"] in items.nth(n).get_attribute("data-g").split()
    assert opened.evaluate("document.activeElement.id") == wanted["task"]


def test_a_method_is_chosen_in_the_plane(opened):
    rows = opened.locator("#methods tbody tr:visible")
    assert rows.count() == 2
    opened.locator("a[data-filter^=method]").first.click()
    assert rows.count() == 1
    opened.click("#all-methods button")
    assert rows.count() == 2


@pytest.mark.parametrize("size", VIEWS)
def test_a_jump_lands_below_the_menu(browser, file, size):
    """Also over rows that were never on the screen before: their heights are known."""
    page = browser.new_page(viewport=VIEWS[size], reduced_motion="reduce")
    page.goto(file.as_uri())
    for part in ("capability", "discovery", "method", "people", "summary"):
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


def test_people_whose_answers_changed_are_shown(opened):
    opened.click("#summary a[data-filter='changed=1']")
    assert opened.evaluate("document.querySelector('select[name=changed]').value") == "1"
    shown = opened.locator("section.task:visible .row:visible .item:visible")
    assert shown.count() > 0
    assert {shown.nth(n).get_attribute("data-c") for n in range(shown.count())} == {"1"}


def test_a_table_on_a_phone_shows_every_cell(browser, file):
    """No table of numbers is wider than the screen: a row is a list there, each value with its name."""
    page = browser.new_page(viewport=VIEWS["phone"])
    page.goto(file.as_uri())
    cut = page.evaluate(
        """() => [...document.querySelectorAll('table.stack td')].filter(one => one.checkVisibility())
            .filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.outerHTML.slice(0, 80))"""
    )
    assert cut == []
    named = page.evaluate("getComputedStyle(document.querySelector('table.stack td'), '::before').content")
    assert named == '"Model"'
    page.close()


def test_lost_questions_open(opened):
    link = opened.locator("a[href^='#lost-']").first
    name = link.get_attribute("href")
    assert not opened.evaluate(f"document.querySelector('{name}').open")
    link.click()
    assert opened.evaluate(f"document.querySelector('{name}').open")


def test_a_keyboard_reaches_everything(opened):
    """Every link, field and summary that is shown is in the order of Tab, and Enter works on it."""
    left_out = opened.evaluate(
        """() => [...document.querySelectorAll('a[href], select, button, summary')]
            .filter(one => one.checkVisibility() && one.tabIndex < 0).map(one => one.outerHTML.slice(0, 80))"""
    )
    assert left_out == []
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.className") == "skip"
    opened.locator("#bias svg.chart a[data-filter]").first.focus()
    opened.keyboard.press("Enter")
    assert opened.locator("section.task:visible").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", VIEWS)
def test_axe_finds_no_serious_violation(browser, file, scheme, size):
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(viewport=VIEWS[size], color_scheme=scheme)
    page.goto(file.as_uri())
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= VIEWS[size]["width"]  # nothing is cut off
    page.close()


def test_all_is_readable_without_a_script(browser, file):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("#filters").is_hidden()
    assert page.locator("section.task").first.is_visible()
    context.close()


def test_it_is_printed(file, tmp_path):
    target = tmp_path / "report.pdf"
    assert page.print_pdf(file, target) == ""
    assert target.read_bytes().startswith(b"%PDF")
