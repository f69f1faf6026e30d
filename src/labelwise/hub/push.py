"""Share a model on the hub, with a card that says what it is and how good it is. Loading: `labelwise.load(hub_id)`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from labelwise.core.errors import LabelwiseError
from labelwise.model.card import Measured, in_evaluation, model_card, public_source
from labelwise.model.folder import CARD, CONFIG, WEIGHTS, replace_model_folder
from labelwise.training.run import Run

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def prepare(
    source: str | Path, folder: str | Path, name: str, *, license: str | None = None, evaluations: Sequence[Path] = ()
) -> Path:
    """Write what `push` would upload for the hub id `name` into `folder`: a model folder with a full card.

    `evaluations` are files that `labelwise evaluate … --json` wrote; those that lie in the run folder and are younger
    than its training are found without being named.
    """
    _check_name(name)
    run = Run(source)
    training = None if run.recipe is None else run.recipe.model_dump(mode="json")
    measured = _measured(run, evaluations)
    card = model_card(run.config, name=name, license=license, training=training, measured=measured)

    def write(fresh: Path) -> None:
        content = json.loads((run.model_folder / CONFIG).read_text(encoding="utf-8"))
        # No paths of this machine.
        if "data" in content.get("results", {}):
            content["results"]["data"] = public_source(content["results"]["data"])
        words = content.get("words")
        if words:
            kind, colon, name = words["source"].rpartition(":")
            if os.path.isabs(name) or os.path.exists(name):
                words["source"] = f"{kind}{colon}{os.path.basename(name)}"
        (fresh / CONFIG).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        shutil.copy(run.model_folder / WEIGHTS, fresh / WEIGHTS)
        (fresh / CARD).write_text(card, encoding="utf-8")

    if run.model_folder.resolve() == Path(folder).resolve():
        raise LabelwiseError(f"{str(folder)!r} is the model itself; choose another folder")
    replace_model_folder(Path(folder), write)
    return Path(folder)


def push(
    source: str | Path,
    name: str,
    *,
    private: bool | None = None,
    license: str | None = None,
    evaluations: Sequence[Path] = (),
    message: str = "Upload a labelwise model",
    token: str | None = None,
) -> str:
    """Upload the model of a run or model folder as the hub repository `name` (owner/name); gives its address."""
    with TemporaryDirectory() as temporary:
        folder = prepare(source, Path(temporary) / "model", name, license=license, evaluations=evaluations)
        return upload(folder, name, private=private, message=message, token=token)


def upload(folder: Path, name: str, *, private: bool | None, message: str, token: str | None = None) -> str:
    """Upload a folder that `prepare` made, in one commit; gives the repository's address."""
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
        raise LabelwiseError(f"the hub did not take {name!r} ({type(error).__name__}: {reason}).{fix}") from None
    return str(url)


def _check_name(name: str) -> None:
    if "/" not in name:
        raise LabelwiseError(f"{name!r} names no owner; write owner/name, for example ann/{name}")
    if not _NAME.fullmatch(name):
        raise LabelwiseError(
            f"{name!r} cannot be a hub id like 'owner/name': letters, digits, '-', '_' and '.' are allowed"
        )


def _measured(run: Run, evaluations: Sequence[Path]) -> list[Measured]:
    named = [in_evaluation(_read(file), run.config, str(file)) for file in evaluations]
    known = {(one.data, one.split) for one in named}
    return named + [one for one in _found(run) if (one.data, one.split) not in known]


def _found(run: Run) -> Iterator[Measured]:
    """Evaluations in the run folder; other JSON files may lie there, and evaluations of an earlier training."""
    if run.folder is None:
        return
    trained = run.folder / "metrics.jsonl"
    since = trained.stat().st_mtime if trained.is_file() else 0.0
    for file in sorted(run.folder.glob("*.json")):
        try:
            if file.stat().st_mtime >= since:
                yield in_evaluation(_read(file), run.config, str(file))
        except LabelwiseError:
            continue


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise LabelwiseError(f"{str(file)!r} is not JSON; name what `labelwise evaluate … --json FILE` wrote") from None
