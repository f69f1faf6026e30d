"""CMA, of MS-CMA (You et al., AAAI 2020): label embeddings of a graph attend to the map by cosine."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.heads.base import AttendingHead, as_attention, as_tokens, has_values
from labelwise.heads.graph_configs import CmaConfig
from labelwise.heads.graphs import LabelClassifier, LabelGraphHead, without_self
from labelwise.heads.layers import mlp
from labelwise.heads.registry import register_head


@register_head(CmaConfig)
class CmaHead(LabelGraphHead, AttendingHead):
    """Cross-modality attention: a label looks where the projected features point into its embedding's direction.

    The embeddings come from adjacency-based similarity graph embedding (ASGE): a small network on the word vectors,
    trained when the head is made until cosines of labels are their co-occurrence. They do not change after that.

    What differs from the paper: one scale, where MS-CMA averages the answers of two stages of the backbone; and one
    hidden layer in the projection. The widths are ours.
    """

    label_embeddings: Tensor  # [N, E], of length 1

    def build(self, config: CmaConfig, words: Tensor, cooccurrence: Tensor) -> None:
        in_features, labels = self.in_features, self.labels
        embeddings = words.new_zeros(labels, config.dim)
        if has_values(words) and has_values(cooccurrence) and words.any():  # else a state dict brings them
            embeddings = similarity_embeddings(words, cooccurrence, config)
        self.register_buffer("label_embeddings", embeddings)
        self.project = mlp(in_features, in_features // 2, config.dim)  # the cross-modality transformer, 1 x 1
        self.classifier = LabelClassifier(labels, in_features)

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = as_tokens(x, self.in_features)  # [B, T, C]
        projected = F.normalize(self.project(tokens), dim=2)  # [B, T, E]
        cosines = F.linear(projected, self.label_embeddings).transpose(1, 2)  # [B, N, T]
        attention = as_attention(F.relu(cosines))
        return self.classifier(attention @ tokens), attention

    def fold_constants(self, tokens: int) -> None:
        self.word_vectors = None


@torch.inference_mode(False)
@torch.enable_grad()
def similarity_embeddings(words: Tensor, cooccurrence: Tensor, config: CmaConfig) -> Tensor:
    """ASGE: minimizes the sum of sigma_ij (cos(e_i, e_j) - A_ij)^2, where sigma spares pairs that are rare and apart.

    A is symmetric, as cosines are: the mean of P(j | i) and P(i | j).
    """
    words = words.clone()  # a tensor made in inference mode has no place in a gradient
    target = (cooccurrence + cooccurrence.T) / 2
    network = mlp(words.shape[1], config.dim, config.dim)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(config.steps):
        embeddings = F.normalize(network(words), dim=1)
        cosines = embeddings @ embeddings.T
        spared = (target < config.relaxation) & (cosines < config.relaxation)
        loss = without_self((cosines - target).square() * ~spared).sum() / len(words)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return F.normalize(network(words), dim=1).detach()
