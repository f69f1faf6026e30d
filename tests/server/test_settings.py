"""Limits of a server that follow the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labelwise.data.images import load_image
from labelwise.server.settings import ServeSettings, memory_limit, parse_models, pixel_limit
from serving_kit import png

MODELS = parse_models(["runs/first"])


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 16 GB, whose control groups are files of this test."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": (16 << 30) // 4096}.__getitem__)
    monkeypatch.setattr("labelwise.server.settings.Path", lambda path: tmp_path / str(path).removeprefix("/"))
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "file", "limit", "expected"),
    [
        ("0::/", "sys/fs/cgroup/memory.max", "max\n", 16 << 30),
        ("0::/", "sys/fs/cgroup/memory.max", f"{4 << 30}\n", 4 << 30),  # a container
        ("0::/system.slice/tags.service", "sys/fs/cgroup/system.slice/tags.service/memory.max", str(2 << 30), 2 << 30),
        ("4:memory:/docker/ab", "sys/fs/cgroup/memory/memory.limit_in_bytes", str(1 << 30), 1 << 30),
        ("4:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes", str(1 << 63), 16 << 30),  # none
        ("9:name=systemd:/", "nothing", "", 16 << 30),
    ],
)  # fmt: skip
def test_the_memory_is_the_machines_or_the_containers(
    groups: Path, line: str, file: str, limit: str, expected: int
) -> None:
    (groups / "proc/self/cgroup").write_text(f"{line}\n")
    (groups / file).parent.mkdir(parents=True, exist_ok=True)
    (groups / file).write_text(limit)
    assert memory_limit() == expected


def test_without_control_groups_it_is_the_machines(groups: Path) -> None:
    assert memory_limit() == 16 << 30


def test_the_pixel_limit_follows_the_memory() -> None:
    assert ServeSettings(models=MODELS).max_pixels == pixel_limit(memory_limit())
    assert ServeSettings(models=MODELS, max_pixels=7).max_pixels == 7
    assert pixel_limit(8 << 30) > 9504 * 6336  # a camera with 61 megapixels
    load_image(png(4000, 3000), max_pixels=pixel_limit(2 << 30))


def test_the_help_says_what_the_limit_is(labelwise) -> None:
    said = " ".join(labelwise("serve", "--help").stdout.split())
    assert "a quarter of the machine's or container's memory" in said.replace("│ ", "").replace(" │", "")
