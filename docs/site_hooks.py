"""What mkdocs.yml adds to the pages in docs/: pages and files that live elsewhere, and examples in docstrings.

CONTRIBUTING.md, SECURITY.md, CHANGELOG.md and recipes/ stay at the root, where people and tools look for them; the
tutorial is a notebook. All links are written as they work in a checkout, and changed here to where the site has the
file.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# File of the repository -> page.
PAGES = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOKS = ("start/tutorial",)
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)(?P<path>[^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files that are not in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=site_links((ROOT / source).read_text("utf-8"), source, page)))
    for name in NOTEBOOKS:
        files.append(File.generated(config, f"{name}.md", content=notebook_page(ROOT / "docs" / f"{name}.ipynb")))
    for recipe in sorted((ROOT / "recipes").rglob("*.yaml")):
        path = recipe.relative_to(ROOT).as_posix()
        files.append(File.generated(config, path, content=recipe.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that leave docs/ lead to the generated copies."""
    return site_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri) if page.file.abs_src_path else markdown


def site_links(text: str, source: str, page: str) -> str:
    """The links of `source` (a path in the repository) as links of `page` (a path in the site)."""

    def rewritten(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), match["path"]))
        target = PAGES.get(target, target.removeprefix("docs/"))
        if target.removesuffix(".ipynb") in NOTEBOOKS:
            target = target.replace(".ipynb", ".md")
        return os.path.relpath(target, os.path.dirname(page) or ".")

    return LINK.sub(rewritten, text)


def notebook_page(notebook: Path) -> str:
    """The cells of a notebook and their outputs as Markdown."""
    parts = []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                parts.append("```text\n" + "".join(data["text/plain"]).rstrip() + "\n```")
    parts.insert(1, f"[Download this notebook]({notebook.name})")
    return "\n\n".join(parts) + "\n"


class FencedDoctests(griffe.Extension):
    """Docstrings show their doctests as code; Markdown would take `>>>` for a quotation."""

    DOCTEST = re.compile(r"^(?P<indent> *)>>> .*\n?(?:^(?P=indent)(?! *$).*\n?)*", re.MULTILINE)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = self.DOCTEST.sub(self._fenced, obj.docstring.value)

    @staticmethod
    def _fenced(match: re.Match[str]) -> str:
        indent = match["indent"]
        return f"{indent}```python\n{match[0].rstrip()}\n{indent}```\n"
