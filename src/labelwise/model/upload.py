"""Upload a model folder to the Hugging Face hub, with a full card and without any path of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from labelwise.core.errors import LabelwiseError
from labelwise.model.card import Measured, model_card, public_source
from labelwise.model.folder import read_config, replace_model_folder
from labelwise.runtime.folder import CARD, CONFIG, WEIGHTS

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def prepare_upload(
    model: Path,
    folder: Path,
    name: str,
    *,
    license: str | None = None,
    training: dict[str, Any] | None = None,
    measured: Sequence[Measured] = (),
) -> Path:
    """Write what `upload` sends into a folder of its own.

    Args:
        model: The model folder.
        folder: Where to write.
        name: The hub id, owner/name.
        license: For the card.
        training: The recipe as plain values, for the card.
        measured: Evaluations, for the card.
    """
    check_name(name)
    card = model_card(read_config(model), name=name, license=license, training=training, measured=measured)

    def write(fresh: Path) -> None:
        content = json.loads((model / CONFIG).read_text(encoding="utf-8"))
        if "data" in content.get("results", {}):
            content["results"]["data"] = public_source(content["results"]["data"])
        words = content.get("words")
        if words:
            kind, colon, source = words["source"].rpartition(":")
            if os.path.isabs(source) or os.path.exists(source):
                words["source"] = f"{kind}{colon}{os.path.basename(source)}"
        (fresh / CONFIG).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        shutil.copy(model / WEIGHTS, fresh / WEIGHTS)
        (fresh / CARD).write_text(card, encoding="utf-8")

    if model.resolve() == folder.resolve():
        raise LabelwiseError(f"{str(folder)!r} is the model folder itself; choose another folder")
    replace_model_folder(folder, write)
    return folder


def upload(
    folder: Path,
    name: str,
    *,
    private: bool | None = None,
    message: str = "Upload a labelwise model",
    token: str | None = None,
) -> str:
    """Upload a folder that `prepare_upload` wrote, in one commit; gives the address of the repository."""
    api = HfApi(token=token)
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=url.repo_id, folder_path=folder, commit_message=message, allow_patterns=[CONFIG, WEIGHTS, CARD]
        )
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:  # ValueError: metadata that the hub refuses
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        fix = " Log in with: hf auth login, or set HF_TOKEN." if status in (401, 403) else ""
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise LabelwiseError(f"the hub refused {name!r} ({type(error).__name__}: {reason}).{fix}") from None
    return str(url)


def check_name(name: str) -> None:
    if "/" not in name:
        raise LabelwiseError(f"{name!r} has no owner; write owner/name, for example ann/{name}")
    if not _NAME.fullmatch(name):
        raise LabelwiseError(f"{name!r} is not a hub id like 'owner/name'; use letters, digits, '-', '_' and '.'")
