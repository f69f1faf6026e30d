"""Prompts that can be trained: vectors in place of the words before a label's name (CoOp, Zhou et al. 2022)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from labelwise.core.errors import LabelwiseError
from labelwise.words.encoders import ClipEncoder, WordSource


class PromptEncoder:
    """Text embeddings of labels as a function of the vectors before their names: context [M, w] -> [N, d].

    It is open_clip's own text tower, frozen; only what the tower's embedding gives for the first words is replaced. So
    with the vectors of the template's own words, it gives the embeddings of the written prompts.

    Args:
        source: Its first and only template says which words come before the name, and which after it.
        labels: N names.
        length: M. None: as many as the template has.

    Attributes:
        words: [M', w], the vectors of the template's own words.
        length: M.
        starts_at_words: Whether the context is to start at them.
    """

    def __init__(self, source: WordSource, labels: Sequence[str], length: int | None = None) -> None:
        model: Any = source.encoder.model if isinstance(source.encoder, ClipEncoder) else None
        text = getattr(model, "text", model)  # open_clip's CLIP has the layers of the text tower among its own
        if not isinstance(getattr(text, "token_embedding", None), nn.Module):
            raise LabelwiseError(
                f"prompts are trained through a text tower of CLIP or SigLIP; {source.config.source!r} has none"
            )
        if len(source.config.templates) > 1:
            raise LabelwiseError("trained prompts take the place of the words of one template; give a single one")
        self.source, self.labels = source, labels
        template = source.config.templates[0]
        phrases = [source.texts(label) for label in labels]
        self.counts = [len(several) for several in phrases]
        texts = [text for several in phrases for text in several]
        with torch.device("cpu"):  # as the text tower is
            tokens = self._tokens(texts)
            empty, begun, other = self._tokens(["", template.partition("{}")[0], template.replace("{}", "x")])
            pad = int(empty[-1])
            written = torch.cat((tokens, other[None]))  # where a single label begins would not be seen
            start, end = (int((written == those).int().cumprod(dim=1).sum(dim=1).min()) for those in (empty, begun))
            self.start, self.length = start, length or max(1, end - start)
            self.starts_at_words = length is None and end > start
            # Any token but padding and the end of the text may hold the place.
            places = tokens[:, start : start + 1].expand(-1, self.length)
            tokens = torch.cat((tokens[:, :start], places, tokens[:, end:]), dim=1)
            spare = tokens.shape[1] - len(empty)
            if spare > 0 and (cut := (tokens[:, -spare:] != pad).any(dim=1)).any():
                raise LabelwiseError(
                    f"the text tower reads {len(empty)} tokens: too few for {self.length} vectors and "
                    f"{texts[int(cut.nonzero()[0])]!r}",
                    options={"head.context": self.length - spare},
                )
            self.tokens = nn.functional.pad(tokens, (0, -spare), value=pad)
            with torch.no_grad():
                self.words: Tensor = text.token_embedding(written[0, start:end])
        # The image tower stays behind; tensors are shared with all other users of the text tower, hooks are not.
        shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.model = copy.deepcopy(model, {**shared, id(model.visual): nn.Identity()})

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        assert isinstance(self.source.encoder, ClipEncoder)
        tokens: Tensor = self.source.encoder.tokenizer(list(texts))  # [T, L]
        return tokens

    @property
    def width(self) -> int:
        """w, of the text tower's word vectors."""
        return self.words.shape[1]

    def __call__(self, context: Tensor) -> Tensor:
        """Context [M, w] of all labels, or one for each of them [N, M, w], -> vectors [N, d], as `WordSource` gives."""
        self._move(context.device)
        context = context.expand(len(self.labels), -1, -1)
        context = context.repeat_interleave(torch.tensor(self.counts, device=context.device), dim=0)

        def replace(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:  # [T, L, w]
            before, after = embedded[:, : self.start], embedded[:, self.start + self.length :]
            return torch.cat((before, context.to(embedded), after), dim=1)

        text = getattr(self.model, "text", self.model)
        hook = text.token_embedding.register_forward_hook(replace)
        try:
            encoded = self.model.encode_text(self.tokens, normalize=True)
        finally:
            hook.remove()
        return self.source.averaged(encoded.float(), self.counts)

    def _move(self, device: torch.device) -> None:
        if self.tokens.device != device:
            self.model = copy.deepcopy(self.model).to(device)  # a copy: others use the tower where it was loaded
            self.tokens = self.tokens.to(device)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # frozen, and moved to where a context is: copies of a model share it
