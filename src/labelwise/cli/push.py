"""`labelwise push`: a trained model, with a card about it, on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from labelwise.cli.common import say


def push(
    model: str,
    name: str,
    /,
    *,
    license: str | None = None,
    private: Annotated[bool, Parameter(negative=())] = False,
    evaluation: Annotated[list[Path] | None, Parameter(negative=())] = None,
    message: str = "Upload a labelwise model",
    dry_run: Path | None = None,
) -> None:
    """Upload a model to the hub, with a card: metrics, labels, thresholds, licence, how to use it.

    Needs a login (hf auth login) or HF_TOKEN. Afterwards every command takes the model as owner/name.

    Parameters
    ----------
    model
        A run folder or a model folder.
    name
        The repository: owner/name. It is made if there is none.
    license
        The model's licence as the hub writes it, for example apache-2.0 or cc-by-4.0. Without it, none is stated.
    private
        Make a new repository that only its owner sees. One that is there already stays as it is.
    evaluation
        A file that labelwise evaluate … --json wrote; may be given several times. Those in the run folder are found.
    message
        The commit's message.
    dry_run
        Write what would be uploaded into this folder, and upload nothing.
    """
    from labelwise.hub import push as hub

    files = evaluation or []
    if dry_run is not None:
        folder = hub.prepare(model, dry_run, name, license=license, evaluations=files)
        say(f"{folder}: what would be uploaded as {name}")
        return
    say("uploading …", stderr=True)
    address = hub.push(model, name, private=private or None, license=license, evaluations=files, message=message)
    say(f"{address}: use it as {name}, for example: labelwise predict {name} photo.jpg")
