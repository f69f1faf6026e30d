import io

import pytest
from rich.console import Console

from labelwise.core import progress as module
from labelwise.core.progress import progress_of, track


def test_a_callback_is_told_everything() -> None:
    told: list[tuple[str, int, int | None]] = []
    with progress_of("Reading", None, lambda *event: told.append(event), done=2) as advance:
        advance()
        advance.expect(10)
        advance(3)
    assert told == [("Reading", 3, None), ("Reading", 3, 10), ("Reading", 6, 10)]


def test_plain_lines_come_every_ten_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with progress_of("Computing features", 100, done=10) as advance:
        for now[0] in (4.0, 12.0, 13.0):
            advance(12)
    said = capsys.readouterr()
    assert said.err == "Computing features: 34 of 100, 2.0 images/s, 0:00:33 left\n"
    assert said.out == ""


def test_a_terminal_gets_a_bar_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        module, "open_console", lambda **options: Console(file=screen, force_terminal=True, width=100, height=20)
    )
    assert list(track(range(3), "Fetching a.zip", unit="bytes")) == [0, 1, 2]
    assert "Fetching a.zip" in screen.getvalue()
    assert "MB" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_gets_a_bar_only_with_widgets(
    monkeypatch: pytest.MonkeyPatch, widgets: bool, recwarn: pytest.WarningsRecorder
) -> None:
    shown = []
    monkeypatch.setattr(module, "open_console", lambda **options: Console(file=io.StringIO(), force_jupyter=True))
    monkeypatch.setattr(module, "find_spec", lambda name: object() if widgets else None)
    monkeypatch.setattr("rich.progress.Progress.start", lambda self: shown.append(self))
    monkeypatch.setattr("rich.progress.Progress.stop", lambda self: None)
    with progress_of("Predicting", 5) as advance:
        advance(5)
    assert bool(shown) == widgets
    assert not recwarn.list


def test_nothing_is_shown_if_nobody_asks(capsys: pytest.CaptureFixture) -> None:
    assert list(track(iter("ab"), "Reading", shown=False)) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
