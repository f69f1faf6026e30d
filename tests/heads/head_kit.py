"""What every head must do. The test of a new head or preset is a subclass that names it:

class TestMine(HeadKit):
    name = "mine"
    options: ClassVar = {"dim": 16}  # small, so that the tests are quick
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.engines.convert import HeadOutputs, outputs_of

# Prime numbers that are no layer's width, so that a tensor's shape tells whether it is indexed by label.
LABELS = 13
CHANNELS = 24


def small_options(name: str, labels: int = LABELS) -> dict[str, Any]:
    """Options that make any preset small, with the tensors of the labels that it needs."""
    config, random = heads.preset(name), torch.Generator().manual_seed(7)
    small = {"dim": 16, "attention_heads": 2, "hidden": (11,), "steps": 2, "descriptions": 2}
    options: dict[str, Any] = {key: value for key, value in small.items() if key in config.option_parts()}
    if config.takes_words:
        options["word_vectors"] = torch.randn(labels, 10, generator=random)
    if config.takes_cooccurrence:
        options["cooccurrence"] = torch.rand(labels, labels, generator=random)
    return options


class HeadKit:
    name: ClassVar[str]  # of a registered preset
    options: ClassVar[dict[str, Any]] = {}  # changes to it; heads on words also need word_vectors [LABELS, length]

    def head(self, labels: int = LABELS, **more: Any) -> heads.Head:
        torch.manual_seed(1)
        return heads.create(self.name, in_features=CHANNELS, labels=labels, **(self.options | more)).eval()

    def known(self, images: int) -> tuple[Tensor, ...]:
        """A further input of heads that take it: labels that are known to be there, to be absent, or not known."""
        return (torch.randint(-1, 2, (images, LABELS)).float(),) if heads.preset(self.name).takes_known else ()

    def test_one_logit_for_each_label(self) -> None:
        head = self.head()
        assert head(torch.randn(3, CHANNELS, 4, 5)).shape == (3, LABELS)

    def test_tokens_give_the_same_as_the_map(self) -> None:
        head, x = self.head(), torch.randn(2, CHANNELS, 3, 4)
        tokens = x.flatten(2).transpose(1, 2)
        torch.testing.assert_close(head(tokens), head(x))

    @pytest.mark.parametrize("grid", [(1, 1), (2, 7), (14, 14)])
    def test_any_resolution(self, grid: tuple[int, int]) -> None:
        assert self.head()(torch.randn(2, CHANNELS, *grid)).isfinite().all()

    def test_images_do_not_influence_each_other(self) -> None:
        head, x = self.head(), torch.randn(4, CHANNELS, 4, 4)
        torch.testing.assert_close(head(x)[2:3], head(x[2:3]), atol=1e-5, rtol=1e-4)

    def test_a_gradient_reaches_every_trainable_parameter_and_the_input(self) -> None:
        head = self.head().train()
        x = torch.randn(8, CHANNELS, 4, 4, requires_grad=True)
        head(x, *self.known(8)).square().sum().backward()
        without = [n for n, p in head.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
        assert without == []
        assert x.grad is not None
        assert x.grad.any()

    def test_permuted_labels_give_permuted_logits(self) -> None:
        head, x, order = self.head(), torch.randn(2, CHANNELS, 4, 4), torch.randperm(LABELS)
        before = head(x)
        head.load_state_dict({name: self.permuted(name, t, order) for name, t in head.state_dict().items()})
        torch.testing.assert_close(head(x), before[:, order], atol=1e-5, rtol=1e-4)

    def permuted(self, name: str, tensor: Tensor, order: Tensor) -> Tensor:
        """A tensor of the state dict for labels in another order."""
        for dim, size in enumerate(tensor.shape):  # an adjacency matrix has two
            tensor = tensor.index_select(dim, order) if size == LABELS else tensor
        return tensor

    def test_state_dict_round_trip(self) -> None:
        head, other, x = self.head(), self.head(), torch.randn(2, CHANNELS, 4, 4)
        for parameter in other.parameters():
            torch.nn.init.normal_(parameter)
        other.load_state_dict(head.state_dict())
        assert torch.equal(other(x), head(x))

    def test_deepcopy_is_independent(self) -> None:
        head, x = self.head(), torch.randn(2, CHANNELS, 4, 4)
        before = head(x)
        twin = copy.deepcopy(head)
        for parameter in twin.parameters():
            torch.nn.init.zeros_(parameter.data)
        assert torch.equal(head(x), before)

    @pytest.mark.usefixtures("fresh_compiler")
    def test_compiles_as_one_graph(self) -> None:
        """Tracing alone; `test_presets.py` also generates code for the richest head and trains through it."""
        head, x = self.head(), torch.randn(2, CHANNELS, 4, 4)
        compiled = torch.compile(head, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), head(x), atol=1e-5, rtol=1e-4)

    def test_exports_with_any_batch_and_image_size(self) -> None:
        """With all that `labelwise export` writes: logits, attention and gates."""
        head = self.head()
        sizes = {0: Dim("batch", max=64), 2: Dim("height", max=64), 3: Dim("width", max=64)}
        shapes = (sizes, {0: sizes[0]}) if head.takes_known else (sizes,)
        example = torch.randn(2, CHANNELS, 4, 5), *self.known(2)
        program = torch.export.export(HeadOutputs(head), example, dynamic_shapes=shapes)
        x = torch.randn(3, CHANNELS, 7, 6), *self.known(3)
        details, found = head.details(*x), dict(zip(outputs_of(head.config), program.module()(*x), strict=True))
        torch.testing.assert_close(found["out"], head(*x), atol=1e-5, rtol=1e-4)
        if head.has_attention:
            torch.testing.assert_close(found["attention"][:, -1], details.attention, atol=1e-4, rtol=0)
        if head.has_experts:
            torch.testing.assert_close(found["gates"][:, 0], details.gates[0], atol=1e-4, rtol=0)

    def test_bf16_autocast_stays_close(self) -> None:
        head, x = self.head().train(), torch.randn(4, CHANNELS, 4, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = head.eval()(x)
            head.train()(x).float().sum().backward()
        exact = head.eval()(x)
        assert (logits.float() - exact).abs().max() < 0.05 * exact.abs().max() + 0.05

    def test_details_agree_with_forward(self) -> None:
        head, x = self.head(), torch.randn(2, CHANNELS, 3, 5)
        details = head.details(x)
        torch.testing.assert_close(details.logits, head(x))
        if details.attention_layers:
            maps = details.label_attention
            assert maps.shape == (2, LABELS, 3, 5)
            torch.testing.assert_close(maps.sum(dim=(2, 3)), torch.ones(2, LABELS))

    def test_abilities_are_what_details_show(self) -> None:
        head = self.head()
        details = head.details(torch.randn(2, CHANNELS, 3, 5))
        assert head.has_attention == bool(details.attention_layers)
        assert head.has_experts == bool(details.gates)
        assert head.takes_words == (head.word_vectors is not None)
        assert not (head.config.takes_cooccurrence and head.config.takes_new_labels)  # these have no statistics
        assert details.label_query.shape == (LABELS,)

    def test_an_optimized_copy_gives_the_same_logits(self) -> None:
        head, x = self.head(), torch.randn(2, CHANNELS, 3, 5)
        fast = heads.optimize(head, tokens=15)
        for inputs in ((x,), (x, *self.known(2))):
            torch.testing.assert_close(fast(*inputs), head(*inputs), atol=1e-4, rtol=1e-3)

    def test_known_labels_change_the_others(self) -> None:
        """Also those of the same image alone, and nothing if nothing is known."""
        head, x = self.head(), torch.randn(2, CHANNELS, 3, 5)
        if not head.takes_known:
            return
        known = torch.full((2, LABELS), -1.0)
        torch.testing.assert_close(head(x, known), head(x))
        known[0, 3] = 1
        present, before = head(x, known), head(x)
        known[0, 3] = 0
        others = torch.arange(LABELS) != 3
        assert ((present - before)[0, others].abs() > 1e-6).all()
        assert ((present - head(x, known))[0, others].abs() > 1e-6).all()
        torch.testing.assert_close(present[1], before[1])

    def test_wrong_shapes_are_refused(self) -> None:
        wrong: list[Tensor] = [torch.randn(2, CHANNELS + 1, 4, 4), torch.randn(2, CHANNELS)]
        for x in wrong:
            with pytest.raises(LabelwiseError, match=rf"\[B, {CHANNELS}, H, W\]"):
                self.head()(x)
