"""Configs of the heads on attention and transformers beside the query heads. No PyTorch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from labelwise.heads.config import Probability, RelatingHeadConfig


class CTranConfig(RelatingHeadConfig):
    """C-Tran (Lanchantin et al., CVPR 2021): a transformer over image and labels, of which some may be known.

    Args:
        dim: D. None: the backbone's channels, as in the paper; else a linear layer comes first.
        encoder_layers: Layers over the tokens of image and labels.
        attention_heads: Heads of every attention; they divide D.
        feedforward: Hidden width of the feed-forward blocks. None: D.
        dropout: Rate in attention and feed-forward blocks.
        least_unknown: Label mask training tells the head a random part of each image's labels; this share of them, at
            least, is left to learn. 1: no label is ever told.
    """

    kind: Literal["c-tran"] = "c-tran"
    dim: PositiveInt | None = None
    encoder_layers: PositiveInt = 3
    attention_heads: PositiveInt = 4
    feedforward: PositiveInt | None = None
    dropout: Probability = 0.1
    least_unknown: float = Field(default=0.25, gt=0, le=1)

    @property
    def takes_known(self) -> bool:
        return True


class SrnConfig(RelatingHeadConfig):
    """Spatial regularization network (Zhu et al., CVPR 2017): all labels' attention maps, read together.

    Args:
        width: Channels of its convolutions.
    """

    kind: Literal["srn"] = "srn"
    width: PositiveInt = 512


class SstConfig(RelatingHeadConfig):
    """Spatial and semantic transformers (Chen et al., TIP 2022): one over positions, one over labels.

    Args:
        dim: D. None: the backbone's channels; else a linear layer comes first.
        positions: 2-D sine positions of the map's tokens. none; input: added to them.
        encoder_layers: Layers of each transformer.
        attention_heads: Heads of every attention; they divide D.
        feedforward: Hidden width of the feed-forward blocks. None: D.
        dropout: Rate in attention and feed-forward blocks.
    """

    kind: Literal["sst"] = "sst"
    dim: PositiveInt | None = None
    positions: Literal["none", "input"] = "input"
    encoder_layers: PositiveInt = 2
    attention_heads: PositiveInt = 8
    feedforward: PositiveInt | None = None
    dropout: Probability = 0.1


class McarConfig(RelatingHeadConfig):
    """Multi-class attentional regions (Gao & Zhou, TIP 2021): a second look at the regions of the best labels.

    Args:
        regions: N, how many of the most probable labels get a region.
        region_threshold: tau: where a label's map, scaled to [0, 1], is at least this high belongs to its region.
        pooling: average; or weighted: the mean of average and maximum.
    """

    kind: Literal["mcar"] = "mcar"
    regions: PositiveInt = 4
    region_threshold: Probability = 0.5
    pooling: Literal["average", "weighted"] = "average"
