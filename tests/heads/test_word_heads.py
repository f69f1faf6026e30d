"""Heads on words: other labels after training, weights made from queries, query augmentation, given groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from labelwise import heads
from labelwise.core.errors import LabelwiseError
from labelwise.heads import QueryHead, preset, with_options
from labelwise.heads.queries import regroup

CHANNELS, DIM, WORD_DIM = 12, 16, 6
POOL = torch.randn(14, WORD_DIM, generator=torch.Generator().manual_seed(3))  # word vectors of 14 names: "0" to "13"
KNOWN = 9  # the first of them were trained

FULL: dict[str, Any] = {"queries": "words", "classifier": "shared", "dim": DIM, "attention_heads": 2}
MADE = {**FULL, "shared_experts": 3, "widths": (8, 6), "task_weights": "query", "gate_weights": "query"}
IN_GROUPS = {**FULL, "classifier": "words", "groups": 3}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("ml-decoder", FULL),
    "shared experts": ("hsq", {**FULL, "task_experts": 0, "gate_weights": "shared", "widths": (8, 6)}),
    "made experts": ("hsq", MADE),
    "groups": ("ml-decoder", IN_GROUPS),
    "made experts in groups": ("hsq", {**MADE, "groups": 3, "classifier": "words"}),
}


def word_head(kind: str = "full", labels: int = KNOWN, **more: Any) -> QueryHead:
    torch.manual_seed(0)
    name, options = HEADS[kind]
    head = heads.create(name, in_features=CHANNELS, labels=labels, word_vectors=POOL[:labels], **options, **more)
    assert isinstance(head, QueryHead)
    torch.nn.init.constant_(head.classifier.bias, 0.3)
    return head.eval()


def for_labels(head: QueryHead, numbers: list[int]) -> QueryHead:
    """What `LabelModel.with_labels` does, for labels whose names are numbers."""
    return head.relabelled([str(n) for n in range(head.labels)], [str(n) for n in numbers], POOL[numbers])


MAPS = torch.randn(2, CHANNELS, 3, 4, generator=torch.Generator().manual_seed(5))
some_labels = st.lists(st.sampled_from(range(len(POOL))), min_size=1, unique=True)


@pytest.mark.parametrize("kind", HEADS)
@given(numbers=some_labels, random=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_permuting_the_labels_permutes_the_scores(kind: str, numbers: list[int], random: Any) -> None:
    head = word_head(kind)
    order = list(range(len(numbers)))
    random.shuffle(order)
    scores, permuted = for_labels(head, numbers)(MAPS), for_labels(head, [numbers[i] for i in order])(MAPS)
    torch.testing.assert_close(permuted, scores[:, order], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["full", "shared experts", "made experts"])
@given(numbers=some_labels, more=some_labels)
@settings(max_examples=15, deadline=None)
def test_adding_labels_leaves_the_scores_of_the_others(kind: str, numbers: list[int], more: list[int]) -> None:
    head = word_head(kind)
    both = numbers + [n for n in more if n not in numbers]
    few, many = for_labels(head, numbers)(MAPS), for_labels(head, both)(MAPS)
    torch.testing.assert_close(many[:, : len(numbers)], few, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["groups", "made experts in groups"])
def test_in_groups_trained_labels_keep_their_scores_when_others_are_added(kind: str) -> None:
    """Groups that are still complete stay together; labels of a broken group do influence each other."""
    head = word_head(kind)
    scores = head(MAPS)
    many = for_labels(head, list(range(len(POOL))))
    assert (many.groups, many.group_size) == (5, 3)  # 9 labels in 3 groups, 5 more in 2
    torch.testing.assert_close(many(MAPS)[:, :KNOWN], scores, atol=1e-5, rtol=1e-4)
    broken = for_labels(head, [n for n in range(len(POOL)) if n != 4])(MAPS)
    assert ((broken[:, :4] - scores[:, :4]).abs() > 1e-4).any()


@pytest.mark.parametrize("kind", HEADS)
def test_the_same_labels_give_the_same_bits_from_the_same_memory(kind: str) -> None:
    head = word_head(kind)
    other = for_labels(head, list(range(KNOWN)))
    assert torch.equal(other(MAPS), head(MAPS))
    places = {name: tensor.data_ptr() for name, tensor in head.named_parameters()}
    assert {name: tensor.data_ptr() for name, tensor in other.named_parameters()} == places
    assert not other.training
    other.train()
    assert not head.training  # each has its own mode


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_made_for_labels_equals_one_that_was_given_them(kind: str) -> None:
    """`relabelled` is the same as building a head for the new labels and loading the weights into it."""
    other = for_labels(word_head(kind), [13, 2, 11])
    fresh = heads.build(other.config, CHANNELS, 3)
    fresh.load_state_dict(other.state_dict())
    assert torch.equal(fresh.eval()(MAPS), other(MAPS))


def test_more_labels_than_the_preset_has_groups_still_get_a_query_each() -> None:
    """ml-decoder has at most 100 queries by default: nine labels have their own, and so do 120 later."""
    head = word_head()
    other = head.relabelled([str(n) for n in range(KNOWN)], [str(n) for n in range(120)], POOL[:1].expand(120, -1))
    assert (other.groups, other.group_size) == (120, 1)
    torch.testing.assert_close(other(MAPS)[:, 119], head(MAPS)[:, 0], atol=1e-5, rtol=1e-4)


@given(st.integers(1, 30), st.integers(2, 5), some_labels, st.randoms(use_true_random=False))
def test_regrouping_never_shares_a_place_and_keeps_whole_groups(
    before: int, size: int, after: list[int], random: Any
) -> None:
    places = random.sample(range(2 * before + size), before)  # with holes, as a clustering leaves them
    names = [str(n) for n in range(before)]
    wanted = [str(n) for n in after]
    slots = regroup(names, places, wanted, size, seed=1)
    assert len(set(slots)) == len(slots)
    assert len({slot // size for slot in slots}) == max(slots) // size + 1  # no empty group
    group_of = dict(zip(wanted, [slot // size for slot in slots], strict=True))
    for group in {place // size for place in places}:
        members = [name for name, place in zip(names, places, strict=True) if place // size == group]
        if set(members) <= set(wanted):
            assert len({group_of[name] for name in members}) == 1
            assert [n for n in wanted if group_of[n] == group_of[members[0]] and n not in members] == []


@pytest.mark.parametrize("gate_hidden", [None, 5])
def test_made_weights_equal_a_loop_over_labels_with_their_matrices(gate_hidden: int | None) -> None:
    """Algorithm 1 of HSQ, label by label, each with the matrices that stand for its query."""
    head = word_head("made experts", task_experts=2, gate_hidden=gate_hidden, weight_rank=7)
    assert head.word_vectors is not None
    queries = head.queries(head.word_vectors)
    tokens, _ = head.tokens(MAPS.flatten(2).transpose(1, 2), None)
    decoded = head.decoder(queries, tokens, None)  # [B, K, D]

    def made(layer: Any, x: Tensor, q: Tensor) -> Tensor:
        scale = layer.scale.weight @ q + layer.scale.bias
        matrix = layer.up.weight @ torch.diag(scale) @ layer.down.weight
        return x @ matrix.T + layer.up.bias + layer.shift.weight @ q

    for i in range(KNOWN):
        x, q = decoded[:, i], queries[i]
        for layer in head.experts.layers:
            gate, width = layer.gate, layer.shared.d_out
            hidden = x if gate_hidden is None else made(gate.first, x, q).relu()
            weights = made(gate if gate_hidden is None else gate.last, hidden, q).softmax(dim=1)
            own = made(layer.task.linear, x, q).split(width, dim=1)
            shared = layer.shared.linear(x).split(width, dim=1)
            x = sum(weights[:, k : k + 1] * y.relu() for k, y in enumerate([*own, *shared]))
        logit = x @ head.classifier.weights.weight[0] + head.classifier.bias
        torch.testing.assert_close(logit, head(MAPS)[:, i], atol=1e-5, rtol=1e-4)


def test_the_size_of_made_experts_does_not_depend_on_the_number_of_labels() -> None:
    few, many = (sum(p.numel() for p in word_head("made experts", n).parameters()) for n in (2, 14))
    assert few == many


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("gap", {}, ["head", "head.queries", "head.classifier"]),
        ("hsq", {}, ["head.queries", "head.task_weights", "head.gate_weights", "head.classifier"]),
        ("hsq", {**FULL, "task_experts": 0}, ["head.gate_weights"]),
        ("hsq", {**FULL, "task_experts": 0, "shared_experts": 1}, []),
        ("hsq-linear", FULL, []),
        ("ml-decoder", {"queries": "words", "classifier": "words"}, []),
    ],
)
def test_what_ties_a_head_to_its_labels(name: str, options: dict[str, Any], expected: list[str]) -> None:
    config = with_options(preset(name), options, name)
    assert list(config.bound_options) == expected
    assert config.takes_new_labels == (not expected)


def test_a_head_with_weights_of_labels_says_what_to_train_instead() -> None:
    head = heads.create("ml-decoder", in_features=CHANNELS, labels=5, dim=16, queries="words", word_vectors=POOL[:5])
    with pytest.raises(LabelwiseError, match="a change of labels needs a head that takes new labels") as caught:
        head.relabelled(list("abcde"), list("abc"), POOL[:3])
    assert "(--set head.classifier=shared --set model.words=package:glove-50d)" in caught.value.for_command_line()


# ---- query augmentation


@pytest.mark.parametrize("kind", ["full", "groups", "made experts"])
def test_augmentation_leaves_no_trace_in_evaluation(kind: str) -> None:
    plain, augmented = word_head(kind), word_head(kind, query_noise=0.5, random_queries=4)
    assert torch.equal(augmented(MAPS), plain(MAPS))
    assert {name: t.shape for name, t in augmented.state_dict().items()} == {
        name: t.shape for name, t in plain.state_dict().items()
    }


def test_noise_is_new_in_every_batch_and_as_large_as_asked_for() -> None:
    words = torch.randn(1, 4000) * 7
    head = heads.create(
        "ml-decoder", in_features=4, labels=1, dim=8, dropout=0.0, word_vectors=words, query_noise=0.2,
        queries="words", classifier="shared",
    ).train()  # fmt: skip
    assert isinstance(head, QueryHead)
    first, second = (head._words() - words for _ in range(2))
    assert not torch.equal(first, second)
    assert first.std() == pytest.approx(0.2 * 7, rel=0.1)
    assert first.mean().abs() < 0.1
    assert torch.equal(head.word_vectors, words)


@pytest.mark.parametrize(("kind", "extra"), [("full", 4), ("groups", 4 * 3), ("made experts", 4)])
def test_random_queries_answer_after_the_labels_in_training(kind: str, extra: int) -> None:
    head = word_head(kind, random_queries=4, dropout=0.0)
    plain = head(MAPS)
    logits = head.train()(MAPS)
    assert logits.shape == (2, KNOWN + extra)
    torch.testing.assert_close(logits[:, :KNOWN], plain)  # there is no self-attention: they do not disturb the labels
    assert not torch.equal(head(MAPS)[:, KNOWN:], logits[:, KNOWN:])
    words = head._words()
    assert words is not None
    assert words[-extra:].square().mean().sqrt() == pytest.approx(POOL[:KNOWN].square().mean().sqrt(), rel=0.5)


def test_a_random_query_is_a_further_column_that_is_present() -> None:
    """The loss of the labels' columns stays what it is; every random query adds a positive entry."""
    head = word_head(random_queries=4, dropout=0.0)
    logits = head.train()(MAPS)
    targets = torch.randint(0, 2, (2, KNOWN))
    wide = head.training_targets(targets)
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    total = bce(logits, wide.float(), reduction="sum")
    parts = bce(logits[:, :KNOWN], targets.float(), reduction="sum")
    torch.testing.assert_close(total, parts - logits[:, KNOWN:].sigmoid().log().sum())
    assert torch.equal(head.eval().training_targets(targets), targets)


def test_a_noise_answer_tells_random_queries_from_labels() -> None:
    """Figure 8: every query also answers "noise", which is true for the random ones alone. The labels' columns stay."""
    head = word_head(random_queries=4, random_target="noise", dropout=0.0)
    plain = head(MAPS)
    logits, targets = head.train()(MAPS), torch.randint(0, 2, (2, KNOWN))
    assert logits.shape == (2, KNOWN + KNOWN + 4)
    torch.testing.assert_close(logits[:, :KNOWN], plain)
    wide = head.training_targets(targets)
    assert torch.equal(wide[:, :KNOWN], targets)
    assert wide[:, KNOWN:].unique(dim=0).tolist() == [[0] * KNOWN + [1] * 4]
    torch.nn.functional.binary_cross_entropy_with_logits(logits, wide.float()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters() if p.requires_grad)
    fewer = for_labels(head.eval(), [3, 12])
    assert fewer.train()(MAPS).shape == (2, 2 + 2 + 4)


def test_a_noise_answer_needs_no_classifier_that_takes_new_labels() -> None:
    """Table 3 on the labels of COCO: one projection for each label, and random queries beside them."""
    head = word_head(random_queries=2, random_target="noise")
    config = with_options(head.config, {"classifier": "group"}, "head")
    per_label = heads.build(config, CHANNELS, KNOWN, POOL[:KNOWN]).train()
    assert per_label(MAPS).shape == per_label.training_targets(torch.zeros(2, KNOWN)).shape == (2, KNOWN + KNOWN + 2)


def test_cutout_zeroes_its_share_of_every_word() -> None:
    words = torch.rand(1, 4000) + 1
    head = heads.create(
        "ml-decoder", in_features=4, labels=1, dim=8, word_vectors=words, query_cutout=0.3,
        queries="words", classifier="shared",
    ).train()  # fmt: skip
    assert isinstance(head, QueryHead)
    first, second = head._words(), head._words()
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)
    assert float((first == 0).float().mean()) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(first[first != 0], words[first != 0])
    assert torch.equal(head.eval()._words(), words)


# ---- table 8: one side without words


@pytest.mark.parametrize(("queries", "classifier"), [("words", "group"), ("learnable", "words")])
def test_new_labels_take_the_slots_of_kept_groups(queries: str, classifier: str) -> None:
    options = {**FULL, "queries": queries, "classifier": classifier, "groups": 3, "group_size": 4, "keep_groups": True}
    torch.manual_seed(0)
    head = heads.create("ml-decoder", in_features=CHANNELS, labels=KNOWN, word_vectors=POOL[:KNOWN], **options).eval()
    assert isinstance(head, QueryHead)
    assert head.config.takes_new_labels
    torch.nn.init.normal_(head.classifier.bias)
    torch.testing.assert_close(for_labels(head, list(range(KNOWN)))(MAPS), head(MAPS))
    assert head.label_slot is not None
    assert sorted(head.label_query.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]  # every group has learned something
    assert sorted(for_labels(head, [10, 11, 12]).label_query.tolist()) == [0, 1, 2]
    mixed = for_labels(head, [12, 4, 13])
    assert (mixed.groups, mixed.group_size) == (3, 4)
    assert mixed.label_slot is not None
    assert mixed.label_slot[1] == head.label_slot[4]
    permuted = for_labels(head, [13, 12, 4])
    torch.testing.assert_close(permuted(MAPS), mixed(MAPS)[:, [2, 0, 1]])
    for_labels(head, list(range(12)))  # all twelve slots
    with pytest.raises(LabelwiseError, match="room for 12 labels, not 13; train with a larger group_size"):
        for_labels(head, list(range(13)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ml-decoder", {"query_noise": 0.1}, "are for word queries; set queries=words"),
        ("ml-decoder", {"query_cutout": 0.1}, "are for word queries; set queries=words"),
        ("ml-decoder", {"groups": None, "keep_groups": True}, "keep_groups is for labels in groups; set groups"),
        ("ml-decoder", {"groups": 9, "keep_groups": True}, "keep_groups is for groups of several labels"),
        ("hsq", {"queries": "words", "random_queries": 1, "random_target": "noise"}, "head that takes new labels"),
        ("ml-decoder", {"random_queries": 3}, "are for word queries; set queries=words"),
        ("ml-decoder", {"queries": "words", "random_queries": 3}, "random_queries needs a head that takes new labels"),
        ("hsq", {"task_weights": "query", "expert": "mlp"}, "only linear experts can be made"),
        ("hsq", {"task_weights": "query", "wiring": "progressive"}, "set wiring=paper"),
        ("ml-decoder", {"groups": 2, "group_size": 4}, "2 groups of 4 have no room for 9 labels"),
        ("ml-decoder", {"label_slot": torch.arange(9)}, "has a query for each label; set groups"),
        ("ml-decoder", {"groups": 3, "label_slot": torch.zeros(9)}, "9 different numbers from 0 to 8"),
        ("ml-decoder", {"groups": 3, "label_slot": torch.arange(8)}, "9 different numbers"),
        ("ml-decoder", {"groups": 3, "label_slot": torch.arange(1, 10)}, "9 different numbers"),
        ("gap", {"label_slot": torch.arange(9)}, "label_slot is for heads with queries"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    if options.get("queries") == "words":
        options = {**options, "word_vectors": POOL[:9]}
    with pytest.raises(LabelwiseError, match=message):
        heads.create(name, in_features=CHANNELS, labels=9, **options)


def test_given_groups_are_used_and_travel_with_the_weights() -> None:
    slots = torch.tensor([8, 1, 0, 3, 4, 11, 6, 7, 2])  # 9 labels in 3 groups of 4 slots
    options = {"groups": 3, "group_size": 4, "dim": DIM, "attention_heads": 2}
    head = heads.create("ml-decoder", in_features=CHANNELS, labels=9, label_slot=slots, **options)
    assert isinstance(head, QueryHead)
    assert head.label_query.tolist() == [2, 0, 0, 0, 1, 2, 1, 1, 0]
    other = heads.create("ml-decoder", in_features=CHANNELS, labels=9, **options)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.eval()(MAPS), head.eval()(MAPS))
