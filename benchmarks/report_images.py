"""Images of single sections of a report, for the pages in docs/.

    python benchmarks/report_images.py compare/report.html --section "Related labels" --out docs/images/pairs.png

Needs a Chromium (apt install chromium, or CHROMIUM=path), as the browser tests do.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--section", required=True, help="its heading")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=1000)
    arguments = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": arguments.width, "height": 800}, color_scheme="light")
        page.goto(arguments.report.resolve().as_uri())
        heading = page.get_by_role("heading", name=arguments.section, exact=True, level=2)
        page.locator("section").filter(has=heading).screenshot(path=arguments.out)
        browser.close()


if __name__ == "__main__":
    main()
