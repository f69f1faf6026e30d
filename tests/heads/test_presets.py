"""Every preset, and the mixtures no paper has, through the same kit."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from head_kit import CHANNELS, LABELS, HeadKit
from labelwise import heads
from labelwise.core.errors import LabelwiseError

SMALL: dict[str, Any] = {"dim": 16, "attention_heads": 2}


class TestGap(HeadKit):
    name = "gap"


class TestCsra(HeadKit):
    name = "csra"
    options: ClassVar = {"residual_heads": 4}


class TestCTran(HeadKit):
    name = "c-tran"
    options: ClassVar = {**SMALL, "encoder_layers": 2}


class NeedsTheMap(HeadKit):
    """A head to which it matters where a token is."""

    def test_tokens_give_the_same_as_the_map(self) -> None:
        with pytest.raises(LabelwiseError, match="give it the map"):
            self.head()(torch.randn(2, 12, CHANNELS))


class TestSrn(NeedsTheMap):
    name = "srn"
    options: ClassVar = {"width": 8}


class TestSst(NeedsTheMap):
    name = "sst"
    options: ClassVar = SMALL


class TestSstWithoutPositions(HeadKit):
    name = "sst"
    options: ClassVar = {**SMALL, "positions": "none", "encoder_layers": 1}


class TestMcar(NeedsTheMap):
    name = "mcar"


class TestTransformerDecoder(HeadKit):
    name = "transformer-decoder"
    options: ClassVar = SMALL


class TestMlDecoder(HeadKit):
    name = "ml-decoder"
    options: ClassVar = SMALL


class TestMlDecoderInGroups(HeadKit):
    name = "ml-decoder"
    options: ClassVar = {**SMALL, "groups": 5}


class TestHsq(HeadKit):
    name = "hsq"
    options: ClassVar = {**SMALL, "shared_experts": 3, "widths": (8, 6)}


class TestHsqProgressive(HeadKit):
    name = "hsq"
    options: ClassVar = {**SMALL, "shared_experts": 3, "task_experts": 2, "widths": (8, 6, 4), "wiring": "progressive"}

    def permuted(self, name: str, tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The shared gate weighs every label's experts, two of them each, before the shared ones."""
        if "shared_gate" in name:
            own = tensor[: 2 * LABELS].unflatten(0, (LABELS, 2))[order].flatten(0, 1)
            return torch.cat((own, tensor[2 * LABELS :]))
        return super().permuted(name, tensor, order)


class TestHsqMlpGatesExpertsClassifier(HeadKit):
    name = "hsq"
    options: ClassVar = {
        **SMALL,
        "shared_experts": 3,
        "widths": (8, 6),
        "gate_hidden": 9,
        "expert": "mlp",
        "classifier_hidden": 10,
        "activation": "gelu",
    }


class TestHsqInGroups(HeadKit):
    name = "hsq"
    options: ClassVar = {**SMALL, "groups": 5, "shared_experts": 3, "widths": (8, 6)}


class TestHsqLinear(HeadKit):
    name = "hsq-linear"
    options: ClassVar = {**SMALL, "widths": (8, 6)}


class TestHsqBaseline(HeadKit):
    name = "hsq-baseline"
    options: ClassVar = SMALL


class TestQ2l(NeedsTheMap):
    name = "q2l"
    options: ClassVar = SMALL

    def test_without_a_projection_the_map_is_the_tokens(self) -> None:
        head = heads.create("q2l", in_features=CHANNELS, labels=5, attention_heads=2, encoder_layers=0, project=False)
        x = torch.randn(2, 12, CHANNELS)
        assert torch.equal(head.tokens(x, (3, 4))[0], x)
        assert not [name for name in head.state_dict() if "project" in name]
        with pytest.raises(LabelwiseError, match=f"the map's {CHANNELS} channels; leave out dim=16"):
            heads.create("q2l", in_features=CHANNELS, labels=5, dim=16, project=False)


class TestWordQueries(HeadKit):
    """ML-Decoder's zero-shot form: word vectors as queries, one shared classifier."""

    name = "ml-decoder"
    options: ClassVar = {**SMALL, "queries": "words", "classifier": "shared", "word_vectors": torch.randn(LABELS, 10)}


class TestWordQueriesAsInTheAuthorsCode(TestWordQueries):
    options: ClassVar = {**TestWordQueries.options, "word_projection": "relu"}

    def test_a_linear_layer_with_bias_and_a_relu(self) -> None:
        head = self.head()
        torch.nn.init.normal_(head.queries.project.bias)
        linear, words = head.queries.project, self.options["word_vectors"]
        expected = (words @ linear.weight.T + linear.bias).clamp(min=0)
        torch.testing.assert_close(head.queries(words), expected)


class TestGroupedWordQueries(HeadKit):
    """Appendix B: queries by eq. 5, classifier by eq. 6. Three labels a group do not divide a dim of 16."""

    name = "ml-decoder"
    options: ClassVar = {
        **SMALL,
        "groups": 5,
        "queries": "words",
        "classifier": "words",
        "word_vectors": torch.randn(LABELS, 10),
    }


class TestAugmentedWordQueries(HeadKit):
    """Noise on the queries and random queries in training change nothing of what the kit asks for."""

    name = "ml-decoder"
    options: ClassVar = {**TestWordQueries.options, "query_noise": 0.3, "random_queries": 4}


class TestHsqOnWords(HeadKit):
    """Shared experts only, one gate for all labels: nothing belongs to a label but its query."""

    name = "hsq"
    options: ClassVar = {
        **SMALL,
        "queries": "words",
        "classifier": "shared",
        "task_experts": 0,
        "shared_experts": 3,
        "gate_weights": "shared",
        "widths": (8, 6),
        "word_vectors": torch.randn(LABELS, 10),
    }


class TestHsqOnWordsWithMadeExperts(HeadKit):
    name = "hsq"
    options: ClassVar = {
        **TestHsqOnWords.options,
        "task_experts": 2,
        "task_weights": "query",
        "gate_weights": "query",
        "weight_rank": 7,
    }


class TestHsqOnGroupsOfWords(HeadKit):
    name = "hsq"
    options: ClassVar = {**TestHsqOnWordsWithMadeExperts.options, "groups": 5, "classifier": "words", "gate_hidden": 9}


class TestHsqMadeFromLearnableQueries(HeadKit):
    """The same compact experts where the labels are fixed: their number costs a query and a classifier each."""

    name = "hsq"
    options: ClassVar = {**SMALL, "task_weights": "query", "gate_weights": "query", "widths": (8, 6), "weight_rank": 7}


@pytest.mark.usefixtures("fresh_compiler")
def test_inductor_compiles_hsq_and_keeps_its_gradients() -> None:
    """The kit checks that each head is one graph; this one generates code for it and trains through it."""
    head = TestHsq().head(encoder_layers=0, decoder_layers=1)  # the C++ compiler takes seconds for each layer
    x = torch.randn(4, CHANNELS, 4, 4)
    head(x).square().sum().backward()
    eager = [p.grad.clone() for p in head.parameters() if p.grad is not None]
    head.zero_grad()
    # It need not build a program to learn which instructions this processor has.
    torch.compile(head, fullgraph=True, options={"cpp.vec_isa_ok": True})(x).square().sum().backward()
    for parameter, expected in zip((p for p in head.parameters() if p.grad is not None), eager, strict=True):
        torch.testing.assert_close(parameter.grad, expected, atol=1e-4, rtol=1e-3)


def test_every_preset_is_in_the_kit() -> None:
    for path in Path(__file__).parent.glob("test_*.py"):  # some are in the files of their own tests
        if "(HeadKit)" in path.read_text():
            import_module(path.stem)
    assert set(heads.list_heads()) <= {
        kit.name for kit in (*HeadKit.__subclasses__(), *NeedsTheMap.__subclasses__()) if hasattr(kit, "name")
    }
