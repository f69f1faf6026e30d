"""SECURITY.md and constraints.txt keep their word: the limits are the code's, the versions are allowed ones."""

from __future__ import annotations

import inspect
import re
import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import ROOT
from PIL import Image

from labelwise.cli.serve import serve
from labelwise.data.decode import MAX_URL_BYTES, URL_SECONDS
from labelwise.data.images import MAX_FILE_BYTES
from labelwise.data.locations import _TRIES
from labelwise.jobs.ray_runner import _MOST_ATTEMPTS
from labelwise.server.settings import ModelSource, ServeSettings

SERVER = ServeSettings(models=(ModelSource(name="a", source="a"),))


@pytest.mark.parametrize(
    ("what", "default"),
    [
        ("pixels of an image", f"{2 * (Image.MAX_IMAGE_PIXELS or 0):,} (twice Pillow's `MAX_IMAGE_PIXELS`)"),
        ("size of an image file, or of one in a tar shard", f"{MAX_FILE_BYTES >> 20} MB"),
        ("an image from a URL", f"{MAX_URL_BYTES >> 20} MB, {URL_SECONDS:g} s"),
        ("attempts to read an image at a URL, in a large job", f"{_TRIES}, then its part fails"),
        ("worker crashes on one part, on Ray", f"{_MOST_ATTEMPTS}, then the part fails"),
        ("address of the server", inspect.signature(serve).parameters["host"].default),
        (
            "a request to the server",
            f"{SERVER.max_bytes // 10**6} MB, {SERVER.max_files} images, {SERVER.timeout:g} s; "
            "pixels by the machine's memory",
        ),
        ("queued requests", f"{SERVER.queue} images"),
    ],
)
def test_limits_are_those_of_the_code(what: str, default: str) -> None:
    assert f"\n| {what} | {default} |" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    # Nothing but names and versions: no address, no file, no option.
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?==[\w.+!]+", line)] == []
    return dict(line.split("==") for line in lines)


def test_every_tested_version_is_one_that_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    needed = [found for line in declared if (found := Requirement(line)).name != "labelwise"]
    tested = constraints()
    assert len(needed) > 40
    for requirement in needed:
        assert requirement.specifier.contains(tested[canonicalize_name(requirement.name)]), requirement
