"""Interactive reports in a real browser: controls show the numbers of the metrics and are accessible."""

import csv
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import drawn_labels

from calibrant import Predictions, assess, calibrators, measure, metrics
from calibrant.assessment import Assessment

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NAMES = ["<b>cat</b>", "a dog & co", "</script><img src=x onerror=document.title='run'>", "\u202efrog", "=1+1", "bird"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("pictures"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path (Debian: apt-get install chromium)"),
]


def draw(n: int, seed: int, k: int, **options: Any) -> Predictions:
    """Return predictions whose logits are twice too large."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=(n, k))
    return Predictions(2 * z, drawn_labels(z, rng), **options)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    before = dict(os.environ)
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def evaluation_data() -> Predictions:
    groups = [["north", "south </script>"][i % 2] for i in range(800)]
    return draw(800, 1, 6, class_names=NAMES, groups=groups)


@pytest.fixture(scope="module")
def result(evaluation_data) -> Assessment:
    return assess(draw(800, 0, 6, class_names=NAMES), evaluation_data, ("Identity", "Temperature"))


@pytest.fixture(scope="module")
def report(result, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    result.save(path)
    return path


@pytest.fixture(scope="module")
def risk(tmp_path_factory) -> tuple[Path, Predictions]:
    """Return the page about the probability of class 1 of two."""
    path, p = tmp_path_factory.mktemp("risk") / "risk.html", draw(800, 2, 2)
    measure(p).save(path)
    return path, p


@pytest.fixture(scope="module")
def study_page(tmp_path_factory) -> Path:
    """Return the report of a study of two losses on two data sets."""
    pytest.importorskip("torch")
    from calibrant.lab.study import Grid, Recipe, Store, Study
    from calibrant.lab.study.measurements import measure_runs
    from calibrant.lab.study.results import Result
    from calibrant.lab.study.tables import build_tables

    folder = tmp_path_factory.mktemp("study")
    recipe = Recipe(epochs=1, milestones=())
    study = Study("x", (Grid(("digits", "svhn"), ("resnet8",), ("cross_entropy", "focal"), (0, 1), recipe),))
    store = Store(folder)
    for i, run in enumerate(study.runs()):
        p = draw(150, i, 3)
        row = {"epoch": 1, "train_loss": 1.0, "learning_rate": 0.1, "val_error": 0.1, "val_nll": 1.0, "seconds": 1.0}
        store.save(run, {"val": p, "test": p}, {"seconds": 1.0}, [row])
    result = list(measure_runs(study, store))
    calibrated = build_tables(row for measurement in result for row in measurement.rows)
    path = folder / "study.html"
    Result(study, calibrated, result, failed={}, folder=folder).save(path)
    return path


@pytest.fixture
def visit(browser) -> Iterator[Any]:
    """Open pages, and assert that they log nothing and load nothing."""
    messages: list[str] = []
    contexts: list[Any] = []

    def open_(path: Path, width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: None if request.url == path.as_uri() else messages.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [line for line in messages if not line.startswith(("data:", "blob:"))] == []


def tiles(part: Any) -> dict[str, str]:
    """Return the texts of tiles by their titles."""
    names, values = part.locator("dt").all_inner_texts(), part.locator("dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


def slide(part: Any, to: int) -> None:
    part.locator("input[type=range]").evaluate(
        "(slider, to) => { slider.value = to; slider.dispatchEvent(new Event('input')) }", to
    )


def test_slider_shows_the_metrics_at_its_temperature(visit, report, evaluation_data):
    part = visit(report).locator(".play[data-kind=temperature]")
    slider = part.locator("input[type=range]")
    for place in 0, 17, 24, 33, 48:
        slide(part, place)
        t = 2 ** ((place - 24) / 12)
        calibrated = evaluation_data.apply(calibrators.Temperature(t))
        floor, texts = metrics.noise_floor.interval(calibrated), tiles(part)
        assert slider.get_attribute("aria-valuetext") == f"T = {t:.2f}"
        assert texts["NLL"].strip() == metrics.metric_info("nll").text(float(metrics.nll(calibrated)))
        assert texts["ECE"].split("\n")[0] == f"{100 * float(metrics.ece(calibrated)):.2f} %"
        assert f"noise floor {100 * floor.value:.2f} %, up to {100 * floor.high:.2f} %" in texts["ECE"]
        assert texts["Mean confidence"].strip() == f"{100 * float(calibrated.events.confidence.mean()):.1f} %"


def test_slider_and_curve_follow_the_keyboard(visit, report):
    part = visit(report).locator(".play[data-kind=temperature]")
    before = part.locator("svg circle").evaluate_all("all => all.map(one => one.getAttribute('cy'))")
    part.locator("input[type=range]").focus()
    part.page.keyboard.press("ArrowRight")
    part.page.keyboard.press("ArrowRight")
    assert part.locator("output").inner_text() == f"T = {2 ** (2 / 12):.2f}"
    assert part.locator("svg circle").evaluate_all("all => all.map(one => one.getAttribute('cy'))") != before


def test_marks_are_the_bins_with_their_intervals(visit, report, evaluation_data):
    page = visit(report)
    part = page.locator(".play[data-kind=temperature]")
    bins = metrics.tables.bins(evaluation_data)
    last = int(bins.count.nonzero()[0][-1])
    part.locator("svg").focus()
    page.keyboard.press("End")
    words = page.locator("[role=status].unseen").inner_text()
    low, high = (100 * float(limit[last]) for limit in metrics.curves.frequency_limits(bins))
    assert f"accuracy {100 * float(bins.accuracy[last]):.1f} %" in words
    assert f"simultaneous 90 % interval {low:.1f} to {high:.1f} %" in words
    assert f"{int(bins.count[last])} examples" in words


def test_menu_shows_every_calibrator(visit, report, result):
    part = visit(report).locator(".play[data-kind=temperature]")
    assert part.locator("option").all_inner_texts() == ["temperature slider", "uncalibrated", "Temperature"]
    part.locator("select").select_option("Temperature")
    assert part.locator("input[type=range]").is_disabled()
    assert tiles(part)["NLL"].strip() == result.calibrated["nll"].text
    assert tiles(part)["ECE"].startswith(f"{result.calibrated['ece'].text} %")


def test_threshold_control_shows_error_and_cost(visit, report, evaluation_data):
    part = visit(report).locator(".play[data-kind=threshold]")
    part.locator("select").select_option("before calibration")
    part.locator("input[type=number]").nth(0).fill("5")
    part.locator("input[type=number]").nth(1).fill("0.5")
    for c in 0.0, 0.5, 0.93, 0.99:
        slide(part, round(100 * c))
        acted = evaluation_data.events.confidence >= c
        share, wrong = float(acted.mean()), float(1 - evaluation_data.events.outcome[acted].mean())
        cut, texts = np.array([c]), tiles(part)
        (low,), (high,) = metrics.curves.precision_limits(evaluation_data.events.by_score, cut)
        assert texts["acted on"].split("\n")[0] == f"{100 * share:.2f} %"
        assert texts["error rate among them"] == (
            f"{100 * wrong:.2f} %\nsimultaneous 90 % interval {100 * (1 - high):.2f} to {100 * (1 - low):.2f} %"
        )
        assert float(texts["expected cost"].split("\n")[0]) == pytest.approx(
            5 * share * wrong + 0.5 * (1 - share), abs=6e-5
        )


def test_threshold_control_finds_the_lowest_cost(visit, risk):
    path, p = risk
    part = visit(path).locator(".play[data-kind=threshold]")
    part.locator("input[type=number]").nth(0).fill("1")
    part.locator("input[type=number]").nth(1).fill("4")
    confidence, true = p.with_event(1).events.confidence, p.labels.astype(float)
    grid = [i / 100 for i in range(100)]

    def cost(c: float) -> float:
        acted = confidence >= c
        return float((acted * (1 - true) + 4 * ~acted * true).mean())

    best = min(grid, key=cost)
    advice = part.locator("p[role=status]").inner_text()
    assert advice.endswith(f"{100 * best:.0f} %, {cost(best):.4f} per example.")


def test_classes_are_sorted_searched_and_opened(visit, report, result, evaluation_data):
    page = visit(report)
    part = page.locator("section", has=page.locator("h2", has_text="Classes, worst first"))
    rows = part.locator("tbody tr")
    texts = [name.encode("unicode_escape").decode() if "\u202e" in name else name for name in NAMES]
    worst = [texts[j] for j in result.uncalibrated.classes.worst_first.tolist()]
    assert rows.locator("th").all_inner_texts() == worst
    part.get_by_role("button", name="examples").click()
    assert part.locator("th[aria-sort=descending]").count() == 1
    counts = [int(text.replace(",", "")) for text in rows.locator("td:nth-child(2)").all_inner_texts()]
    assert counts == sorted(np.bincount(evaluation_data.labels, minlength=6).tolist(), reverse=True)
    part.get_by_role("button", name="examples").click()
    part.get_by_role("button", name="examples").click()
    assert rows.locator("th").all_inner_texts() == worst
    opens = part.get_by_role("button", name="bird", exact=True)
    opens.click()
    assert opens.get_attribute("aria-expanded") == "true"
    detail = part.locator("tr.detail")
    mistakes = (evaluation_data.predicted != evaluation_data.labels) & (
        (evaluation_data.labels == 5) | (evaluation_data.predicted == 5)
    )
    likely = np.argsort(-np.where(mistakes, evaluation_data.outcomes.confidence, 0))[:5].tolist()
    assert detail.locator("tbody td:first-child").all_inner_texts() == [str(i) for i in likely]
    class_bins = metrics.tables.bins(evaluation_data.with_event(5))
    assert detail.locator("svg polyline").count() == 2
    detail.locator("svg").focus()
    page.keyboard.press("End")
    words = page.locator("[role=status].unseen").inner_text()
    last = int(class_bins.count.nonzero()[0][-1])
    assert f"{int(class_bins.count[last])} examples" in words or "after" in words
    opens.click()
    assert detail.count() == 0


def test_tables_are_searched(visit, tmp_path):
    path = tmp_path / "many.html"
    measure(draw(600, 3, 30, class_names=[f"kind {i}" for i in range(30)])).save(path)
    page = visit(path)
    part = page.locator("section", has=page.locator("h2", has_text="Classes, worst first"))
    rows = part.locator("tbody tr:visible")
    assert rows.count() == 15
    part.get_by_role("button", name="Show all 30").click()
    assert rows.count() == 30
    part.get_by_role("searchbox").fill("kind 2")
    assert rows.count() == 11
    assert part.locator("details").count() == 0


def test_tables_and_figures_are_downloaded(visit, report, result, tmp_path):
    page = visit(report)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download classes, worst first as CSV").click()
    waiting.value.save_as(tmp_path / "classes.csv")
    rows = list(csv.reader((tmp_path / "classes.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 7
    assert rows[0][:2] == ["class", "examples"]
    assert {row[0] for row in rows[1:]} >= {"<b>cat</b>", "'=1+1", "bird"}
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download metrics before and after as CSV").click()
    waiting.value.save_as(tmp_path / "numbers.csv")
    numbers = list(csv.reader((tmp_path / "numbers.csv").read_text(encoding="utf-8").splitlines()))
    ece = next(row for row in numbers if row[0].startswith("ECE"))
    assert result.uncalibrated["ece"].text in ece
    with page.expect_download() as waiting:
        page.get_by_role("button", name=re.compile("Download Reliability curve, Before calibration")).click()
    waiting.value.save_as(tmp_path / "curve.svg")
    svg = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "var(" not in svg
    assert "currentColor" not in svg


def test_pointer_shows_a_tooltip(visit, report, evaluation_data):
    page = visit(report)
    figure = page.locator("figure", has_text="Before calibration").first
    figure.scroll_into_view_if_needed()
    box = figure.locator("svg").bounding_box()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.4 * box["height"])
    words = page.locator(".tip").inner_text()
    assert re.match(
        r"confidence [\d.]+( to [\d.]+)? %: accuracy [\d.]+ % of [\d,]+ examples; calibrated model: [\d.]+", words
    )
    page.mouse.move(2, 2)
    assert page.locator(".tip").is_hidden()


def test_code_is_copied(visit, report):
    page = visit(report, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").first.click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("from calibrant import calibrators\n")
    assert len(copied.splitlines()) == 4


def test_table_of_contents_follows_scrolling(visit, report):
    page = visit(report)
    links = page.locator("nav.contents a")
    assert links.all_inner_texts() == page.locator("h2").all_inner_texts()
    links.filter(has_text="Calibrators").click()
    playwright.expect(page.locator(".contents [aria-current]")).to_have_text("Calibrators")  # polls without eval


def test_hostile_names_stay_text(visit, report):
    page = visit(report)
    for name in page.locator(".opens").all():
        name.click()
    assert page.title() != "run"
    assert page.locator("main img, main b").count() == 0
    assert page.locator("tr.detail").count() == 6


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "light"), (1280, "dark"), (400, "dark")])
def test_page_is_accessible(visit, report, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(report, width, color_scheme=scheme, bypass_csp=True)  # axe is a script
    page.locator(".opens").first.click()
    for details in page.locator("summary").all():
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    broken = axe.Axe().run(page).response["violations"]
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in broken] == []


@pytest.mark.parametrize("width", [1280, 400])
def test_study_page_is_sorted_within_groups_and_accessible(visit, study_page, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(study_page, width, bypass_csp=True)
    part = page.locator(".scroll").first
    rows = part.locator("tbody tr")
    before = rows.all_inner_texts()
    header = part.get_by_role("button", name="Identity")
    header.click()
    down = rows.all_inner_texts()
    header.click()
    after = rows.all_inner_texts()
    assert after != down
    groups = [i for i, text in enumerate(before) if text.startswith("resnet8 on")]
    assert [i for i, text in enumerate(after) if text.startswith("resnet8 on")] == groups
    assert {*after[: groups[1]]} == {*before[: groups[1]]}
    figure = page.locator("figure:has(> script)").first
    figure.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    assert "confidence" in page.locator("[role=status].unseen").inner_text()
    for details in page.locator("summary").all():
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = "all => all.filter(t => t.offsetWidth > t.parentElement.clientWidth + 1).length"
    assert width == 400 or page.locator(".scroll > table").evaluate_all(wider) == 0
    broken = axe.Axe().run(page).response["violations"]
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in broken] == []


def test_term_is_explained_on_hover_and_focus(visit, report):
    page = visit(report)
    term = page.locator("dl.answers abbr").first
    term.hover()
    assert "debiased L2 error: " in page.locator(".tip").inner_text()
    page.mouse.move(2, 2)
    assert page.locator(".tip").is_hidden()
    page.keyboard.press("Tab")
    term.focus()
    assert "debiased L2 error: " in page.locator("[role=status].unseen").inner_text()
    assert page.locator(".tip").is_visible()
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()


def test_page_is_complete_without_the_script(visit, report):
    bare = visit(report, java_script_enabled=False)
    assert bare.locator(".play:visible, .tools:visible, button:visible").count() == 0
    alive = visit(report)
    texts = [
        page.locator("section p:not(.play *), section dd:not(.play *)").all_inner_texts() for page in (bare, alive)
    ]
    assert texts[0] == texts[1]


def test_print_shows_all_rows_and_no_controls(visit, tmp_path):
    path = tmp_path / "many.html"
    measure(draw(300, 3, 30)).save(path)
    page = visit(path)
    page.emulate_media(media="print")
    assert page.locator("tbody tr:visible").count() >= 30
    assert page.locator(".tools:visible, .turn:visible, input:visible, .play:visible, nav:visible").count() == 0


def test_content_policy_refuses_a_changed_script(browser, report, tmp_path):
    """Negative control: the content policy refuses a changed script and logs it."""
    path = tmp_path / "changed.html"
    path.write_text(report.read_text().replace('"use strict";', '"use strict"; document.title = "run";'))
    page, messages = browser.new_page(), []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(path.as_uri())
    assert page.title() != "run"
    assert any("Content Security Policy" in text for text in messages)
    page.close()
