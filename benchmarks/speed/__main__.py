"""`python -m benchmarks.speed`: how fast things are here, against named others, in the same run."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="bench", help="Measure speed and memory on this machine, against named others in the same run.")
_COMMANDS = {
    "heads": "Heads against timm's ML-Decoder, HSQ's Algorithm 1 as printed, and Query2Label.",
    "folding": "Every head as trained against its optimised copy: what does not depend on the image, computed once.",
    "throughput": "A folder of JPEGs to labels: images per second, by stage and by engine, against an eager loop.",
    "engines": "One batch through PyTorch in four ways, ONNX Runtime and OpenVINO.",
    "decode": "12-megapixel JPEGs: reading them scaled against plain Pillow.",
    "train": "A training step with and without the feature cache, and how far it is from the arithmetic limit.",
    "memory": "Memory of the heads in inference and training, against others.",
    "scaling": "Time and memory of the heads as the labels grow.",
    "serve": "A server under the load of many clients: latency, wrong answers, memory, throughput against predict.",
}
_ON_A_MODEL = ("throughput", "engines", "decode", "serve")
for _name, _help in _COMMANDS.items():
    app.command(f"benchmarks.speed.{_name if _name != 'memory' else 'head_memory'}:{_name}", name=_name, help=_help)


@app.command(name="all")
def everything(*, out: Path = Path("benchmarks/results"), photos: Path | None = None, model: str | None = None) -> None:
    """All of them, one after the other, with their standard settings: about half an hour on two cores.

    Parameters
    ----------
    out
        Folder for one JSON file and one plot each.
    photos
        A folder of JPEGs for `throughput` and `serve`; default: synthetic ones.
    model
        A trained model for `throughput`, `engines`, `decode` and `serve`; default: pretrained backbone, untrained head.
    """
    for name in _COMMANDS:
        words = [f"--model={model}"] if model is not None and name in _ON_A_MODEL else []
        words += [f"--photos={photos}"] if photos is not None and name in ("throughput", "serve") else []
        app([name, *words, f"--json={out / name}.json", f"--plot={out / name}.svg"], exit_on_error=False)


if __name__ == "__main__":
    app()
