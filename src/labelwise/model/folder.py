"""A model on disk: a folder with `model.safetensors`, `config.json` and a `README.md` card. Loading runs no code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.backbones.config import BackboneConfig, in_package
from labelwise.core.errors import LabelwiseError
from labelwise.core.files import replace_folder
from labelwise.model.card import model_card
from labelwise.model.config import ModelConfig
from labelwise.runtime.folder import CARD, CONFIG, WEIGHTS, find_folder, network_folder

if TYPE_CHECKING:
    # At run time only where tensors are read or written: a config is read without PyTorch.
    from torch import Tensor

FORMAT = 1  # raised when older versions cannot read what this one writes
_IN_PACKAGE = "backbone_in_package"  # in config.json: about the folder, not about the model


def replace_model_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Replace a model folder atomically. Other files in it stay."""
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG).exists():
        raise LabelwiseError(f"{str(folder)!r} exists and is not a model folder; choose another folder or empty it")
    replace_folder(folder, write, replaced=lambda name: name in (CONFIG, CARD) or name.startswith("model."))


def write_files(
    folder: Path, config: ModelConfig, state: Mapping[str, Tensor], *, backbone_in_package: bool = False
) -> None:
    """Write weights, config and card. `backbone_in_package`: the state has no backbone, see `compacted`."""
    from labelwise.model.tensors import save_tensors

    save_tensors(folder / WEIGHTS, state, {"format": "pt"})
    made_with = {name: version(name) for name in ("labelwise", "torch", "timm")}
    content = {"format": FORMAT, "made_with": made_with, **config.model_dump(mode="json")}
    if backbone_in_package:
        content[_IN_PACKAGE] = True
    (folder / CONFIG).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / CARD).write_text(model_card(config), encoding="utf-8")


def read_folder(source: str | Path, **hub_options: Any) -> tuple[Path, ModelConfig, dict[str, Tensor]]:
    """Where the model was found, its config and its tensors."""
    from safetensors import SafetensorError

    from labelwise.model.tensors import load_tensors

    folder = network_folder(find_folder(source, **hub_options))
    config = read_config(folder)
    try:
        tensors, _ = load_tensors(folder / WEIGHTS)
    except FileNotFoundError:
        raise LabelwiseError(f"{str(folder)!r} has no {WEIGHTS}; copy the whole model folder") from None
    except (SafetensorError, ValueError) as error:
        raise LabelwiseError(f"{str(folder / WEIGHTS)!r} is damaged ({error}); copy the model folder again") from None
    if _read_content(folder).get(_IN_PACKAGE):
        tensors |= package_tensors(config.backbone)
    return folder, config, tensors


def read_config(folder: Path) -> ModelConfig:
    where, content = str(folder / CONFIG), _read_content(folder)
    if "export" in content:
        raise LabelwiseError(
            f"{str(folder)!r} is an exported model, without weights for PyTorch; load the model that it was made from"
        )
    if not isinstance(content.get("format"), int):
        raise LabelwiseError(f"{where!r} is not the config of a labelwise model: it has no format")
    content.pop(_IN_PACKAGE, None)
    made_with = content.pop("made_with", {})
    if content.pop("format") > FORMAT:
        newer = made_with.get("labelwise", "?") if isinstance(made_with, dict) else "?"
        raise LabelwiseError(
            f"{str(folder)!r} was made by a newer labelwise ({newer}, this is {version('labelwise')}); "
            "upgrade with: pip install -U labelwise"
        )
    return ModelConfig.parse(content, where)


def _read_content(folder: Path) -> dict[str, Any]:
    where = str(folder / CONFIG)
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LabelwiseError(f"{where!r} is damaged ({error}); copy the model folder again") from None
    if not isinstance(content, dict):
        raise LabelwiseError(f"{where!r} is not the config of a labelwise model: it has no format")
    return content


def compacted(backbone: BackboneConfig, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """The tensors to save instead of a model's own, and whether its backbone is left out.

    Matrices become 16-bit floats; vectors (biases, norms, running statistics) are small and stay exact. A backbone that
    still has the weights of an installed package is left out; loading takes them from there.
    """
    import torch

    installed = package_tensors(backbone) if in_package(backbone.name) else {}
    left_out = bool(installed) and all(torch.equal(tensor, state[name].cpu()) for name, tensor in installed.items())
    return {name: _half(state[name]) for name in state if not (left_out and name in installed)}, left_out


def package_tensors(backbone: BackboneConfig) -> dict[str, Tensor]:
    """A backbone's tensors as an installed package has them, by their names in a model."""
    from labelwise.backbones.timm_backbone import Backbone

    return {f"backbone.{name}": tensor for name, tensor in Backbone(backbone, "package").state_dict().items()}


def _half(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() and tensor.dim() > 1 else tensor
