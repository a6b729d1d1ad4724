"""The playground's page in a real Chromium: it opens on a person's row, and slider, keys, tabs and uploads work.

`GGSS_SCREENSHOT=docs/playground.png make test-play` writes the picture of the documentation.
"""

import io
import os
import re
import shutil

import pytest
from PIL import Image

os.environ["HF_HUB_OFFLINE"] = "1"

import ggss
from ggss.cli.arguments import one_thread
from ggss.cli.play import SCOPE, MeasuringCommands, fitted_steerers
from ggss.play import Playground, pair_question, row_questions
from ggss.play.page import ADDRESS, build, serve
from ggss.probes import suites

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = [(1280, 900), (390, 844)]
PERSON, SENTENCE = "#row .asked b", "#row .sentence"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    one_thread()
    os.environ["GGSS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    vlm, suite = ggss.load_vlm("small-world/qwen3-vl"), suites.load("small-world")
    playground = Playground(vlm, fitted_steerers(vlm), row_questions(suite))
    commands = MeasuringCommands("small-world/qwen3-vl", suite, fitted=True)
    app, local, shared = serve(build(playground, commands, pair_question(suite), 1, SCOPE), block=False)
    assert shared is None, "no public link unless it is asked for"
    yield local
    app.should_exit = True


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(served, browser):
    """Opens a page, and looks at the end whether anything went wrong or left this machine."""
    pages, away, wrong = [], [], []

    def listen(request):
        if not request.url.startswith((f"http://{ADDRESS}", "data:", "blob:")):
            away.append(request.url)

    def open_page(width=1280, height=900, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages.append(page)
        page.on("request", listen)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(served)
        page.wait_for_selector("#row figure")
        page.wait_for_selector("#gate input")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert (away, wrong) == ([], [])


@pytest.fixture
def page(opened):
    return opened()


def wait_for(page, selector, text):
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)", arg=[selector, text]
    )


def set_strength(page, alpha):
    page.locator("#alpha input[type=range]").fill(str(alpha))
    page.wait_for_function(
        "end => document.querySelector('#row .steering').innerText.endsWith(end)", arg=f" at strength {alpha:g}"
    )


def test_it_opens_on_all_versions_of_one_person(page):
    assert page.inner_text(SENTENCE) == "The answer depends on race: before yes, after no."
    races = page.locator("#row figure .label").all_inner_texts()
    assert races == ["amber", "coral", "indigo", "jade", "pearl"]
    for when in ("before", "after"):
        replies = page.locator(f"#row figure .{when}").all_inner_texts()
        assert all(re.fullmatch(rf"{when}\s+\w+\s+\d+ %", reply.strip()) for reply in replies)
        assert len(replies) == 5
    sizes = page.locator("#row .face > img").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(sizes) == 5
    assert min(sizes) > 100


def test_no_box_is_empty_at_opening(page):
    for _ in ("the row", "own questions"):
        assert page.locator("textarea:visible").evaluate_all("all => all.filter(box => !box.value).length") == 0
        assert not page.is_visible("#own")
        page.click("button[role=tab]:visible >> text=Your own question")
        page.wait_for_selector("#words textarea")
    assert page.locator("#preview img").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_row_and_the_slider_are_on_the_first_screen(opened, width, height, scheme):
    page = opened(width, height, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in (SENTENCE, "#row figure >> nth=4", "#next", "#alpha input[type=range]"):
        box = page.locator(selector).bounding_box()
        assert 0 <= box["y"] <= height - box["height"], selector
    colours = "element => [element, document.body].map(e => getComputedStyle(e))"
    ink, paper = page.locator(SENTENCE).evaluate(
        f"element => ({colours})(element).map((s, n) => n ? s.backgroundColor : s.color)"
    )
    lightness = [sum(int(n) for n in re.findall(r"\d+", colour)[:3]) / 765 for colour in (ink, paper)]
    assert abs(lightness[0] - lightness[1]) > 0.6, (ink, paper)
    if scheme == "light" and width > 1000 and (target := os.environ.get("GGSS_SCREENSHOT")):
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        picture.quantize(256, kmeans=1, dither=Image.Dither.NONE).save(target, optimize=True)


def test_one_slider_moves_the_whole_row(page):
    before = page.locator("#row figure .before").all_inner_texts()
    after = page.locator("#row figure .after .share").all_inner_texts()
    set_strength(page, 0.5)
    halfway = page.locator("#row figure .after .share").all_inner_texts()
    assert sum(old != new for old, new in zip(after, halfway, strict=True)) >= 4
    assert page.locator("#row figure .before").all_inner_texts() == before
    set_strength(page, 0)
    assert page.inner_text(SENTENCE) == "The answer depends on race: before yes, after yes."
    unmoved = [reply.replace("after", "before") for reply in page.locator("#row figure .after").all_inner_texts()]
    assert unmoved == before


def test_next_and_previous_person_by_key_and_by_button(page):
    assert page.inner_text(PERSON) == "ceo · 1000 · man"
    page.keyboard.press("n")
    wait_for(page, PERSON, "1001")
    page.keyboard.press("N")
    page.keyboard.press("n")
    wait_for(page, PERSON, "1003")
    page.keyboard.press("p")
    wait_for(page, PERSON, "1002")
    page.click("#next")
    wait_for(page, PERSON, "1003")
    page.click("#previous")
    wait_for(page, PERSON, "1002")
    assert page.inner_text(SENTENCE).startswith("The answer depends on race: before ")


def test_a_letter_that_is_typed_is_no_command(page):
    page.click("button[role=tab]:visible >> text=Your own question")
    page.fill("#words textarea", "")
    page.locator("#words textarea").press_sequentially("ngp")
    page.click("button[role=tab]:visible >> text=One person")
    set_strength(page, 0.9)
    assert page.inner_text(PERSON) == "ceo · 1000 · man"
    assert not page.is_checked("#gate input")


def test_the_gate_is_one_key_away(page):
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    heats = page.locator("#row .heat")
    assert heats.count() == 5
    assert not heats.first.is_visible()
    page.keyboard.press("g")
    heats.first.wait_for(state="visible")
    assert "gate: 0.3" in page.inner_text("#row .legend")
    face, heat = page.locator("#row .face").first.bounding_box(), heats.first.bounding_box()
    assert heat == pytest.approx(face, abs=1)
    page.uncheck("#gate input")
    heats.first.wait_for(state="hidden")
    assert asked == [], "the heat was in the page already"


def test_another_question_brings_its_attribute_and_its_steerer(page):
    page.click("#question input")
    page.locator("[role=option]", has_text="nurse-doctor, by gender").click()
    wait_for(page, SENTENCE, "gender")
    assert page.locator("#row figure .label").all_inner_texts() == ["man", "woman"]
    wait_for(page, "#row .legend", "after: gender at strength 1")
    checked = page.locator("#steerers input").evaluate_all("all => all.filter(box => box.checked).length")
    assert checked == 1


def test_without_a_steerer_there_is_only_before(page):
    page.locator("#steerers label", has_text="race").click()
    page.wait_for_function("!document.querySelector('#row .after')")
    assert page.inner_text(SENTENCE) == "The answer depends on race: before yes."


def test_the_box_has_the_commands_for_this_strength(page):
    page.click("#measure button")
    page.wait_for_selector("#commands pre")
    set_strength(page, 0.85)
    wait_for(page, "#commands pre", "--alpha 0.85")
    lines = page.inner_text("#commands pre").splitlines()
    assert [line.split()[1] for line in lines] == ["discover", "probe", "probe", "compare"]
    assert all(line.startswith("ggss ") for line in lines)


def test_own_questions_about_pictures_and_about_the_row(page):
    page.click("button[role=tab]:visible >> text=Your own question")
    page.click("#ask")
    page.wait_for_selector("#own figure .after")
    assert page.locator("#own figure").count() == 1
    assert page.locator("#own .face").count() == 2
    page.fill("#words textarea", "which gender is this person ?")
    page.fill("#options textarea", "man, woman")
    page.click("#ask-row")
    page.wait_for_function("document.querySelectorAll('#own figure').length == 5")
    assert page.locator("#own .before .answer").all_inner_texts() == ["man"] * 5
    page.click("#measure button")
    wait_for(page, "#commands pre", "text: which gender is this person ?")
    wait_for(page, "#commands pre", "--questions questions.yaml")
    page.fill("#options textarea", "man")
    page.click("#ask-row")
    wait_for(page, "#own", "there is only one option")


def test_uploads_are_asked_about_and_a_broken_one_gets_a_sentence(page, tmp_path):
    page.click("button[role=tab]:visible >> text=Your own question")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    page.set_input_files("input[type=file]", str(broken))
    wait_for(page, "#preview", "no known image format")
    whole = tmp_path / "whole.png"
    Image.new("RGB", (64, 64), "teal").save(whole)
    page.set_input_files("input[type=file]", str(whole))
    page.wait_for_selector("#preview img[alt='a picture']")
    page.fill("#words textarea", "is this person nurse or doctor ?")
    page.fill("#options textarea", "nurse, doctor")
    page.click("#ask")
    wait_for(page, "#own .label", "your picture")
