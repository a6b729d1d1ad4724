"""The documentation site in a real Chromium, from a file: `make docs`, then `make test-browser`.

No console error, no network request, search works, formulas are shown.
"""

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

SITE = Path(__file__).parents[3] / "site"
PAGES = ("index", "method", "api-steering", "cli", "notebook", "howto-report")


@pytest.fixture(scope="module")
def opened():
    if not (SITE / "index.html").is_file():
        pytest.skip("there is no site: make docs")
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        yield page
        browser.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_from_a_file_and_fits_a_phone(opened, name):
    opened.goto((SITE / f"{name}.html").as_uri())
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390


def test_formulas_are_shown_without_a_script(opened):
    opened.goto((SITE / "method.html").as_uri())
    assert opened.locator("math[display=block]").count() >= 8
    assert opened.locator("math").first.bounding_box()["height"] > 5
    assert "\\frac" not in opened.inner_text("article")


def test_search_finds_a_page(opened):
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.goto((SITE / "index.html").as_uri())
    opened.keyboard.press("/")
    opened.keyboard.type("slerp")
    opened.wait_for_function("document.querySelectorAll('.md-search-result__item').length > 0")
    assert "method.html" in " ".join(
        link.get_attribute("href") for link in opened.locator(".md-search-result__link").all()
    )
