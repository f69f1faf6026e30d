"""Labels of data matched to those of a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labelwise.bundled import default_model
from labelwise.core.errors import LabelwiseError
from labelwise.data.labels import match_labels
from labelwise.data.readers.voc import VOC_LABELS
from labelwise.data.table import LabelTable
from labelwise.engines.load import read_labels


def test_the_bundled_tagger_has_readable_names_and_is_measured_on_pascal_voc() -> None:
    names = read_labels(default_model())
    assert {"dining table", "potted plant", "tv"} < set(names)
    table = LabelTable.from_lists(["a.jpg", "b.jpg"], [["diningtable"], ["tvmonitor", "cat"]], VOC_LABELS)
    matched = match_labels(table, names)
    assert [matched.present(row) for row in (0, 1)] == [["dining table"], ["cat", "tv"]]
    assert (matched.targets() >= 0).sum() == 2 * len(
        VOC_LABELS
    )  # each label found its column; COCO's others are unknown


def test_names_match_by_their_letters_if_that_leaves_no_doubt() -> None:
    table = LabelTable.from_lists(["a.jpg"], [["Traffic_Light", "cat"]])
    table = replace(table, label_sets={"unseen": ("Traffic_Light",)})
    matched = match_labels(table, ["cat", "traffic light"])
    assert matched.present(0) == ["cat", "traffic light"]
    assert matched.label_sets["unseen"] == ("traffic light",)
    for data, model in ((["person", "Person"], ["person"]), (["persons", "cat"], ["person", "cat"])):
        with pytest.raises(LabelwiseError, match="1 label that the model does not know"):
            match_labels(LabelTable.from_lists(["a.jpg"], [data]), model)
    both = LabelTable.from_lists(["a.jpg"], [["Sofa"]], ["Couch", "Sofa"])
    assert match_labels(both, ["couch", "sofa"]).present(0) == ["sofa"]  # VOC's and COCO's names beside each other
    with pytest.raises(LabelwiseError, match="no label in common"):  # which of the two?
        match_labels(LabelTable.from_lists(["a.jpg"], [["PERSON"]]), ["person", "Person"])
