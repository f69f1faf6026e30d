"""Typed options of the heads, one small config per part.

Option names are unique across the five parts of a query head, so that a user writes `shared_experts=16` instead of
`experts.shared_experts=16`; `tests/heads/test_registry.py` keeps them unique.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from labelwise.core.config import Config

Probability = Annotated[float, Field(ge=0, lt=1)]


class TokensConfig(Config):
    """Backbone map [B, C, H, W] -> tokens [B, T, D]."""

    dim: PositiveInt | None = None  # D; None: as many as the backbone's channels, the papers' choice
    token_relu: bool = False  # ReLU after the projection (ML-Decoder)
    # 2-D sine positions: none, added once to the tokens (standard transformer), or to every attention's keys (DETR)
    positions: Literal["none", "input", "keys"] = "none"
    encoder_layers: NonNegativeInt = 0  # N_e
    # Ours, not the papers': the share of tokens that a training step leaves out, others for each image. Half of them do
    # as well as all and take half the time (docs/research/study.md)
    token_dropout: Probability = 0.0


class QueriesConfig(Config):
    """Where the K queries come from."""

    queries: Literal["learnable", "random", "words"] = "learnable"
    groups: PositiveInt | None = None  # K; None: one query per label. More groups than labels: one per label
    # g, places in each group; None: ceil(labels / K). Word queries fix it for good: eq. 5 gives a label D / g numbers
    group_size: PositiveInt | None = None
    group_seed: int | None = 0  # deals the labels into groups at random; None: in the given order
    word_dim: PositiveInt | None = None  # length of the word vectors, when queries or classifier use them
    # Query augmentations (ML-Decoder section 2.3.3), in training only and on word queries only
    query_noise: float = Field(default=0.0, ge=0)  # deviation of the noise on word vectors, relative to their own size
    random_queries: NonNegativeInt = 0  # extra queries of random words in every batch, whose target is "present"

    @model_validator(mode="after")
    def _only_words_are_augmented(self) -> Self:
        if self.queries != "words" and (self.query_noise or self.random_queries):
            raise ValueError("query_noise and random_queries are for word queries; set queries=words")
        return self


class DecoderConfig(Config):
    """N_d layers of (first block) -> cross-attention -> feed-forward. Encoder layers share heads, widths, dropout."""

    decoder_layers: PositiveInt = 1  # N_d
    # What stands before the cross-attention: nothing; the queries' self-attention; or, as in ML-Decoder's reference
    # code, only the residual and the norm that self-attention leaves behind when it is taken out: norm(q + dropout(q)).
    first_block: Literal["none", "self-attention", "identity"] = "none"
    # input: the queries are the decoder's input; position: the stream starts at zero and the queries are added to the
    # query side of every attention (DETR, Q2L)
    query_role: Literal["input", "position"] = "input"
    final_norm: bool = False
    attention_heads: PositiveInt = 8
    feedforward: PositiveInt | None = None  # hidden width; None: feedforward_ratio x D
    feedforward_ratio: PositiveFloat = 4.0
    dropout: Probability = 0.1


class ExpertsConfig(Config):
    """What refines each query's vector before classification."""

    experts: Literal["none", "hybrid", "linear"] = "none"
    widths: tuple[PositiveInt, ...] = Field(default=(64, 16), min_length=1)  # d_o of each layer
    shared_experts: NonNegativeInt = 16  # n_s
    task_experts: NonNegativeInt = 1  # n_t
    # Where weights come from. own: each query has its own (the paper); shared: all queries have the same; query: a
    # small network makes them from the query's vector, so that word queries of unseen labels get theirs too
    task_weights: Literal["own", "query"] = "own"
    gate_weights: Literal["own", "shared", "query"] = "own"
    weight_rank: PositiveInt = 32  # of the matrices that are made from queries
    wiring: Literal["paper", "progressive"] = "paper"
    gate_hidden: PositiveInt | None = None  # None: linear gates; a number: MLP gates with that hidden layer
    # How linear experts start; the paper does not say. alike: one random map and small differences, so that the gates'
    # average of n_t + n_s experts is a signal from the first step on, however many there are; independent: in that
    # average their signals cancel out at first, which costs points where steps are few (docs/research/study.md)
    expert_start: Literal["alike", "independent"] = "alike"
    expert: str = "linear"  # or "mlp", or a name given to heads.register_expert
    activation: Literal["relu", "gelu", "silu", "tanh", "none"] = "relu"
    shared_stream: bool = False  # also compute the last layer's shared output O_s, which the logits never read

    @model_validator(mode="after")
    def _some_expert(self) -> Self:
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
    """K refined queries -> N logits."""

    # group: own weights for every query (with one query per label: one vector per label); shared: the same weights for
    # every query; words: weights made from the labels' word vectors (ML-Decoder eq. 6)
    classifier: Literal["group", "shared", "words"] = "group"
    classifier_hidden: PositiveInt | None = None  # a number: an MLP with that hidden layer


class QueryHeadConfig(Config):
    kind: Literal["query"] = "query"
    tokens: TokensConfig = TokensConfig()
    queries: QueriesConfig = QueriesConfig()
    decoder: DecoderConfig = DecoderConfig()
    experts: ExpertsConfig = ExpertsConfig()
    classifier: ClassifierConfig = ClassifierConfig()


class GapConfig(Config):
    """Global average pooling and a linear layer: the baseline."""

    kind: Literal["gap"] = "gap"
    dropout: Probability = 0.0


class CsraConfig(Config):
    """Class-specific residual attention (Zhu & Wu, ICCV 2021)."""

    kind: Literal["csra"] = "csra"
    residual_weight: float = Field(default=0.1, ge=0)  # lambda of eq. 5
    residual_heads: Literal[1, 2, 4, 6, 8] = 1  # how many temperatures (section 3.5)


class ConseConfig(Config):
    """CONSE (Norouzi et al., ICLR 2014), a zero-shot baseline: words of the seen labels, mixed by a classifier."""

    kind: Literal["conse"] = "conse"
    word_dim: PositiveInt | None = None  # length of the word vectors
    top: PositiveInt = 10  # T, how many of the surest labels are mixed
    seen_labels: PositiveInt | None = None  # that the classifier knows; None: all labels


class Fast0TagConfig(Config):
    """Fast0Tag (Zhang, Gong & Shah, CVPR 2016), a zero-shot baseline: a direction in the space of the words."""

    kind: Literal["fast0tag"] = "fast0tag"
    word_dim: PositiveInt | None = None  # length of the word vectors
    hidden: tuple[PositiveInt, ...] = ()  # widths between; (): the paper's linear map, (8192, 2048): its network
    dropout: Probability = 0.0  # after each hidden layer


HeadConfig = QueryHeadConfig | GapConfig | CsraConfig | ConseConfig | Fast0TagConfig
