"""The page as users have it: in a real browser, with a keyboard, on a light and on a dark screen."""

import json

import pytest
import torch

import brctc
from brctc.report.explore.page import write_explore_page
from brctc.report.explore.posteriors import appendix_b, synthetic, uniform
from tests.report.explore.browser import Browser, find_chromium
from tests.report.explore.cases import POSTERIORS, TOLERANCE, ByFormula, Case, library
from tests.report.explore.test_page import EVIL, evil

__all__ = ["evil"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium to open the page in"),
]
ARROW_LEFT, ARROW_RIGHT, SPACE = ("ArrowLeft", 37), ("ArrowRight", 39), (" ", 32)
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        started.show_as("light")
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "explore.html"
    write_explore_page(out, [appendix_b(), uniform(), synthetic(), *POSTERIORS[3:]], 1)
    return out


def focus(browser, selector):
    browser.evaluate(f"(document.querySelector({json.dumps(selector)}).focus(), 0)")


def shown_loss(browser):
    return float(browser.evaluate("document.querySelector('#numbers b').textContent.replace('\\u2212', '-')"))


def loss_of_code(browser):
    """Of the Python that the page shows, run behind that of its posterior."""
    names: dict = {}
    exec(browser.evaluate("document.getElementById('python-posterior').value"), names)
    exec(browser.text("python"), names)
    return names["loss"].item()


@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda posterior: posterior.key)
def test_the_numbers_of_the_library(browser, page, posterior):
    """Loss, groups and gradients in the browser, of every preset and of a formula, by what a user does."""
    browser.open(page)
    browser.choose("posterior", posterior.key)
    settings = browser.evaluate(
        "RISKS.map(({ key, formula, tokens, event }) => ({ key, formula, tokens, event }))"
    )
    assert len(settings) > 3
    for setting in settings:
        browser.choose("risk", setting.pop("key"))
        browser.type("factor", "7.5")
        compare(browser, Case(posterior, factor=7.5, **setting))
    formula = "-factor * abs(frame - peak) ^ 1.5 / T + (token == U) / (1 + frame)"
    browser.type("formula", formula)
    for selector, tokens, event in (("[value=last]", "last", "end"), ("[value=start]", "last", "start")):
        browser.evaluate(f"(document.querySelector('{selector}').click(), 0)")
        compare(browser, Case(posterior, formula, tokens, event, 7.5))
        assert browser.evaluate("document.getElementById('risk').value") == "own"
    assert browser.complaints() == []


def compare(browser, case):
    expected = library(case, ByFormula(case))
    if expected["loss of logProbs"].isinf():
        assert "The risk forbids every path" in browser.text("formula-message")
        return
    assert browser.text("formula-message") == ""
    plain = (
        "(_, v) => (ArrayBuffer.isView(v) ? [...v] : typeof v === 'number' && !isFinite(v) ? String(v) : v)"
    )
    found = json.loads(browser.evaluate(f"JSON.stringify(state.shown.found, {plain})"))
    assert found["loss"] == pytest.approx(expected["loss of logProbs"].item(), abs=TOLERANCE)
    assert shown_loss(browser) == pytest.approx(found["loss"], abs=6e-5)  # as many digits as are shown
    groups = torch.tensor([[float(value) for value in row] for row in found["logGroups"]], dtype=torch.double)
    torch.testing.assert_close(groups, expected["logGroups"], rtol=0, atol=TOLERANCE)
    for name, gradient in found["gradient"].items():
        if gradient is not None:
            table = torch.tensor(gradient, dtype=torch.double)
            torch.testing.assert_close(table, expected[name], rtol=0, atol=TOLERANCE)
    assert loss_of_code(browser) == pytest.approx(found["loss"], abs=TOLERANCE)


def test_the_keyboard_does_it_all(browser, page):
    """The slider, the tokens, the frame: what changes is seen at once."""
    browser.open(page, "#posterior=hello")
    before = shown_loss(browser)
    focus(browser, "#factor-range")
    browser.press(*ARROW_RIGHT)
    assert browser.evaluate("document.getElementById('factor').value") == "10.5"
    assert shown_loss(browser) > before
    case = Case(synthetic(), "-factor * frame / T", "last", "end", 10.5)
    expected = library(case, brctc.EarlyFinish(10.5))["loss of logits"].item()
    assert shown_loss(browser) == pytest.approx(expected, abs=6e-5)
    focus(browser, "[value=last]")
    browser.press(*ARROW_RIGHT)
    assert browser.evaluate("document.querySelector('[name=tokens]:checked').value") == "each"
    assert "class Formula(brctc.BayesRisk)" in browser.text("python")
    focus(browser, "#frame")
    heading = browser.text("frame-heading")
    browser.press(*ARROW_LEFT)
    assert browser.text("frame-heading") != heading
    focus(browser, "#tokens button")
    browser.press(*SPACE)
    assert browser.evaluate("document.querySelectorAll('#tokens [aria-pressed=true]').length") == 1
    assert browser.evaluate("document.querySelectorAll('.chart .faded').length") > 4
    order = browser.evaluate(
        "[...document.querySelectorAll('input, select, textarea, button, summary, pre')]"
        ".filter((e) => e.tabIndex < 0).map((e) => e.id)"
    )
    assert order == []  # the tabulator comes to everything


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("-factor * fram", 'There is no "fram": did you mean "frame"?'),
        ("log(frame - 30)", "The log-risk is not a number for token 1 at frame 1."),
        ("", "Type a formula, such as -factor * frame / T."),
    ],
)
def test_a_wrong_formula_is_no_blank_page(browser, page, formula, message):
    browser.open(page, "#posterior=hello&tokens=each")
    browser.type("formula", formula)
    assert browser.text("formula-message") == message
    assert browser.evaluate("document.getElementById('formula').getAttribute('aria-invalid')") == "true"
    assert browser.evaluate("document.querySelectorAll('.stale .chart svg').length") == 4
    browser.choose("posterior", "uniform")  # the last formula that said something stays in force
    browser.type("factor", "3")
    case = Case(uniform(), "-factor * frame / T", "each", "end", 3.0)
    expected = library(case, ByFormula(case))["loss of logits"].item()
    assert shown_loss(browser) == pytest.approx(expected, abs=6e-5)
    assert loss_of_code(browser) == pytest.approx(expected, abs=TOLERANCE)
    browser.type("formula", "-frame / T")
    assert browser.text("formula-message") == ""
    assert browser.evaluate("document.querySelectorAll('.stale').length") == 0
    assert browser.complaints() == []


def test_addresses_and_factors_that_say_nothing(browser, page):
    browser.open(page, "#posterior=nobody&tokens=all&factor=much&formula=1%20%2B%20%3Cb%3E")
    assert (
        browser.text("formula-message") == 'A number or a name is missing between "+" and "<" at position 5.'
    )
    assert browser.evaluate("document.querySelectorAll('.chart svg').length") == 4
    browser.open(page)
    before = shown_loss(browser)
    browser.type("factor", "")
    assert browser.text("factor-message") == "The factor must be a number."
    assert shown_loss(browser) == before
    browser.type("factor", "-3.5")
    assert browser.text("factor-message") == ""
    assert shown_loss(browser) < before
    browser.type("formula", "log(frame < 2)")
    assert "The risk forbids every path" in browser.text("formula-message")
    assert browser.complaints() == []


def test_an_address_can_be_sent(browser, page):
    browser.open(page)
    browser.choose("posterior", "hello")
    browser.type("formula", "-factor * max(frame - peak, 0)")
    loss = shown_loss(browser)
    browser.evaluate("new Promise((resolve) => setTimeout(resolve, 400))")
    address = browser.evaluate("location.hash")
    browser.open(page, address)
    assert browser.evaluate("document.getElementById('formula').value") == "-factor * max(frame - peak, 0)"
    assert shown_loss(browser) == loss


def test_ids_and_tokens_are_no_markup(browser, evil):
    browser.open(evil)
    shown = EVIL.replace("\u202e", r"\u202e")
    assert browser.evaluate("document.querySelector('#tokens button').textContent") == shown
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes(browser, page, scheme, tmp_path):
    """The four charts are on a laptop's screen, and their text can be told from the ground."""
    browser.show_as(scheme)
    browser.open(page)
    bottom = browser.evaluate("document.getElementById('gradient-chart').getBoundingClientRect().bottom")
    assert bottom <= 768
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    assert dark == (scheme == "dark")
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(PNG)
    browser.show_as("light", width=480)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.show_as("light")
