"""The report page: whole without a network, every kernel in it, and usable in a browser, where one is."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import framework as fw
import framework.nn.functional as F

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """Elements of a page by id, what it refers to outside itself, and the texts of its scripts by type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.open: list[str] = []
        self.scripts: dict[str, str] = {}
        self.kind = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.outside += [str(found[name]) for name in ("src", "href", "action", "srcset") if name in found]
        self.kind = (found.get("type") or "text/javascript") if tag == "script" else ""
        if tag not in ("meta", "input", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.kind = ""

    def handle_data(self, data: str) -> None:
        if self.kind:
            self.scripts[self.kind] = self.scripts.get(self.kind, "") + data


def function() -> Any:
    """A compiled function with a product, a row kernel and a name that HTML would trip over."""

    def sketch(x: fw.Tensor, w: fw.Tensor) -> fw.Tensor:
        return F.softmax((x @ w).tanh(), -1).sum(0)  # "</script><script>alert(1)</script>"

    f = fw.compile(sketch)
    f(fw.randn(40, 30), fw.randn(30, 20))
    return f


def test_the_page_is_whole_and_needs_nothing(tmp_path: Path) -> None:
    f = function()
    path = f.explain().save(tmp_path / "report.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == [] and page.outside == [] and len(set(page.ids)) == len(page.ids)
    assert {"main", "search", "theme", "nav", "report"} <= set(page.ids)
    assert set(page.scripts) == {"application/json", "text/javascript"}
    assert "http" not in re.sub(r'"http://www.w3.org/2000/svg"', "", page.scripts["text/javascript"])
    content = json.loads(page.scripts["application/json"])
    assert content["mode"] == "replay" and content["name"] == "sketch"
    (program,) = content["programs"]
    for kernel, view in zip(program["kernels"], f.kernels, strict=True):
        assert content["sources"][kernel["source"]] == view.source and kernel["spec"] == str(view.spec)
    assert any("</script>" in line for line in content["files"][Path(__file__).name].values())
    assert content["roof"] is None


def test_the_page_of_a_function_without_a_program(tmp_path: Path) -> None:
    page = Page(fw.compile(lambda x: x).explain().save(tmp_path / "a.html").read_text(encoding="utf-8"))
    assert json.loads(page.scripts["application/json"])["programs"] == []


def test_the_example_saves_its_page(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    command = [sys.executable, str(ROOT / "examples/inspect_step.py"), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert f"saved {path}" in result.stdout
    content = json.loads(Page(path.read_text(encoding="utf-8")).scripts["application/json"])
    assert content["mode"] == "replay" and len(content["programs"][0]["kernels"]) > 30
    assert "inspect_step.py" in content["files"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed")
    api = importlib.import_module("playwright.sync_api")
    with api.sync_playwright() as playwright:
        options: dict[str, Any] = {"args": ["--no-sandbox"]}
        if installed := shutil.which("chromium"):
            options["executable_path"] = installed
        try:
            started = playwright.chromium.launch(**options)
        except api.Error:
            pytest.skip("playwright has no Chromium")
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a function's report; no script of it may fail."""
    failures: list[str] = []

    def show(f: Any, width: int = 1200, scheme: str = "light") -> Any:
        path = f.explain().save(tmp_path / "report.html")
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True
        )
        page = context.new_page()
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        page.wait_for_selector("#list button")
        return page

    yield show
    assert failures == []


def test_a_click_on_a_kernel_shows_its_source_beside_the_line(opened: Any) -> None:
    f = function()
    page = opened(f)
    assert page.locator("#list button").count() == len(f.kernels)
    for number, view in enumerate(f.kernels):
        page.click(f"#list button[data-kernel='{number}']")
        assert page.inner_text("#kernel-name") == f"{number} {view.spec.name}"
        assert page.locator("#detail pre").last.text_content() == view.source.rstrip() + "\n"
        assert 'F.softmax((x @ w).tanh(), -1).sum(0)  # "</script>' in page.inner_text("#detail pre .hit")
    page.click("#show-spec")
    assert page.locator("#detail pre").last.text_content() == str(f.kernels[-1].spec) + "\n"
    page.click("#graph [data-kernel='0']")
    assert page.inner_text("#kernel-name").startswith("0 ")
    assert "product starts from whole operands" in page.inner_text("#detail")
    assert page.locator("#timeline [data-kernel]").count() == len(f.kernels)


def test_search(opened: Any) -> None:
    page = opened(function())
    page.keyboard.press("/")
    page.keyboard.type("matmul")
    assert page.locator("#list button").count() == 1 and page.inner_text("#found") == "1 of 2 kernels"
    assert page.locator("#graph g.dim").count() == 1
    page.fill("#search", "no such thing")
    assert page.locator("#list button").count() == 0 and "Nothing matches" in page.inner_text("#list")
    page.fill("#search", "softmax")
    assert page.locator("#list button").count() == 2, "the text of user lines is searched"


def test_a_narrow_window(opened: Any) -> None:
    page = opened(function(), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    detail, listed = (page.locator(x).bounding_box() for x in ("#detail", "#list"))
    assert detail["y"] >= listed["y"] + listed["height"] and detail["width"] <= 390
    page.click("#list button[data-kernel='1']")
    assert page.inner_text("#kernel-name").startswith("1 ")


def test_dark_mode(opened: Any) -> None:
    def lightness(page: Any) -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    page = opened(function(), scheme="dark")
    assert lightness(page) < 150
    page.click("#theme")
    assert lightness(page) > 600
    assert lightness(opened(function())) > 600
