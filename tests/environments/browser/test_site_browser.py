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


@pytest.mark.parametrize("width", [390, 1280])
def test_formulas_are_not_cut_and_do_not_scroll(opened, width):
    opened.set_viewport_size({"width": width, "height": 844})
    opened.goto((SITE / "method.html").as_uri())
    boxes = opened.locator(".formula").evaluate_all(
        """boxes => boxes.map(box => ({
            over: [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight],
            spare: [...box.children].map(math => {
                const inner = math.getBoundingClientRect(), outer = box.getBoundingClientRect()
                return Math.min(inner.top - outer.top, outer.bottom - inner.bottom)
            }),
            cut: [...box.children].map(math => getComputedStyle(math).overflowX),
        }))"""
    )
    assert len(boxes) >= 8
    for box in boxes:
        assert max(box["over"]) <= 0
        assert min(box["spare"]) >= 8  # pixels above and below, where glyphs may be taller than their box
        assert set(box["cut"]) == {"visible"}


def test_the_front_page_begins_with_the_demo(opened):
    opened.goto((SITE / "index.html").as_uri())
    first = opened.locator("article h1 + p img")
    assert first.get_attribute("src") == "demo.png"
    assert first.evaluate("image => image.naturalWidth") > 500


def test_search_finds_a_page(opened):
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.goto((SITE / "index.html").as_uri())
    opened.keyboard.press("/")
    opened.keyboard.type("slerp")
    opened.wait_for_function("document.querySelectorAll('.md-search-result__item').length > 0")
    assert "method.html" in " ".join(
        link.get_attribute("href") for link in opened.locator(".md-search-result__link").all()
    )
