"""How a training run shows its progress: a live line on a terminal, plain lines elsewhere, log.txt, TensorBoard."""

from __future__ import annotations

import io
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from labelwise.core.errors import counted
from labelwise.core.files import atomic_write
from labelwise.core.progress import Counter, is_live
from labelwise.core.terminal import open_console

_SECONDS_BETWEEN_LINES = 30  # where there is no terminal
_LINES = 25  # of finished epochs: few images take hundreds of short ones


class Display:
    """Progress on stderr and in a log file. Without a log file it is silent: of several processes, only one reports."""

    def __init__(self, log: Path | None) -> None:
        self.console = open_console(stderr=True, quiet=log is None)
        self.log = log
        self._said = time.monotonic()
        self._epoch = ""
        self._steps: Counter | None = None
        self._live: Progress | None = None
        self._task: Any = None
        self._score = self._best_score = ""  # the best one is not known after a resume
        self._told_epochs = range(0)

    def say(self, text: str) -> None:
        """Print a line and log it."""
        self._said = time.monotonic()
        self.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def note(self, text: str) -> None:
        """Show what is going on now; only on a terminal."""
        if self._live is not None:
            self._live.update(self._task, note=text)

    def start_epoch(self, epoch: int, epochs: int, steps: int, first: int) -> None:
        self._epoch = f"epoch {epoch + 1} of {epochs}"
        self._told_epochs = range(epochs, 0, -max(1, epochs // _LINES))
        done = epoch * steps + first
        if self._steps is None:
            self._steps = Counter("", epochs * steps, done, "steps", lambda _: None)
            self.say(f"{counted(epochs, 'epoch')} of {counted(steps, 'step')}")
        if not is_live(self.console):
            return
        if self._live is None:
            columns = ("epoch {task.fields[epoch]}", "loss {task.fields[loss]}", "{task.fields[score]}")
            self._live = Progress(
                *(TextColumn(text) for text in columns),
                BarColumn(),
                TextColumn("{task.fields[speed]} images/s"),
                TextColumn("left:"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self.console,
                transient=True,
            )
            self._live.start()
            self._task = self._live.add_task("", total=epochs * steps, loss="-", score="", speed="-", note="", epoch="")
        self._live.update(self._task, completed=done, epoch=f"{epoch + 1}/{epochs}", note="")

    def step(self, loss: float, images_per_second: float) -> None:
        speed = f"{images_per_second:.0f}"
        assert self._steps is not None
        self._steps()
        if self._live is not None:
            self._live.update(self._task, advance=1, loss=f"{loss:.4f}", score=self._score, speed=speed)
        elif time.monotonic() - self._said > _SECONDS_BETWEEN_LINES:
            self.say(f"{self._epoch}  loss {loss:.4f}  {speed} images/s  {self._steps.left}")

    def end_epoch(self, row: dict[str, Any], best_epoch: int | None) -> None:
        name, score = ("top-1", row["accuracy_top1"]) if "accuracy_top1" in row else ("mAP", row.get("mAP"))
        self._score = f"{name} {score:.2f}" if score is not None else ""
        if best_epoch == row["epoch"]:
            self._best_score = f", {self._score}"
        if row["epoch"] not in self._told_epochs:
            return
        best = "best so far" if best_epoch == row["epoch"] else f"best: epoch {best_epoch}{self._best_score}"
        speed = f"{row['images_per_second']:.0f} images/s, {row['waiting']:.0%} of the time waiting for data"
        self.say(
            f"epoch {row['epoch']:>3}  loss {row['loss']:.4f}  {self._score}  {speed}  {row['seconds']:.0f} s"
            + (f"  {best}" if self._score else "")
            + (f"  {self._steps.left}" if self._steps is not None and row["epoch"] < self._told_epochs[0] else "")
        )

    def close(self) -> None:
        self._steps = None
        if self._live is not None:
            self._live.stop()
            self._live = None


def write_curves(folder: Path, history: list[dict[str, Any]]) -> None:
    """Write the scalars of every epoch for TensorBoard, all of them anew: a resumed run leaves no double points.

    Not by torch's SummaryWriter: its thread prints a traceback when the disk is full.
    """
    if find_spec("tensorboard") is None:
        return
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    content, now = io.BytesIO(), time.time()
    events = [Event(wall_time=now, file_version="brain.Event:2")]
    for row in history:
        scalars = {name: value for name, value in row.items() if name != "epoch" and isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        events.append(Event(wall_time=now, step=row["epoch"], summary=Summary(value=values)))
    writer = RecordWriter(content)
    for event in events:
        writer.write(event.SerializeToString())
    file = folder / f"events.out.tfevents.{time.time_ns()}"  # TensorBoard goes on to files with a later name
    atomic_write(file, content.getvalue())
    for old in folder.glob("events.*"):
        if old != file:
            old.unlink()
