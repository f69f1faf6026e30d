"""Labels in words on the towers of CLIP and SigLIP: how similar an image, and each of its patches, is to their texts.

Nothing needs training: the logits start as those of the towers (Radford et al. 2021; Zhai et al. 2023), and patches are
pooled per label by the softmax of their own logits, as in DualCoOp (Sun et al. 2022). What is trained are prompts: a
residual on each label's text embedding (TaskRes, Yu et al. 2023) and one negative text for all labels; or the vectors
before each label's name (CoOp, Zhou et al. 2022), also of a negative text for each label (DualCoOp).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import Head, HeadDetails, as_tokens, checked_words
from labelwise.heads.layers import Attention
from labelwise.heads.registry import register_head
from labelwise.heads.text_configs import TextAlignedConfig

_RESIDUAL = 0.5  # TaskRes' alpha
_CONTEXT_STD = 0.02  # CoOp's


class AttentionPool(nn.Module):
    """SigLIP's pooling (Zhai et al. 2022): a learned query reads the tokens; an MLP. Tokens [B, T, C] -> [B, C]."""

    def __init__(self, dim: int, heads: int, feedforward: int, activation: str) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, dim) * dim**-0.5)
        self.attention = Attention(dim, heads, dropout=0.0)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.linear1 = nn.Linear(dim, feedforward)
        self.activation = nn.GELU("tanh" if activation == "gelu-tanh" else "none")
        self.linear2 = nn.Linear(feedforward, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        pooled: Tensor = self.attention(self.query, tokens)[:, 0]
        out: Tensor = pooled + self.linear2(self.activation(self.linear1(self.norm(pooled))))
        return out


@register_head(TextAlignedConfig)
class TextAlignedHead(Head):
    """scale * ((1 - w) * cos(image, text) + w * pooled cos(patch, text)) + bias, less the same for the negative text.

    A patch is embedded as if it were the whole image: what the tower's pooling and projection make of it alone. That is
    MaskCLIP's reading (Zhou et al. 2022) of towers whose pooling is an attention; for a class token, the backbone does
    its part (`BackboneConfig.class_token`).

    Attributes:
        text_tower: Vectors before the labels' names [1 or N, M, w] -> text embeddings [N, d]. Only training needs it:
            the state dict has the embeddings.
    """

    config: TextAlignedConfig
    text_tower: Callable[[Tensor], Tensor] | None = None
    negative: Tensor

    def __init__(
        self, config: TextAlignedConfig, in_features: int, labels: int, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__(config, in_features, labels)
        words = checked_words(word_vectors, labels, config.word_dim)
        self.register_buffer("word_vectors", words)
        channels = in_features // 2 if config.pool == "token" else in_features
        dim = words.shape[1]  # d, of the space that images and texts share
        if not config.project and channels != dim:
            raise LabelwiseError(
                f"without a projection, word vectors must have the map's {channels} numbers, not {dim}",
                options={"head.project": True},
            )
        self.pool = None
        if config.pool == "attention":
            feedforward = config.feedforward or 4 * channels
            self.pool = AttentionPool(channels, config.attention_heads, feedforward, config.activation)
        self.project = nn.Linear(channels, dim, bias=False) if config.project else None
        for tower in (self.pool, self.project):
            if tower is not None:
                tower.requires_grad_(config.train_projection)
        if config.trains_text:
            if config.context is None or config.context_dim is None:
                raise LabelwiseError(f"prompts={config.prompts} needs context and context_dim, of a text tower")
            shape = labels if config.class_context else 1, config.context, config.context_dim
            self.context = nn.Parameter(torch.randn(shape) * _CONTEXT_STD)
            self.register_state_dict_pre_hook(_settle)  # type: ignore[no-untyped-call]
        else:
            self.residuals = nn.Parameter(torch.zeros(labels, dim))
        if config.prompts == "dualcoop":
            self.negative_context = nn.Parameter(torch.randn(shape) * _CONTEXT_STD)
            self.register_buffer("negative", torch.zeros(labels, dim))
        else:
            self.negative = nn.Parameter(torch.zeros(dim))  # subtracted from every text
        self.patch_weight = nn.Parameter(torch.tensor(config.patch_weight))  # w
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10.0)))  # SigLIP's first values
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))
        self.texts: nn.Parameter | None = None  # [N, d], after `fold_constants`
        self.has_patches = True

    def forward(self, x: Tensor) -> Tensor:
        (image, tokens), texts = self._pooled(x), self._texts()
        patches = self._similar(self._alone(tokens), texts) if self.has_patches else None
        return self._mixed(self._similar(image, texts), patches)

    def details(self, x: Tensor) -> HeadDetails:
        (image, tokens), texts = self._pooled(x), self._texts()
        patches = self._similar(self._alone(tokens), texts)  # [B, T, N]
        logits = self._mixed(self._similar(image, texts), patches)
        return self.attended(logits, patches.softmax(dim=1).transpose(1, 2), x)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if not mode:
            self.settle()
        return self

    @torch.no_grad()
    def settle(self) -> None:
        """Compute the embeddings of the prompts as they are now: done for every evaluation and every state dict."""
        if self.text_tower is not None:
            self.word_vectors, negative = self._encoded()
            if self.config.prompts == "dualcoop":
                self.negative = negative

    def fold_constants(self, tokens: int) -> None:
        self.texts = nn.Parameter(self._texts(), requires_grad=False)
        self.word_vectors = self.text_tower = None
        for name in {"residuals", "context", "negative_context", "negative", "logit_scale"} & {*self.state_dict()}:
            delattr(self, name)
        self.has_patches = bool(self.patch_weight)  # with a weight of 0 only `details` needs them

    def relabelled(self, before: Sequence[str], after: Sequence[str], word_vectors: Tensor) -> Self:
        """Known labels keep what was trained for them. New ones start at their words; where each label has its own
        vectors before its name, or a negative text, with the mean of the others'."""
        own = {"negative"} if self.config.prompts == "dualcoop" else set()
        if not self.config.trains_text:
            own |= {"residuals"}
        elif self.config.class_context:
            own |= {"context", "negative_context"}
        state = {name: tensor for name, tensor in self.state_dict().items() if name in own}
        for name, tensor in state.items():
            row = dict(zip(before, tensor, strict=True))
            new = torch.zeros_like(tensor[0]) if name == "residuals" else tensor.mean(dim=0)
            state[name] = torch.stack([row.get(label, new) for label in after])
        return self._rebuilt(self.config, len(after), word_vectors, state=state)

    def _mixed(self, image: Tensor, patches: Tensor | None) -> Tensor:
        """Logits [B, N] from the similarities of the image [B, N] and of the patches [B, T, N]."""
        if patches is not None:
            pooled = (patches.softmax(dim=1) * patches).sum(dim=1)
            image = image + self.patch_weight * (pooled - image)
        return image + self.logit_bias

    def _pooled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The image's vector [B, C] and its patches [B, T, C]."""
        tokens, _ = as_tokens(x, self.in_features)
        if self.config.pool == "token":  # the class token is at every position
            tokens, token = tokens.chunk(2, dim=2)
            return token.mean(dim=1), tokens
        return tokens.mean(dim=1) if self.pool is None else self.pool(tokens), tokens

    def _alone(self, tokens: Tensor) -> Tensor:
        """Each patch pooled as an image of its own: [B, T, C] -> [B, T, C]."""
        if self.pool is None:
            return tokens
        pooled: Tensor = self.pool(tokens.flatten(0, 1).unsqueeze(1))
        return pooled.view(tokens.shape)

    def _similar(self, x: Tensor, texts: Tensor) -> Tensor:
        """scale * (cos(x, text) - cos(x, negative)): [..., C] -> [..., N]."""
        embedded = x if self.project is None else self.project(x)
        return F.linear(F.normalize(embedded, dim=-1), texts)

    def _texts(self) -> Tensor:
        """What an image's embedding is multiplied with: [N, d]."""
        if self.texts is not None:
            return self.texts
        trains = self.training and self.config.trains_text
        words, negative = self._encoded() if trains else (self.word_vectors, self.negative)
        assert words is not None
        texts = F.normalize(words, dim=1)
        if not self.config.trains_text:
            texts = F.normalize(texts + _RESIDUAL * self.residuals, dim=1)
        return self.logit_scale.exp() * (texts - negative)

    def _encoded(self) -> tuple[Tensor, Tensor]:
        """The labels' text embeddings [N, d], and the negative ones: [N, d], or [d] for all labels."""
        if self.text_tower is None:
            raise LabelwiseError(
                "these prompts are trained through a text tower, which lw.create_model and lw.train bring along"
            )
        words = self.text_tower(self.context)
        if self.config.prompts == "coop":
            return words, self.negative
        return words, F.normalize(self.text_tower(self.negative_context), dim=1)


def _settle(head: TextAlignedHead, prefix: str, keep_vars: bool) -> None:
    head.settle()
