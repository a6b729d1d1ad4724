"""The playground's page in a real Chromium: it answers, the strength moves the answer, a broken upload is told."""

import os
import shutil

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import ggss
from ggss.cli.arguments import one_thread
from ggss.cli.play import fitted, known_question
from ggss.play import Playground
from ggss.play.page import ADDRESS, serve
from ggss.probes import suites

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    one_thread()
    os.environ["GGSS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "cook", "identity": ["00", "01", "02"]})
    vlm = ggss.load_vlm("small-world/qwen3-vl")
    playground = Playground(vlm, fitted(vlm, faces), faces)
    app, local, shared = serve(playground, None, False, 1, block=False, example=known_question())
    assert shared is None, "no public link unless it is asked for"
    yield local
    app.should_exit = True


@pytest.fixture(scope="module")
def page(served):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1100})
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.goto(served)
        page.wait_for_selector("#ask")
        yield page
        browser.close()


def bars(page):
    return page.inner_text("#bars-after")


def test_it_begins_with_a_question_that_the_model_knows(page):
    known = {item.prompt for item in suites.load("small-world").items("mcq")}
    assert page.input_value("#question textarea") in known


def test_it_answers_and_the_slider_moves_the_answer(page):
    page.click("#ask")
    page.wait_for_function("document.querySelector('#steered textarea').value.length > 0")
    page.wait_for_function("document.querySelector('#bars-after').innerText.includes('%')")
    before = bars(page)
    page.fill("#alpha input[type=number]", "0")
    page.press("#alpha input[type=number]", "Enter")
    page.locator("#alpha input[type=range]").fill("0")
    page.locator("#alpha input[type=range]").dispatch_event("pointerup")
    page.click("#ask")
    page.wait_for_function("old => document.querySelector('#bars-after').innerText != old", arg=before)
    page.wait_for_function(
        "document.querySelector('#unsteered textarea').value == document.querySelector('#steered textarea').value"
    )


def test_heat_and_variants_are_shown(page):
    page.click("#heat")
    page.wait_for_function("document.querySelector('#warmth img')")
    page.click("#variants")
    page.wait_for_function(
        "document.querySelector('#versions').innerText.split(' → ').length > 5"
    )  # five and the label
    assert all(f"{race}: " in page.inner_text("#versions") for race in ("amber", "coral", "indigo", "jade", "pearl"))


def test_a_broken_upload_gets_a_sentence(page, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    page.set_input_files("input[type=file]", str(broken))
    page.wait_for_function("document.querySelector('#message textarea').value.includes('no known image format')")


def test_nothing_left_this_machine(page):
    assert page.wrong == []
    away = [url for url in page.asked if not url.startswith((f"http://{ADDRESS}", "data:", "blob:"))]
    assert away == []
    if picture := os.environ.get("GGSS_SCREENSHOT"):
        page.screenshot(path=picture, full_page=True)
