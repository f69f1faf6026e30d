"""What the whole suite shares: warm processes, a browser, one thread per test process, and no silent skips.

`make test` runs two processes on two cores. A file's tests stay in one of them (`--dist loadfile`), so that its
fixtures are made once; the files that take longest are handed out first.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server

collect_ignore = ["fixtures/make_before_rooms.py"]  # runs with the code of then
collect_ignore_glob = ["*/conftest.py"]  # no doctests there; as modules they all have one name
LONGEST = ("pages", "presets", "page_labels", "page_maps", "fidelity", "recipes", "processes", "ray", "bundled", "run")
# What a skipped test lacks, by the reason it gives, and the one command that helps.
ENABLED_BY = {
    "Chromium": "sudo apt-get install chromium",
    "curl": "sudo apt-get install curl",
    "network namespaces": "sudo apt-get install iproute2 && sudo make attack",
    "exiftool": "sudo apt-get install libimage-exiftool-perl",
    "shared": "LABELWISE_SHARED_DATA=FOLDER make test",
    "": "make install  # every extra: pip install --editable '.[dev]'",
}
# Before anything imports PyTorch, for this process and all that it starts.
os.environ |= {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # 1: no pool of compiling processes
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # some tests import ONNX Runtime before labelwise
if sys.dont_write_bytecode:  # as in many containers: each process would compile PyTorch's sources, which takes seconds
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["PYTHONPYCACHEPREFIX"]
_session = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # one for all of xdist's workers
        stack = config.stash[_session] = ExitStack()
        os.environ["HF_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(fork_server.ForkServer())


def pytest_unconfigure(config: pytest.Config) -> None:
    if _session in config.stash:
        config.stash[_session].close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """The workers start with PyTorch imported."""
    for spec in specs:
        spec.python = shlex.quote(str(fork_server.executable()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest = [f"test_{name}" for name in LONGEST]
    items.sort(key=lambda item: longest.index(item.path.stem) if item.path.stem in longest else len(longest))
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """LABELWISE_REQUIRE=browser: tests of that marker must all have run, or the session fails."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    for kind in os.environ.get("LABELWISE_REQUIRE", "").split():
        ran, skipped = (
            [report for report in reporter.stats.get(outcome, []) if kind in getattr(report, "keywords", {})]
            for outcome in ("passed", "skipped")
        )
        if skipped or not ran:
            reporter.write_line(
                f"\nLABELWISE_REQUIRE={kind}: {len(skipped)} tests were skipped, {len(ran)} ran", red=True
            )
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Nothing is skipped in silence: which kinds of tests did not run, and the command that enables them."""
    missing: dict[str, set[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = re.sub("^Skipped: ", "", reason)
        if "+SKIP" in reason:  # an example that needs the reader's own files, meant to be read
            continue
        missing.setdefault(reason, set()).add(report.nodeid)
    terminalreporter.section("not run")
    for reason, tests in sorted(missing.items()):
        command = next(command for word, command in ENABLED_BY.items() if word in reason)
        terminalreporter.write_line(f"{len(tests):4} skipped ({reason}); to run them: {command}")
    if "not slow" in config.option.markexpr:
        terminalreporter.write_line("     those that take minutes; to run them: make test-slow")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    import torch  # not above: the process that hands out the tests never needs it

    torch.manual_seed(0)


@pytest.fixture
def fresh_compiler() -> None:
    """For tests that compile: heads share their code, and their compilations would count as recompilations."""
    import torch

    torch.compiler.reset()  # takes some 20 ms


@pytest.fixture(scope="session")
def labelwise() -> fork_server.Command:
    """`labelwise("heads", "hsq", cwd=..., env=..., input=...)`: the command in a process that starts warm."""
    return fork_server.labelwise


@pytest.fixture(scope="session")
def exiftool() -> str:
    """The program that reads and writes all metadata, to compare with."""
    program = shutil.which("exiftool")
    if program is None:
        pytest.skip("needs exiftool")
    return program


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Photos that are too many for the repository: VOC 2007 and a tiny COCO."""
    beside = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    folder = Path(os.environ.get("LABELWISE_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip("needs the shared photos (VOC 2007, tiny COCO)")
    return folder


@pytest.fixture(scope="module")  # not longer: while playwright is open, nothing else can run an event loop
def browser() -> Iterator[Any]:
    """A Chromium. Tests that take it are marked `browser`."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("needs a Chromium, also as CHROMIUM=PATH")
    sync_api.expect.set_options(timeout=30_000)  # a busy machine takes its time
    with sync_api.sync_playwright() as playwright:
        # As root, which containers mostly are, Chromium starts only without its sandbox.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
