"""Configs of the zero-shot heads: labels are word vectors. No PyTorch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from labelwise.heads.config import HeadConfig, Probability


class WordHeadConfig(HeadConfig):
    """Of heads that are built from the labels' word vectors.

    Args:
        word_dim: Length of the word vectors.
    """

    word_dim: PositiveInt | None = None

    @property
    def takes_words(self) -> bool:
        return True


class RegionHeadConfig(WordHeadConfig):
    """Of those that show where they looked."""

    @property
    def has_attention(self) -> bool:
        return True


class ConseConfig(WordHeadConfig):
    """CONSE (Norouzi et al., ICLR 2014), a zero-shot baseline: word vectors of seen labels, mixed by a classifier.

    Args:
        word_dim: Length of the word vectors.
        top: T, how many of the most probable labels are mixed.
        seen_labels: How many labels the classifier knows. None: all.
    """

    kind: Literal["conse"] = "conse"
    top: PositiveInt = 10
    seen_labels: PositiveInt | None = None


class Fast0TagConfig(WordHeadConfig):
    """Fast0Tag (Zhang, Gong & Shah, CVPR 2016), a zero-shot baseline: a direction in the space of word vectors.

    Args:
        word_dim: Length of the word vectors.
        hidden: Widths of hidden layers. (): the paper's linear map; (8192, 2048): its network.
        dropout: After each hidden layer.
    """

    kind: Literal["fast0tag"] = "fast0tag"
    hidden: tuple[PositiveInt, ...] = ()
    dropout: Probability = 0.0


class AttentionPerLabelConfig(RegionHeadConfig):
    """One attention per label, made from its word by bilinear attention (Kim, Jun & Zhang, NeurIPS 2018).

    Args:
        word_dim: Length of the word vectors.
        dim: Width of a linear layer with ReLU on the features of each region. None: the features as they are.
        rank: K of the low-rank bilinear form.
    """

    kind: Literal["attention-per-label"] = "attention-per-label"
    dim: PositiveInt | None = None
    rank: PositiveInt = 256


class AttentionPerClusterConfig(RegionHeadConfig):
    """One attention per cluster of labels whose words are close: a baseline of LESA's paper.

    Args:
        word_dim: Length of the word vectors.
        dim: Width of a linear layer with ReLU on the features of each region. None: the features as they are.
        attentions: M, the number of clusters.
    """

    kind: Literal["attention-per-cluster"] = "attention-per-cluster"
    dim: PositiveInt | None = None
    attentions: PositiveInt = 10


class LesaConfig(RegionHeadConfig):
    """LESA (Huynh & Elhamifar, CVPR 2020): labels select among shared attentions.

    Args:
        word_dim: Length of the word vectors.
        dim: Width of a linear layer with ReLU on the features of each region. None: the features as they are.
        attentions: M, how many attentions the labels share.
        diversity: Weight of L_div: attentions look at different regions. This and the next are the authors' 0.01 and
            0.001 on sums over a batch of 32, here on means.
        relevance: Weight of L_rel: an attended feature tells more than the mean of all regions.
        distribution: Weight of L_dist: an image's labels are spread over the attentions.
    """

    kind: Literal["lesa"] = "lesa"
    dim: PositiveInt | None = None
    attentions: PositiveInt = 10
    diversity: float = Field(default=0.057, ge=0)
    relevance: float = Field(default=0.032, ge=0)
    distribution: float = Field(default=0.1, ge=0)


class BiamConfig(RegionHeadConfig):
    """BiAM (Narayan et al., ICCV 2021): regions enriched by region and scene context, each label read from its best.

    Args:
        word_dim: Length of the word vectors.
        dim: Channels of the two attention blocks.
        out_dim: Channels of the enriched regions, where labels are compared. None: the backbone's channels.
        kernel: Of the two convolutions. 3: the paper's, for maps only; 1: tokens work as well.
        attention_heads: Of the self-attention between regions.
        top_regions: k, how many of a label's best regions its logit is the mean of.
        dropout: In the self-attention.
        scene_dropout: On the scene's feature.
    """

    kind: Literal["biam"] = "biam"
    dim: PositiveInt = 256
    out_dim: PositiveInt | None = 512
    kernel: Literal[1, 3] = 3
    attention_heads: PositiveInt = 8
    top_regions: PositiveInt = 6
    dropout: Probability = 0.1
    scene_dropout: Probability = 0.2


class SdlConfig(WordHeadConfig):
    """SDL (Ben-Cohen et al., ICCV 2021): several directions in word space, for diverse labels.

    Args:
        word_dim: Length of the word vectors.
        directions: Rows of the embedding matrix A: 7 on NUS-WIDE, 2 on COCO.
        variance: lambda, the weight of the regularizer of A's variance; the ranking loss has the rest.
        diversity_weight: Whether images with more diverse labels count more.
    """

    kind: Literal["sdl"] = "sdl"
    directions: PositiveInt = 7
    variance: Probability = 0.3
    diversity_weight: bool = True
