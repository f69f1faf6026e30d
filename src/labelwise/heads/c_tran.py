"""C-Tran (Lanchantin, Wang, Ordonez & Qi, CVPR 2021): one transformer over image positions and labels, some known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.core.errors import LabelwiseError
from labelwise.heads.attention_configs import CTranConfig
from labelwise.heads.base import Head, HeadDetails, Recorder, as_tokens, mask_labels, on_grid
from labelwise.heads.layers import EncoderLayer, PerQueryLinear
from labelwise.heads.registry import register_head


@register_head(CTranConfig)
class CTranHead(Head):
    """Every label is a token beside the image's tokens; its state says whether it is known to be there or not.

    The layer norm before the first layer, and layers with residuals and norms around eq. 2 to 4, are those of the
    public code.
    """

    config: CTranConfig
    label_table: Tensor | None  # [3, N, D + 3 D], `_label_table` once it is constant

    def __init__(self, config: CTranConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        dim = config.dim or in_features
        bound = dim**-0.5
        self.project = nn.Linear(in_features, dim) if config.dim else nn.Identity()
        self.label = nn.Parameter(torch.empty(labels, dim).uniform_(-bound, bound))  # l_i
        self.state = nn.Parameter(torch.empty(2, dim).uniform_(-bound, bound))  # s: absent, present; unknown is zero
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(
            EncoderLayer(dim, config.attention_heads, config.feedforward or dim, config.dropout)
            for _ in range(config.encoder_layers)
        )
        self.classifier = PerQueryLinear(labels, dim, 1)  # w_i, b_i of eq. 5
        self.register_buffer("label_table", None)

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        return self._run(x, known, None)

    def details(self, x: Tensor, known: Tensor | None = None) -> HeadDetails:
        """The attention of each label to the image, as a share of 1; its attention to other labels is left out."""
        record = Recorder()
        logits = self._run(x, known, record)
        to_image = [weights[:, :, -self.labels :, : -self.labels] for weights in record.attention]  # [B, heads, N, T]
        shares = [weights / weights.sum(dim=-1, keepdim=True) for weights in to_image]
        return HeadDetails(logits, self.label_query, attention_layers=tuple(on_grid(each, x) for each in shares))

    def draw_known(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        return mask_labels(targets, self.config.least_unknown)

    def _run(self, x: Tensor, known: Tensor | None, record: Recorder | None) -> Tensor:
        image: Tensor = self.norm(self.project(as_tokens(x, self.in_features)[0]))  # z: [B, T, D]
        labels, projected = self._label_tokens(known, image.shape[0])
        tokens = torch.cat((image, labels), dim=1)  # H: [B, T + N, D]
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, EncoderLayer)
            attention = layer.self_attn
            qkv = attention.project(tokens if number else image)
            q, k, v = attention.split(qkv if number else torch.cat((qkv, projected), dim=1))
            if number == len(self.layers) - 1:  # only the labels are read from here on
                tokens, q = tokens[:, -self.labels :], q[:, :, -self.labels :]
            tokens = layer.after_attention(tokens, attention.attend(q, k, v, record))  # eq. 2 to 4
        logits: Tensor = self.classifier(tokens.transpose(0, 1))[..., 0].T  # eq. 5
        return logits  # [B, N]

    def _label_tokens(self, known: Tensor | None, images: int) -> tuple[Tensor, Tensor]:
        """The labels' tokens [B, N, D] in their states, and their queries, keys and values [B, N, 3 D] in layer 1."""
        table = self._label_table(1 if known is None else 3) if self.label_table is None else self.label_table
        if known is None:
            chosen = table[0].expand(images, -1, -1)
        else:
            if known.shape != (images, self.labels):
                raise LabelwiseError(f"known labels must be [{images}, {self.labels}], not {list(known.shape)}")
            known = known[..., None]
            chosen = torch.where(known > 0, table[2], torch.where(known < 0, table[0], table[1]))
        dim = self.label.shape[1]
        return chosen[..., :dim], chosen[..., dim:]

    def _label_table(self, states: int = 3) -> Tensor:
        """What layer 1 needs of every label if it is unknown, absent or present, [3, N, D + 3 D]. It does not depend on
        the image: three rows for each label instead of one for each label and image."""
        state = torch.cat((torch.zeros_like(self.state[:1]), self.state))[:states]  # s: [3, D]
        tokens = self.norm(self.label + state[:, None])  # eq. 1: [3, N, D]
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        return torch.cat((tokens, first.self_attn.project(tokens)), dim=-1)

    def fold_constants(self, tokens: int) -> None:
        self.label_table = self._label_table()
