"""torchrun on two hosts, one of which is lost: killed, without power, or cut off."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from host_kit import Host, two_hosts
from labelwise.data.sample import make_sample
from labelwise.training import load_recipe
from labelwise.training.run import read_history
from labelwise.training.train import train
from tests.fork_server import Process

# What each process draws for itself is off: then a group of any size computes the same, but for rounding.
SETTINGS = [
    *("--backbone", "test_resnet", "--weights", "none", "--size", "32", "--batch-size", "8", "--freeze", "backbone"),
    *("--head", "hsq", "--set", "head.dim=16", "--set", "head.attention_heads=2", "--set", "head.shared_experts=2"),
    *("--set", "head.dropout=0.0", "--set", "head.token_dropout=0.0", "--set", "pair_mix=0"),
    *("--set", "precision=32-true", "--set", "checkpoint_minutes=0.000001", "--set", "timeout_minutes=0.15"),
    *("--set", "refit=0", "--lr", "1e-4"),  # a low rate: over a thousand steps, rounding adds up
]


BOTH_TRAIN = r"2 processes\n.*\n.*epoch +\d"
# On a busy machine one host may come so late that the other one begins alone: that one waits before it trains.
WHEN_BOTH_ARE_THERE = """
import os, runpy, sys, time
from pathlib import Path
here = Path(__file__).parent
(here / f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}").touch()
while not all((here / f"{rank} of 2").exists() for rank in range(2)):
    time.sleep(0.02)
runpy.run_module("labelwise", run_name="__main__", alter_sys=True)
"""


class TwoHosts:
    """A training on two hosts in one run folder."""

    def __init__(self, hosts: tuple[Host, Host], folder: Path, epochs: int, meeting: int) -> None:
        make_sample(folder / "sample", images=40, size=48)
        self.hosts, self.meeting, self.run = hosts, hosts[meeting], folder / "run"
        (folder / "train.py").write_text(WHEN_BOTH_ARE_THERE)
        self.arguments = [str(folder / "train.py"), "train", *SETTINGS, "--out", str(self.run)]
        self.arguments += ["--data", str(folder / "sample" / "labels.csv")]
        self.arguments += ["--epochs", str(epochs)]
        self.processes = [self.start(host) for host in hosts]

    def start(self, host: Host) -> Process:
        return host.torchrun(self.meeting, *self.arguments)

    def wait_until(self, pattern: str) -> None:
        """For a line of the log."""
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.log):
            assert time.monotonic() < deadline, [process.output(process._out) for process in self.processes]
            time.sleep(0.01)

    @property
    def log(self) -> str:
        file = self.run / "log.txt"
        return file.read_text() if file.exists() else ""

    @property
    def restarts(self) -> list[tuple[int, int]]:
        """After which step, and with how many processes."""
        found = re.findall(r"continuing after step ([\d,]+) of [\d,]+, with (\d) process", self.log)
        return [(int(step.replace(",", "")), int(processes)) for step, processes in found]

    def matches_an_undisturbed_run(self) -> None:
        """On one process: the same images in the same steps, whoever computed them."""
        train(load_recipe(self.run / "recipe.yaml", {}), self.run.with_name("alone"))
        alone, both = read_history(self.run.with_name("alone")), read_history(self.run)
        for expected, found in zip(alone, both, strict=True):
            assert found["loss"] == pytest.approx(expected["loss"], abs=1e-4)


def ended(process: Process) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def test_a_killed_host(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        group = TwoHosts(hosts, tmp_path, epochs=10, meeting=0)
        group.wait_until(BOTH_TRAIN)
        hosts[1].kill()
        said = ended(group.processes[0])
    assert re.search(r"error: a process of this training does not answer \(.*\)\. The last checkpoint is kept", said)
    assert "Traceback" not in said
    step, processes = group.restarts[-1]
    assert processes == 1
    assert 0 < step < 10 * 3
    group.matches_an_undisturbed_run()


@pytest.mark.slow
def test_a_host_without_power_that_comes_back(tmp_path: Path) -> None:
    with two_hosts() as hosts:
        group = TwoHosts(hosts, tmp_path, epochs=400, meeting=0)
        group.wait_until(BOTH_TRAIN)
        hosts[1].cut_off()  # nobody is told that its processes end
        hosts[1].kill()
        group.wait_until("with 1 process\n.*\n.*epoch")
        hosts[1].connect()
        again = group.start(hosts[1])
        group.wait_until("with 1 process\n[\\s\\S]*with 2 processes")
        ended(group.processes[0])
        ended(again)
    assert [processes for _, processes in group.restarts][-2:] == [1, 2]
    assert "stopped; nothing is lost" in group.log  # torchrun asked the one process to make room
    group.matches_an_undisturbed_run()


@pytest.mark.slow
def test_a_host_that_is_cut_off_holds_the_lock(tmp_path: Path) -> None:
    """The first process, which writes the checkpoints, is on the host that is lost. It still has the run's folder until
    it notices; then the other host goes on."""
    with two_hosts() as hosts:
        group = TwoHosts(hosts, tmp_path, epochs=40, meeting=1)
        group.wait_until(BOTH_TRAIN)
        hosts[0].cut_off()
        ended(group.processes[1])
        assert "a process of this training does not answer" in Process.output(group.processes[0]._out)
    assert group.restarts[-1][1] == 1
    group.matches_an_undisturbed_run()
