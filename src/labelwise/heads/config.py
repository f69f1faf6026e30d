"""The options of heads: what every head's config says of it, and those of the query head, part by part. No PyTorch.

Option names of the query head are unique across the parts, so that a user writes `shared_experts=16` instead of
`experts.shared_experts=16`; `tests/heads/test_registry.py` keeps them unique.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from labelwise.core.config import Config
from labelwise.core.errors import LabelwiseError

Probability = Annotated[float, Field(ge=0, lt=1)]


class HeadConfig(Config):
    """The options of a head. A subclass has a kind of its own (`kind: str = "mine"`) and its options.

    The properties tell what a head with these options can do; everything outside `heads` asks them, never the class.

    Args:
        kind: The name under which the head is registered and saved.
    """

    kind: str

    @property
    def has_attention(self) -> bool:
        """Whether `details` shows where the head looked for each label."""
        return False

    @property
    def has_queries(self) -> bool:
        """Whether labels are answered by queries, which they may share (`label_slot`)."""
        return False

    @property
    def query_groups(self) -> int | None:
        """The number of queries that labels share; None: no queries, or one for each label."""
        return None

    @property
    def expert_counts(self) -> tuple[int, int] | None:
        """How many experts the gates choose among for each label, its own and shared ones; None: no gates."""
        return None

    @property
    def has_experts(self) -> bool:
        """Whether `details` shows on which experts each label relies."""
        return self.expert_counts is not None

    @property
    def takes_words(self) -> bool:
        """Whether the head is built from the labels' word vectors, its argument `word_vectors`."""
        return False

    @property
    def takes_cooccurrence(self) -> bool:
        """Whether the head is built from how often labels occur together, its argument `cooccurrence`."""
        return False

    @property
    def takes_known(self) -> bool:
        """Whether the head can be told of labels that are known, its argument `known`."""
        return False

    @property
    def trains_text(self) -> bool:
        """Whether the labels' texts go through a text tower in every training step."""
        return False

    @property
    def bound_options(self) -> dict[str, str]:
        """The settings that tie the head to the labels it was trained on, each with the value that does not."""
        if self.takes_words and not self.takes_cooccurrence:  # new labels have no statistics
            return {}
        return {"head": "ml-decoder", "head.queries": "words", "head.classifier": "shared"}

    @property
    def takes_new_labels(self) -> bool:
        """Whether the labels may change after training (`Head.relabelled`)."""
        return not self.bound_options

    @property
    def labels_interact(self) -> bool:
        """Whether a label's logit depends on which other labels there are."""
        return False

    @property
    def unused_options(self) -> set[str]:
        """Options that change nothing, given the others."""
        return set()

    @property
    def summary(self) -> str:
        """One line for a list of heads."""
        return (self.__doc__ or "").strip().partition("\n")[0]

    @classmethod
    def option_parts(cls) -> dict[str, str | None]:
        """Every option by its plain name, and the part of the config it belongs to; None: the config itself.

        >>> from labelwise import heads
        >>> parts = heads.preset("hsq").option_parts()
        >>> parts["dim"], parts["shared_experts"], heads.preset("gap").option_parts()
        ('tokens', 'experts', {'dropout': None})
        """
        parts: dict[str, str | None] = {}
        for name, info in cls.model_fields.items():
            if isinstance(info.annotation, type) and issubclass(info.annotation, Config):
                parts |= dict.fromkeys(info.annotation.model_fields, name)
            elif name != "kind":
                parts[name] = None
        return parts

    @classmethod
    def renamed_options(cls) -> dict[str, str]:
        """Old names of options and their names today: recipes with the old ones are still read.

        >>> from labelwise.heads import preset
        >>> preset("hsq").renamed_options()
        {'expert_start': 'expert_init'}
        """
        fields = (info.annotation for info in cls.model_fields.values())
        parts = [part for part in (cls, *fields) if isinstance(part, type) and issubclass(part, Config)]
        return {old: new for part in parts for old, new in part.renamed.items()}

    def require_new_labels(self, what: str) -> None:
        """Raise if the labels cannot change after training, with the settings of a head whose labels can."""
        if self.bound_options:
            raise LabelwiseError(
                f"{what} needs a head that takes new labels; train one as the zero-shot guide shows",
                options={**self.bound_options, "model.words": "package:glove-50d"},
            )


class RelatingHeadConfig(HeadConfig):
    """Of heads that show where they looked, and in which a label's answer depends on the other labels."""

    @property
    def has_attention(self) -> bool:
        return True

    @property
    def labels_interact(self) -> bool:
        return True


class TokensConfig(Config):
    """Backbone map [B, C, H, W] -> tokens [B, T, D].

    Args:
        dim: D. None: the backbone's channels, as in the papers.
        project: Whether a linear layer makes the tokens from the map's channels. Query2Label's code has none where D is
            the number of channels, as on ResNet-101.
        token_relu: ReLU after the projection (ML-Decoder).
        positions: 2-D sine positions. none; input: added once to the tokens (standard transformer); keys: added to the
            keys of every attention (DETR).
        encoder_layers: N_e, transformer layers on the tokens before the decoder.
        token_dropout: The fraction of tokens that a training step drops, drawn for each image. Not in the papers: half
            of the tokens do as well as all in half the time (docs/research/study.md).
    """

    dim: PositiveInt | None = None
    project: bool = True
    token_relu: bool = False
    positions: Literal["none", "input", "keys"] = "none"
    encoder_layers: NonNegativeInt = 0
    token_dropout: Probability = 0.0


class QueriesConfig(Config):
    """Where the K queries come from, and which labels share one.

    Args:
        queries: learnable; random: drawn once and fixed (ML-Decoder); words: a projection of the labels' word vectors.
        groups: K. None: one query per label. At most the number of labels.
        group_size: g, the labels that fit into a group. None: ceil(labels / K). With word queries it cannot change
            after training, because each label gets D / g numbers of its query (ML-Decoder eq. 5).
        group_seed: Assigns labels to groups at random. None: in the given order.
        word_dim: Length of the word vectors, if queries or classifier use them.
        keep_groups: New labels take the slots of the training's groups, and with them weights that know nothing of
            them: rows 1 and 3 of ML-Decoder's table 8, which show that words are needed on both sides.
        word_projection: How words become queries. linear: a matrix, as in ML-Decoder's eq. 5; relu: a linear layer with
            bias and a ReLU, as in its code.
        query_noise: Deviation of the noise on word vectors in training, relative to their size (ML-Decoder 2.3.3).
        query_cutout: The share of every word vector that a training batch sets to zero (ML-Decoder 2.3.3).
        random_queries: Extra queries of random words in every training batch (ML-Decoder 2.3.3).
        random_target: What a random query has to answer. present: its own logit is positive (section 2.3.3); noise: a
            further logit of every query is positive for random queries, negative for labels (figure 8).
    """

    queries: Literal["learnable", "random", "words"] = "learnable"
    groups: PositiveInt | None = None
    group_size: PositiveInt | None = None
    group_seed: int | None = 0
    word_dim: PositiveInt | None = None
    keep_groups: bool = False
    word_projection: Literal["linear", "relu"] = "linear"
    query_noise: float = Field(default=0.0, ge=0)
    query_cutout: Probability = 0.0
    random_queries: NonNegativeInt = 0
    random_target: Literal["present", "noise"] = "present"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.queries != "words" and (self.query_noise or self.query_cutout or self.random_queries):
            raise ValueError("query_noise, query_cutout and random_queries are for word queries; set queries=words")
        if self.keep_groups and self.groups is None:
            raise ValueError("keep_groups is for labels in groups; set groups")
        return self


class DecoderConfig(Config):
    """N_d layers of first block -> cross-attention -> feed-forward. Encoder layers share heads, widths and dropout.

    Args:
        decoder_layers: N_d, how often the queries read the tokens.
        first_block: What comes before the cross-attention. none; self-attention of the queries; identity: the residual
            and norm that remain when self-attention is removed, norm(q + dropout(q)), as in ML-Decoder's code.
        query_role: input: the queries are the decoder's input; position: the input is zero and the queries are added
            to the query side of every attention (DETR, Q2L).
        final_norm: Layer norm after the last layer.
        attention_heads: Heads of every attention; they divide D.
        feedforward: Hidden width of the feed-forward blocks. None: feedforward_ratio x D.
        feedforward_ratio: Hidden width relative to D, if feedforward is None.
        dropout: Rate in attention and feed-forward blocks.
        layer_init: How the matrices of encoder and decoder layers are initialized. torch: as in torch's own layers;
            xavier: all of them Xavier-uniform (DETR, Q2L).
    """

    decoder_layers: PositiveInt = 1
    first_block: Literal["none", "self-attention", "identity"] = "none"
    query_role: Literal["input", "position"] = "input"
    final_norm: bool = False
    attention_heads: PositiveInt = 8
    feedforward: PositiveInt | None = None
    feedforward_ratio: PositiveFloat = 4.0
    dropout: Probability = 0.1
    layer_init: Literal["torch", "xavier"] = "torch"


class ExpertsConfig(Config):
    """What refines each query's vector before classification.

    Args:
        experts: none; hybrid: HSQ's hybrid sharing layers; linear: plain layers of the same widths.
        widths: d_o, the output width of each layer.
        shared_experts: n_s, experts that all labels share.
        task_experts: n_t, experts of each label alone.
        task_weights: Where the task experts' weights come from. own: each query has its own (the paper); query: a
            small network makes them from the query's vector, so that unseen labels get theirs too.
        gate_weights: Where the gates' weights come from. own and query: as for task_weights; shared: the same for all.
        weight_rank: Rank of the matrices that are made from queries.
        wiring: paper: Algorithm 1; progressive: shared experts read the shared stream, as in PLE.
        gate_hidden: Hidden width of MLP gates. None: linear gates.
        expert_init: How linear experts are initialized; the paper does not say. similar: one random map plus small
            differences, so that the gates' average is a signal from the first step on; independent: the experts'
            signals cancel out in that average at first, which costs accuracy if training is short: see
            docs/research/study.md. Plain linear layers get the scale that goes with it.
        expert: linear, mlp, or a name given to `heads.register_expert`.
        activation: Activation function after each expert.
        shared_stream: Also compute the last layer's shared output O_s, which the logits never read.
    """

    renamed: ClassVar[Mapping[str, str]] = {"expert_start": "expert_init"}

    experts: Literal["none", "hybrid", "linear"] = "none"
    widths: tuple[PositiveInt, ...] = Field(default=(64, 16), min_length=1)
    shared_experts: NonNegativeInt = 16
    task_experts: NonNegativeInt = 1
    task_weights: Literal["own", "query"] = "own"
    gate_weights: Literal["own", "shared", "query"] = "own"
    weight_rank: PositiveInt = 32
    wiring: Literal["paper", "progressive"] = "paper"
    gate_hidden: PositiveInt | None = None
    expert_init: Literal["similar", "independent"] = "similar"
    expert: str = "linear"
    activation: Literal["relu", "gelu", "silu", "tanh", "none"] = "relu"
    shared_stream: bool = False

    @field_validator("expert_init", mode="before")
    @classmethod
    def _read_old_value(cls, value: object) -> object:
        return "similar" if value == "alike" else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.shared_experts == 0 and self.task_experts == 0:
            raise ValueError("shared_experts and task_experts cannot both be 0")
        if self.task_experts and self.task_weights == "query":
            if self.expert != "linear":
                raise ValueError("only linear experts can be made from queries; set expert=linear or task_weights=own")
            if self.wiring == "progressive" or self.shared_stream:
                raise ValueError(
                    "the shared stream weighs the experts of a fixed list of queries; with task_weights=query set "
                    "wiring=paper and shared_stream=false"
                )
        return self


class ClassifierConfig(Config):
    """K refined queries -> N logits.

    Args:
        classifier: group: weights of its own for every query (with one query per label: one vector per label); shared:
            the same weights for every query; words: weights made from the labels' word vectors (ML-Decoder eq. 6).
        classifier_hidden: Hidden width of an MLP classifier. None: linear.
        classifier_init: How a linear group classifier is initialized. linear: as nn.Linear; xavier: Xavier-normal over
            the whole [K, D, g] tensor, as in both public ML-Decoders.
    """

    classifier: Literal["group", "shared", "words"] = "group"
    classifier_hidden: PositiveInt | None = None
    classifier_init: Literal["linear", "xavier"] = "linear"


class QueryHeadConfig(HeadConfig):
    """Queries read the feature map by cross-attention: every attention head of both papers."""

    kind: Literal["query"] = "query"
    tokens: TokensConfig = TokensConfig()
    queries: QueriesConfig = QueriesConfig()
    decoder: DecoderConfig = DecoderConfig()
    experts: ExpertsConfig = ExpertsConfig()
    classifier: ClassifierConfig = ClassifierConfig()

    @property
    def has_attention(self) -> bool:
        return True

    @property
    def has_queries(self) -> bool:
        return True

    @property
    def query_groups(self) -> int | None:
        return self.queries.groups

    @property
    def expert_counts(self) -> tuple[int, int] | None:
        own, shared = self.experts.task_experts, self.experts.shared_experts
        return (own, shared) if self.experts.experts == "hybrid" and own + shared > 1 else None

    @property
    def takes_words(self) -> bool:
        return self.queries.queries == "words" or self.classifier.classifier == "words"

    @property
    def bound_options(self) -> dict[str, str]:
        """
        >>> from labelwise.heads import preset
        >>> preset("ml-decoder").bound_options
        {'head.queries': 'words', 'head.classifier': 'shared'}
        """
        if self.takes_words and self.queries.keep_groups:
            return {}
        bound = {} if self.queries.queries == "words" else {"head.queries": "words"}
        if self.experts.experts == "hybrid" and self.experts.task_experts and self.experts.task_weights == "own":
            bound["head.task_weights"] = "query"
        if self.has_experts and self.experts.gate_weights == "own":
            bound["head.gate_weights"] = "query"
        if self.classifier.classifier == "group":
            bound["head.classifier"] = "shared"
        return bound

    @property
    def labels_interact(self) -> bool:
        """Only where queries attend to each other. Labels that share a query interact too, but new labels never join
        a group of the training's labels, unless `keep_groups` says so."""
        return self.decoder.first_block == "self-attention" or self.queries.keep_groups

    @property
    def unused_options(self) -> set[str]:
        """Options of experts that the head does not have.

        >>> from labelwise.heads import preset
        >>> sorted(preset("q2l").unused_options - preset("hsq-linear").unused_options)
        ['activation', 'expert_init', 'widths']
        >>> preset("hsq").unused_options
        set()
        """
        if self.experts.experts == "hybrid":
            return set()
        plain = {"widths", "activation", "expert_init"} if self.experts.experts == "linear" else set()
        return set(ExpertsConfig.model_fields) - {"experts"} - plain

    @property
    def summary(self) -> str:
        """
        >>> QueryHeadConfig().summary
        '1 decoder layer, learnable queries, one per label'
        """
        layers = [(self.tokens.encoder_layers, "encoder"), (self.decoder.decoder_layers, "decoder")]
        parts = [f"{count} {name} layer{'s' * (count > 1)}" for count, name in layers if count]
        parts += ["self-attention"] if self.decoder.first_block == "self-attention" else []
        parts += ["sine positions"] if self.tokens.positions != "none" else []
        many = "one per label" if self.queries.groups is None else f"at most {self.queries.groups}"
        parts += [f"{self.queries.queries} queries", many]
        return ", ".join(parts + ([] if self.experts.experts == "none" else [f"{self.experts.experts} experts"]))
