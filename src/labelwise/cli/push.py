"""`labelwise push`: a trained model, with a card about it, on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import labelwise as lw
from labelwise.cli.common import Flag, Repeated, described_by, note, say


@described_by("api.deployment:push")
def push(
    model: str,
    name: str,
    /,
    *,
    license: str | None = None,
    private: Flag = False,
    evaluations: Annotated[tuple[Path, ...], Parameter("--evaluation"), Repeated] = (),
    message: str = "Upload a labelwise model",
    dry_run: Path | None = None,
) -> None:
    """Upload a model to the hub with a card: metrics, labels, thresholds, licence and how to use it.

    Needs a login (hf auth login) or HF_TOKEN. Afterwards every command takes the model as owner/name.

    Parameters
    ----------
    private
        Make a new repository private. An existing one stays as it is.
    evaluations
        A file that labelwise evaluate … --json wrote; may be repeated. Those in the run folder are found.
    """
    options = locals() | {"private": private or None}
    if dry_run is None:
        note("uploading …")
    address = lw.push(**options)
    if dry_run is None:
        say(f"{address}: use it as {name}, for example: labelwise predict {name} photo.jpg")
    else:
        say(f"{address}: what would be uploaded as {name}")
