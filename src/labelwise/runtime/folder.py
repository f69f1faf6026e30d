"""Find the folder of a model: on this machine, in a run, or on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from labelwise.core.environment import offline_by
from labelwise.core.errors import LabelwiseError, did_you_mean
from labelwise.runtime.exported import EXPORTS, is_hub_id
from labelwise.runtime.run_files import MODEL, RECIPE, run_candidates

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
PYTORCH = "pytorch"  # in an exported folder: the model that it was made from, if that comes with it


def find_folder(
    source: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
) -> Path:
    """The folder of a model or of an exported one: `source` itself, `model/` of a run folder, or the snapshot of a hub
    repository."""
    path, _ = run_candidates(source)
    for candidate in (path, path / MODEL):
        if (candidate / CONFIG).is_file():
            return candidate
    if path.is_file():
        raise LabelwiseError(
            f"{str(source)!r} is a file, not a model folder; from a checkpoint of the papers' public code, "
            "lw.load_checkpoint(FILE).save(FOLDER) makes one"
        )
    if (path / RECIPE).is_file():
        raise LabelwiseError(
            f"the training of {str(source)!r} is not finished; go on with labelwise train --resume --out {source}"
        )
    if path.exists():
        raise LabelwiseError(f"{str(source)!r} is not a model: it has neither {CONFIG} nor model/{CONFIG}")
    if str(source).startswith("clip:"):
        raise LabelwiseError(
            f"{str(source)!r} has no labels of its own; with them, lw.create_model({str(source)!r}, 'text-aligned', "
            "labels).save(FOLDER) makes a model folder"
        )
    if not is_hub_id(str(source)):
        why = "neither a folder nor a hub id like 'owner/name'"
        if len(path.parts) > 1:  # a mistyped path is not asked of the hub
            why = "there is no such folder; it looks like a path, so the hub was not searched"
        raise LabelwiseError(f"no model {str(source)!r}: {why}{did_you_mean(path)}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                str(source),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                force_download=force_download,
                allow_patterns=[CONFIG, CARD, WEIGHTS, *EXPORTS],
            )
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        why = f"has no such model ({type(error).__name__})"
        if isinstance(error, LocalEntryNotFoundError):
            why = f"is not asked ({offline_by()}=1)" if offline_by() else "cannot be reached"
        raise LabelwiseError(f"no model {str(source)!r}: there is no such folder, and the hub {why}") from None


def network_folder(folder: Path) -> Path:
    """Where the weights for PyTorch are: in the folder itself, or in `pytorch/` of an export that comes with them."""
    return folder / PYTORCH if (folder / PYTORCH / CONFIG).is_file() else folder
