"""Reads and runs the code on the pages: README.md, CONTRIBUTING.md, docs/**/*.md and the notebooks in docs/.

What a fence means:

    ```python    runs, from top to bottom, in one namespace per page; with >>> it is a doctest
    ```sh        shell commands; every `labelwise` command is also parsed
    ```console   shell commands after `$ `, each followed by its output
    ```text      directly after python or sh: what they print (`...` stands for anything)

`<!-- not run: reason -->` above a fence: parsed or compiled only. `<!-- slow: reason -->`: run by `make test-slow`.
`<!-- example output -->` above a text fence: it is not compared.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
AT_THE_ROOT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*AT_THE_ROOT, *sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>not run|slow|example output)(?:: (?P<reason>[^\n]+?))? -->\n+)?"
    r"(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
SERVER = "http://127.0.0.1:8000"  # a page that talks to it gets the address of a server that the tests started
# The first error ends a script, and the background processes it started with it.
STRICT = "set -euo pipefail\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str
    text: str
    mark: str | None = None
    reason: str | None = None
    output: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The shell commands, one line each; what is fed to a program (<<'END') is not a command."""
        if self.kind == "console":
            return re.findall(r"^\$ (.*)$", self.text, re.MULTILINE)
        if self.kind != "sh":
            return []
        text = re.sub(r"^(.*)<<'END'\n.*?^END$", r"\1", self.text, flags=re.MULTILINE | re.DOTALL)
        lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, or the code cells of a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return [
            Block(page, number, "python", "".join(cell["source"]))
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        body = "".join(line.removeprefix(match["indent"]) for line in match["text"].splitlines(keepends=True))
        compared = match["kind"] == "text" and match["mark"] is None
        if compared and found and not text[end : match.start()].strip() and found[-1].kind in ("python", "sh"):
            found[-1] = Block(**{**vars(found[-1]), "output": body})
        line = text.count("\n", 0, match.start("kind")) + 1
        found.append(Block(page, line, match["kind"], body, match["mark"], match["reason"]))
        end = match.end()
    return found


def parse(command: str) -> None:
    """Check that a `labelwise` or `benchmarks.speed` command exists and takes these options."""
    from benchmarks.speed.__main__ import app as bench
    from labelwise.cli import app

    words = [word for word in shlex.split(command, comments=True) if word != "&"]
    if "|" in words:
        words = words[words.index("|") + 1 :]
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[:3] == ["python", "-m", "benchmarks.speed"]:
        bench.parse_args(words[3:], exit_on_error=False, print_error=False)
    elif words[:2] == ["python", "-m"] or (words[0] == "python" and words[1].endswith(".py")):
        script = words[1] if words[1] != "-m" else words[2].replace(".", "/") + ".py"
        assert (ROOT / script).exists(), f"{script} does not exist"
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), f"no make {words[1]}"
    elif words[0] == "labelwise":
        app.parse_args(words[1:], exit_on_error=False, print_error=False)


class Runner:
    """Runs the blocks of one page, in the current folder."""

    def __init__(self, address: str | None = None) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.address = address
        self.shown: Any = None  # the value of the last expression

    def run(self, block: Block) -> None:
        text = block.text.replace(SERVER, self.address or SERVER)
        if block.kind == "python" and ">>> " in text:
            self._doctest(block, text)
        elif block.kind == "python":
            expect(block.output, self.python(block, text), block.where)
        elif block.kind == "console":
            for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                expect(output, self._command(command, block.where, fails=output.startswith("error:")), block.where)
        elif block.kind == "sh" and all(re.match(r"(?:[^|]* \| )?labelwise ", command) for command in block.commands):
            said = [self._command(command, block.where) for command in block.commands]
            expect(block.output, "".join(said), block.where)
        elif block.kind == "sh":
            expect(block.output, shell(text, block.where), block.where)

    def python(self, block: Block, text: str) -> str:
        """Run the code; as in a notebook, the value of a last expression is shown."""
        module = ast.parse(text, block.where)
        last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(module, block.where, "exec"), self.names)
            value = eval(compile(ast.Expression(last.value), block.where, "eval"), self.names) if last else None
        self.shown = value
        return said.getvalue()

    def _doctest(self, block: Block, text: str) -> None:
        test = doctest.DocTestParser().get_doctest(text, self.names, block.where, str(block.page), block.line)
        said = io.StringIO()
        runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
        result = runner.run(test, out=said.write, clear_globs=False)
        self.names.update(test.globs)
        assert result.attempted, block.where
        assert not result.failed, said.getvalue()

    def _command(self, command: str, where: str, fails: bool = False) -> str:
        """Run `labelwise …`, or `program | labelwise …`, in this process; anything else in a shell."""
        from labelwise.cli import main

        feed, _, own = command.rpartition("| ") if "| labelwise " in command else ("", "", command)
        if not own.startswith("labelwise "):
            return shell(command, where)
        fed = subprocess.run(["bash", "-c", feed], capture_output=True, check=True).stdout if feed else b""
        stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(fed))
        errors = io.StringIO()
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()) as said,
                contextlib.redirect_stderr(errors),
                pytest.raises(SystemExit) as done,
            ):
                main(shlex.split(own, comments=True)[1:])
        finally:
            sys.stdin = stdin
        assert bool(done.value.code) == fails, f"{where}: {command}\n{said.getvalue()}{errors.getvalue()}"
        for path in (
            re.findall(r" --(?:out|csv|json|sidecar-dir) (\S+)", own) if "--dry-run" not in own and not fails else ()
        ):
            assert Path(path).exists(), f"{where}: {command} did not write {path}"
        return said.getvalue() + (errors.getvalue() if fails else "")


def shell(script: str, where: str) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", STRICT + script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{where}: {script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def expect(output: str | None, said: str, where: str) -> None:
    if output is not None:
        assert doctest.OutputChecker().check_output(output, said, FLAGS), f"{where} prints\n{said}\nnot\n{output}"


def write_outputs(notebook: Path) -> None:
    """Run a notebook and store its outputs: `python tests/docs/pages.py docs/start/tutorial.ipynb`."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    cells = {number: cell for number, cell in enumerate(content["cells"], 1) if cell["cell_type"] == "code"}
    runner = Runner()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block, cell in zip(blocks(notebook), cells.values(), strict=True):
            said = runner.python(block, block.text)
            outputs: list[dict[str, Any]] = []
            if said:
                outputs.append({"output_type": "stream", "name": "stdout", "text": said})
            if runner.shown is not None:
                data = {"text/plain": repr(runner.shown)}
                if hasattr(runner.shown, "_repr_html_"):
                    data["text/html"] = runner.shown._repr_html_()
                outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
            cell["outputs"] = outputs
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_outputs(Path(sys.argv[1]).resolve())
