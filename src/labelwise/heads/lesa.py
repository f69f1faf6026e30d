"""LESA (Huynh & Elhamifar, CVPR 2020): attentions that all labels share, of which each label selects the best."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import HeadDetails, LossTerms, as_tokens
from labelwise.heads.registry import register_head
from labelwise.heads.word_configs import AttentionPerClusterConfig, LesaConfig
from labelwise.heads.word_head import LabelVectors, WordHead, region_features


class SharedAttentionHead(WordHead):
    """M attentions over regions f: e = W_2 tanh(W_1 f), alpha = softmax over regions, z_m = sum_r alpha_m(f_r) f_r.

    A label selects one of them (`selection`); its logit is <theta_c, z_m> with theta_c = W v_c, v_c its word vector.
    """

    def __init__(
        self,
        config: LesaConfig | AttentionPerClusterConfig,
        in_features: int,
        labels: int,
        word_vectors: Tensor | None = None,
    ) -> None:
        super().__init__(config, in_features, labels, word_vectors)
        dim = config.dim or in_features
        self.regions = region_features(in_features, config.dim)
        self.attention = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, config.attentions))
        self.label_vectors = LabelVectors(self.word_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.selected(self.scores(x)[0])

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """<theta_c, z_m> [B, M, N], the attention logits e [B, M, T] and the regions f [B, T, D]."""
        tokens, _ = as_tokens(x, self.in_features)
        regions = self.regions(tokens)
        e = self.attention(regions).transpose(1, 2)
        attended = e.softmax(dim=2) @ regions  # z: [B, M, D]
        return attended @ self.label_vectors(self.word_vectors).T, e, regions

    def selection(self, scores: Tensor) -> Tensor:
        """The attention that each label selects by its scores [B, M, N]: [B, N]."""
        raise NotImplementedError

    def selected(self, scores: Tensor) -> Tensor:
        """The logits [B, N]."""
        return scores.gather(1, self.selection(scores)[:, None])[:, 0]

    def details(self, x: Tensor) -> HeadDetails:
        scores, e, _ = self.scores(x)
        chosen = self.selection(scores)[:, :, None].expand(-1, -1, e.shape[2])  # [B, N, T]
        return self.attended(self.selected(scores), e.softmax(dim=2).gather(1, chosen), x)


@register_head(LesaConfig)
class LesaHead(SharedAttentionHead):
    """A label selects the attention that suits it best, s_c = max_m <theta_c, z_m>.

    Meant for the loss `ranking` with penalty=hinge and divide_by=violations (L_rank); `loss_terms` adds the three
    regularizers. Left out: the 2x2 convolution with batch norm of the authors' code; `dim` is the substitute that works
    on tokens too.
    """

    config: LesaConfig

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        scores, e, regions = self.scores(x)
        # What the regularizers need as further columns, [B, M N + N + 1].
        mean_scores = regions.mean(dim=1) @ self.label_vectors(self.word_vectors).T
        return torch.cat((scores.flatten(1), mean_scores, overlap(e)[:, None]), dim=1)

    def selection(self, scores: Tensor) -> Tensor:
        return scores.argmax(dim=1)

    def loss_terms(self, outputs: Tensor, targets: Tensor) -> LossTerms:
        if not self.training:
            return super().loss_terms(outputs, targets)
        config, labels = self.config, self.labels
        flat, mean_scores, overlaps = outputs.float().split((config.attentions * labels, labels, 1), dim=1)
        scores = flat.unflatten(1, (-1, labels))  # [B, M, N]
        logits = self.selected(scores)
        known = targets >= 0
        # L_rel: present labels score higher on their attention than on the mean of all regions, absent ones lower.
        sign = (2 * targets - 1) * known  # 1 present, -1 absent, 0 unknown
        relevance = F.relu((mean_scores - logits) * sign).sum(dim=1).mean()
        # L_dist: the present labels' shares of each attention, squared: least if they are spread evenly.
        present = (targets * known).to(scores.dtype)
        shares = (scores.softmax(dim=1) * present[:, None]).sum(dim=2)  # [B, M]
        distribution = shares.square().mean()
        diversity = overlaps.mean().add(1e-12).sqrt()  # L_div
        penalty = config.diversity * diversity + config.relevance * relevance + config.distribution * distribution
        return LossTerms(logits, targets, penalty=penalty)


def overlap(e: Tensor) -> Tensor:
    """The squared cosines between different attentions' logits [B, M, T], summed: [B]."""
    e = F.normalize(e, dim=2)
    cosines = e @ e.transpose(1, 2)  # [B, M, M]
    different = 1 - torch.eye(cosines.shape[1], dtype=e.dtype, device=e.device)
    return (cosines * different).square().sum(dim=(1, 2))
