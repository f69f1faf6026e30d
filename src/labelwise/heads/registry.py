"""Heads by name. A head's own file registers it; a preset is a config, and any option of it can be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BeforeValidator, SerializeAsAny

from labelwise.core.errors import LabelwiseError, unknown_name
from labelwise.core.plugins import Registry, import_plugins, same_origin
from labelwise.heads.builtin import BUILT_IN
from labelwise.heads.config import HeadConfig

if TYPE_CHECKING:
    # Names and options are known without PyTorch; only making a head imports it.
    from torch import Tensor

    from labelwise.heads.base import Head

HeadClass = TypeVar("HeadClass", bound="type[Head]")


def _kind(config: type[HeadConfig]) -> str:
    kind = config.model_fields["kind"].default
    if not isinstance(kind, str):
        raise LabelwiseError(f"{config.__name__} has no kind; add a line such as: kind: str = 'mine'")
    return kind


_CONFIGS: dict[str, type[HeadConfig]] = {_kind(head.config): head.config for head in BUILT_IN}
_MODULES: dict[str, str] = {_kind(head.config): f"labelwise.heads.{head.module}" for head in BUILT_IN}
_CLASSES: dict[str, type[Head]] = {}
_PRESETS: Registry[HeadConfig] = Registry("head", "labelwise.heads")
_PRESETS.update({name: options for head in BUILT_IN for name, options in head.presets.items()})


def register_head(
    config: type[HeadConfig], presets: Mapping[str, HeadConfig] | None = None
) -> Callable[[HeadClass], HeadClass]:
    """Make a head known under its config's `kind` and the names of its presets: a class decorator.

    A registered head works everywhere: in `create`, `create_model`, recipes, saved models, exports, reports and on the
    command line. So that the command line finds the heads of your package, name their module in its `pyproject.toml`:

        [project.entry-points."labelwise.heads"]
        mine = "my_package.heads"

    Args:
        config: The class of the head's options; its `kind` has a default.
        presets: Options by name. Default: the default options under the name of the kind.

    >>> from torch import nn
    >>> from labelwise.heads import Head, HeadConfig, as_tokens, create
    >>> class MaxConfig(HeadConfig):
    ...     kind: str = "max"
    >>> @register_head(MaxConfig)
    ... class MaxHead(Head):
    ...     def __init__(self, config, in_features, labels):
    ...         super().__init__(config, in_features, labels)
    ...         self.classifier = nn.Linear(in_features, labels)
    ...     def forward(self, x):
    ...         tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
    ...         return self.classifier(tokens.amax(dim=1))
    >>> create("max", in_features=64, labels=20)
    MaxHead(
      (classifier): Linear(in_features=64, out_features=20, bias=True)
    )
    >>> unregister_head("max")
    """
    kind = _kind(config)
    named = {kind: config(kind=kind)} if presets is None else dict(presets)

    def register(head: HeadClass) -> HeadClass:
        other = kind in _CLASSES and not same_origin(_CLASSES[kind], head)
        if other or _MODULES.get(kind, head.__module__) != head.__module__:
            raise LabelwiseError(f"there is a head of the kind {kind!r} already; choose another kind")
        for name in named:
            if name in _PRESETS and _PRESETS[name].kind != kind:
                raise LabelwiseError(f"there is a head {name!r} already; choose another name")
        _CONFIGS[kind], _CLASSES[kind] = config, head
        _PRESETS.update(named)
        return head

    return register


def unregister_head(kind: str) -> None:
    """Forget a kind of head and its presets."""
    if kind not in _CONFIGS:
        raise unknown_name("kind", kind, _CONFIGS)
    del _CONFIGS[kind]
    _CLASSES.pop(kind, None)
    for name in [name for name, config in _PRESETS.items() if config.kind == kind]:
        del _PRESETS[name]


def list_heads(pattern: str = "*") -> list[str]:
    """Names of the presets that match a wildcard pattern.

    Args:
        pattern: As in a shell, e.g. "hsq*".

    >>> list_heads("hsq*")
    ['hsq', 'hsq-linear', 'hsq-baseline']
    """
    import_plugins("labelwise.heads")
    return [name for name in _PRESETS if fnmatch(name, pattern)]


def preset(name: str) -> HeadConfig:
    """The options of a head by its name.

    >>> preset("hsq").experts.shared_experts
    16
    """
    return _PRESETS.find(name)


def with_options(config: HeadConfig, options: Mapping[str, Any], where: str) -> HeadConfig:
    """`config` with some options changed, checked; `where` names the head in an error."""
    parts, renamed = config.option_parts(), config.renamed_options()
    values = config.model_dump()
    for given, value in options.items():
        name = renamed.get(given, given)
        if name not in parts:
            raise unknown_name("option", name, parts, where)
        part = parts[name]
        (values if part is None else values[part])[name] = value
    return parse_config(values, where)


def parse_config(values: Mapping[str, Any], where: str) -> HeadConfig:
    """A head's config from plain values, as saved in a model folder."""
    return _config_class(str(values.get("kind")), where).parse(values, where)


def _config_class(kind: str, where: str) -> type[HeadConfig]:
    if kind not in _CONFIGS:
        import_plugins("labelwise.heads")
    if kind not in _CONFIGS:
        unknown = unknown_name("kind of head", kind, _CONFIGS)
        raise LabelwiseError(f"{where}: {unknown}; import the package that registers it first")
    return _CONFIGS[kind]


def _validated(value: object) -> object:
    return parse_config(value, "head") if isinstance(value, Mapping) else value


# The type of a config's field that holds the options of any registered head.
AnyHeadConfig = Annotated[SerializeAsAny[HeadConfig], BeforeValidator(_validated)]


def build(
    config: HeadConfig,
    in_features: int,
    labels: int,
    word_vectors: Tensor | None = None,
    label_slot: Tensor | None = None,
    cooccurrence: Tensor | None = None,
) -> Head:
    """The head that a config describes; `create` says what the arguments are."""
    if labels < 1:
        raise LabelwiseError(f"a head needs at least one label, not {labels}")
    inputs: dict[str, Tensor | None] = {"word_vectors": word_vectors} if config.takes_words else {}
    if config.takes_cooccurrence:
        inputs["cooccurrence"] = cooccurrence
    if label_slot is not None:
        if not config.has_queries:
            raise LabelwiseError("label_slot is for heads with queries; use another head", options={"head": "hsq"})
        inputs["label_slot"] = label_slot
    _config_class(config.kind, "head")  # an error if nobody registered it
    if config.kind not in _CLASSES:
        import_module(_MODULES[config.kind])
    make: Callable[..., Head] = _CLASSES[config.kind]
    return make(config, in_features, labels, **inputs)


def create(
    name: str,
    *,
    in_features: int,
    labels: int | Sequence[str],
    word_vectors: Tensor | None = None,
    label_slot: Tensor | None = None,
    cooccurrence: Tensor | None = None,
    **options: Any,
) -> Head:
    """A head by name: a plain `nn.Module` from a map [B, C, H, W] or tokens [B, T, C] to logits [B, N].

    Args:
        name: A preset's name; `list_heads` lists them.
        in_features: C, the channels of the feature map.
        labels: The labels' number N, or their names.
        word_vectors: [N, length], for heads on words.
        label_slot: [N], which labels share a query: slot s belongs to group s // g. Default: at random.
        cooccurrence: [N, N], for heads on a graph of the labels: the share of label i's images that also have label j,
            as `labelwise.training.cooccurrence` counts it. Default: zeros, a graph without edges, until a state dict
            fills it.
        **options: Changes to the preset; `labelwise heads NAME` lists all options.

    >>> head = create("ml-decoder", in_features=64, labels=300, dim=32, groups=20)
    >>> head.groups, head.group_size
    (20, 15)
    """
    if word_vectors is not None:
        options = {**options, "word_dim": word_vectors.shape[-1]}  # a recipe may name another length
    number = labels if isinstance(labels, int) else len(labels)
    config = with_options(preset(name), options, f"head {name!r}")
    return build(config, in_features, number, word_vectors, label_slot, cooccurrence)
