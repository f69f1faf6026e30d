"""Predictions against a forward pass by hand, thresholds, inputs of all kinds, broken pictures, attention."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.core.errors import LabelwiseError
from labelwise.data.decode import find_images
from labelwise.data.images import Encoded
from labelwise.data.sample import make_sample
from labelwise.engines.load import load, require_network
from labelwise.model.model import LabelModel, create_model, load_model
from labelwise.runtime.tagger import Tagger

LABELS = ("boat", "car", "cat", "dog", "sun")


def small_model(head: str = "hsq", **options: object) -> LabelModel:
    torch.manual_seed(0)
    sizes = {} if head in ("gap", "csra") else {"dim": 32}
    return create_model("test_resnet", head, LABELS, weights="none", size=64, **sizes, **options)


def with_config(model: LabelModel, **changes: object) -> LabelModel:
    model.config = model.config.model_copy(update=changes)
    return model


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Five JPEGs of 90 pixels: too small for the decoder's own down-scaling, so that by hand means by hand."""
    return list(make_sample(tmp_path_factory.mktemp("sample"), images=5, size=90).images)


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return Tagger(small_model())


def by_hand(model: LabelModel, path: str) -> np.ndarray:
    """Scores [N] with Pillow and numpy alone up to the tensor."""
    expects = model.config.preprocessing
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[expects.interpolation]
    pixels = np.asarray(Image.open(path).convert("RGB").resize((expects.size, expects.size), method)) / 255.0
    values = ((pixels - expects.mean) / expects.std).transpose(2, 0, 1)[None].astype(np.float32)  # [1, 3, H, W]
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(values))[0].numpy()
    return 1 / (1 + np.exp(-logits / model.config.temperature))


def test_scores_equal_a_forward_by_hand(pictures: list[str]) -> None:
    model = with_config(small_model(), temperature=1.7)
    predictions = Tagger(model).predict(pictures, batch_size=2)
    assert [p.image for p in predictions] == pictures
    for prediction in predictions:
        expected = dict(zip(LABELS, by_hand(model, str(prediction.image)).tolist(), strict=True))
        assert prediction.all_scores == pytest.approx(expected, abs=1e-5)
        assert list(prediction.all_scores.values()) == sorted(prediction.all_scores.values(), reverse=True)


@pytest.mark.parametrize("batch_size", [1, 3, 5])
def test_the_batch_size_changes_nothing(tagger: Tagger, pictures: list[str], batch_size: int) -> None:
    expected = [p.all_scores for p in tagger.predict(pictures)]
    found = [p.all_scores for p in tagger.predict(pictures, batch_size=batch_size, progress=True)]
    assert len(found) == 5
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_score_equal_to_its_threshold_passes_and_one_below_does_not(tagger: Tagger, pictures: list[str]) -> None:
    scores = tagger.predict(pictures[0])[0].all_scores
    limits = dict(scores)
    limits["car"] = float(np.nextafter(np.float32(limits["car"]), np.float32(1)))
    limits["sun"] = 1.0
    model = with_config(tagger.model, thresholds=tuple(limits[label] for label in LABELS))
    try:
        prediction = Tagger(model).predict(pictures[0])[0]
        assert prediction.labels == [label for label in scores if label not in ("car", "sun")]
        assert prediction.scores == [scores[label] for label in prediction.labels]
        assert prediction.scores == sorted(prediction.scores, reverse=True)
        assert prediction.thresholds == pytest.approx(limits)
        assert Tagger(model, threshold=0.0).predict(pictures[0])[0].labels == list(scores)
    finally:
        with_config(tagger.model, thresholds=None)
    with pytest.raises(LabelwiseError, match="between 0 and 1"):
        Tagger(model, threshold=30)


def test_a_single_label_model_names_its_best_label_whatever_its_score(pictures: list[str]) -> None:
    prediction = Tagger(small_model(task="single-label")).predict(pictures[0])[0]
    assert sum(prediction.all_scores.values()) == pytest.approx(1, abs=1e-5)
    assert prediction.scores[0] < 0.5
    assert prediction.labels == list(prediction.all_scores)[:1]
    with pytest.raises(LabelwiseError, match="leave the threshold out"):
        Tagger(small_model(task="single-label"), threshold=0.1)


def test_a_folder_in_a_fixed_order_without_what_is_no_picture(pictures: list[str], tmp_path: Path) -> None:
    for name in ("b.jpg", "a.PNG", "notes.txt", ".hidden.jpg", "sub/1.jpg", "sub/deep/0.jpeg", ".cache/no.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(Path(pictures[0]).read_bytes())
    (tmp_path / "sub" / "round").symlink_to(tmp_path)  # must not lead round and round
    found = [Path(str(image)).relative_to(tmp_path).as_posix() for image in find_images(tmp_path)]
    assert found == ["a.PNG", "b.jpg", "sub/1.jpg", "sub/deep/0.jpeg"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabelwiseError, match="holds no images"):
        list(find_images(tmp_path / "empty"))


def test_paths_pictures_and_folders_in_one_list(tagger: Tagger, pictures: list[str]) -> None:
    picture = Image.open(pictures[1])
    mixed = tagger.predict([pictures[0], picture, Path(pictures[2]), Path(pictures[0]).parent])
    assert [p.image for p in mixed] == [pictures[0], picture, pictures[2], *pictures]
    again = {p.image: p.all_scores for p in tagger.predict(pictures)}
    assert mixed[1].all_scores == pytest.approx(again[pictures[1]], abs=1e-5)
    assert tagger.predict(picture)[0].all_scores == pytest.approx(again[pictures[1]], abs=1e-5)
    assert tagger.predict([]) == []


def test_a_stream_takes_from_an_endless_source_only_what_it_needs(tagger: Tagger) -> None:
    taken = itertools.count()
    endless = (Image.new("RGB", (70, 70), (next(taken) % 255, 0, 0)) for _ in itertools.repeat(None))
    first = list(itertools.islice(tagger.stream(endless, batch_size=2), 3))
    assert len(first) == 3
    assert next(taken) <= 8


def test_a_picture_given_as_pil_is_turned_upright_as_a_file_is(tagger: Tagger, pictures: list[str], tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(pictures[0]).save(tmp_path / "turned.png", exif=exif)
    from_file, from_picture = tagger.predict([tmp_path / "turned.png", Image.open(tmp_path / "turned.png")])
    assert from_picture.all_scores == pytest.approx(from_file.all_scores, abs=1e-6)
    assert from_file.all_scores != pytest.approx(tagger.predict(pictures[0])[0].all_scores, abs=1e-4)
    assert from_picture.open_image().tobytes() == from_file.open_image().tobytes()


def test_bytes_with_a_name(tagger: Tagger, pictures: list[str]) -> None:
    data = Path(pictures[0]).read_bytes()
    given, empty, direct = tagger.predict(
        [Encoded("upload.bin", data), Encoded("b", b""), pictures[0]], on_bad_image="skip"
    )
    assert given.image == "upload.bin"
    assert given.all_scores == pytest.approx(direct.all_scores, abs=1e-5)
    assert given.open_image().tobytes() == direct.open_image().tobytes()
    assert given.attention("dog") == pytest.approx(direct.attention("dog"))
    assert empty.error == "image 'b' cannot be decoded (empty file)"
    assert tagger.predict(Encoded("alone", data))[0].image == "alone"


def test_other_choices_of_one_prediction(tagger: Tagger, pictures: list[str]) -> None:
    prediction = tagger.predict(pictures[0])[0]
    scores = prediction.all_scores
    assert prediction.choose() == dict(zip(prediction.labels, prediction.scores, strict=True))
    assert list(prediction.choose(top=2).items()) == list(scores.items())[:2]
    third = list(scores.values())[2]
    assert list(prediction.choose(threshold=third)) == list(scores)[:3]  # a score equal to it passes
    assert list(prediction.choose(top=2, threshold=third)) == list(scores)[:2]
    assert list(prediction.choose(top=9, threshold=third)) == list(scores)[:3]
    assert prediction.choose(threshold=0.8) == Tagger(tagger.model, threshold=0.8).predict(pictures[0])[0].choose()
    with pytest.raises(LabelwiseError, match="between 0 and 1"):
        prediction.choose(threshold=80)
    with pytest.raises(LabelwiseError, match="leave the threshold out"):
        Tagger(small_model(task="single-label")).predict(pictures[0])[0].choose(threshold=0.1)


def test_a_prediction_as_json_and_as_text(tagger: Tagger, pictures: list[str]) -> None:
    sources = [pictures[0], Image.open(pictures[0]), "none.jpg"]
    named, unnamed, missing = tagger.predict(sources, on_bad_image="skip")
    assert json.loads(json.dumps(named.to_dict())) == {"image": pictures[0], "labels": named.choose()}
    everything = named.to_dict(top=1, all_scores=True)
    assert everything == {"image": pictures[0], "labels": named.choose(top=1), "all_scores": named.all_scores}
    assert unnamed.to_dict(threshold=1.0) == {"image": None, "labels": {}}
    assert missing.to_dict(all_scores=True) == {"image": "none.jpg", "error": missing.error}
    best = f"{named.labels[0]} {named.scores[0]:.2f}" if named.labels else "no label"
    assert repr(named).startswith(f"<Prediction {pictures[0]}: {best}")
    assert "no such file" in repr(missing)


def test_broken_pictures(tagger: Tagger, pictures: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "cut.jpg"
    broken.write_bytes(Path(pictures[0]).read_bytes()[:700])
    sources = [pictures[0], broken, tmp_path / "none.jpg", Image.open(broken), pictures[1]]
    with pytest.raises(LabelwiseError, match=r"cut\.jpg.*cannot be decoded.*fix it"):
        tagger.predict(sources, on_bad_image="error")
    with pytest.warns(UserWarning, match=r"3 of 5 images skipped, see `error`; the first: .*cut\.jpg"):
        found = tagger.predict([*sources[1:], sources[0]])
    assert [prediction.error is None for prediction in found] == [False, False, False, True, True]
    for nothing, message in ((broken, "^image .*cut"), (sources[1:4], "^none of the 3 images can .*: image .*cut")):
        with pytest.raises(LabelwiseError, match=message):
            tagger.predict(nothing)
        with warnings.catch_warnings(action="error"):
            assert all(prediction.error for prediction in tagger.predict(nothing, on_bad_image="skip"))
    good, cut, missing, lazy, last = tagger.predict(sources, on_bad_image="skip", batch_size=2)
    assert "truncated" in str(cut.error)
    assert "no such file" in str(missing.error)
    assert "cut.jpg" in str(lazy.error)
    assert (cut.labels, cut.scores, cut.all_scores) == ([], [], {})
    assert good.error is None
    assert last.all_scores == pytest.approx(tagger.predict(pictures[1])[0].all_scores, abs=1e-5)
    with pytest.raises(LabelwiseError, match="cannot be decoded"):
        cut.attention("dog")


@pytest.mark.parametrize("head", ["hsq", "csra", "ml-decoder"])
def test_attention_is_the_map_of_the_labels_own_query(head: str, pictures: list[str]) -> None:
    options = {"groups": 2} if head == "ml-decoder" else {}
    tagger = Tagger(small_model(head, **options))
    prediction = tagger.predict(pictures[:2])[1]
    with torch.no_grad():
        details = tagger.model.details(torch.from_numpy(tagger.input(pictures[1]))[None])
    for number, label in enumerate(LABELS):
        found = prediction.attention(label)
        assert found.shape == (2, 2)
        assert found.dtype == np.float32
        assert found.sum() == pytest.approx(1, abs=1e-5)
        assert found == pytest.approx(details.label_attention[0, number].numpy(), abs=1e-5)
    with pytest.raises(LabelwiseError, match="did you mean 'dog'"):
        prediction.attention("dogg")


def test_a_head_without_attention_names_another_method(pictures: list[str]) -> None:
    with pytest.raises(LabelwiseError, match=r"no attention to show.*method='grad-cam'"):
        Tagger(small_model("gap")).predict(pictures[0])[0].attention("dog")


def test_load_takes_a_run_folder(tagger: Tagger, pictures: list[str], tmp_path: Path) -> None:
    tagger.model.save(tmp_path / "run" / "model")
    loaded = load(tmp_path / "run", threshold=0.25)
    assert set(loaded.thresholds.values()) == {0.25}
    expected = tagger.predict(pictures[0])[0].all_scores
    assert loaded.predict(pictures[0])[0].all_scores == pytest.approx(expected, abs=1e-6)


def test_damaged_weights_are_noticed(pictures: list[str]) -> None:
    model = small_model("gap")
    model.head.classifier.bias.data[1] = float("nan")  # type: ignore[union-attr]
    with pytest.raises(LabelwiseError, match="NaN"):
        Tagger(model).predict(pictures[0])


@pytest.mark.parametrize("wrong", [lambda t, p: t.predict(p, batch_size=0), lambda t, p: t.predict("nowhere/x.jpg")])
def test_mistakes_are_labelwise_errors(tagger: Tagger, pictures: list[str], wrong: Callable[..., object]) -> None:
    with pytest.raises(LabelwiseError):
        wrong(tagger, pictures)


def test_arrays_tensors_and_bytes_are_predicted_as_the_file_is(tagger: Tagger, pictures: list[str]) -> None:
    pixels = np.asarray(Image.open(pictures[0]).convert("RGB"))
    forms = [pictures[0], Path(pictures[0]).read_bytes(), pixels, torch.from_numpy(pixels.copy()).permute(2, 0, 1)]
    first, *others = tagger.predict(forms)
    for other in others:
        assert other.all_scores == pytest.approx(first.all_scores, abs=1e-6)
    assert len(tagger.predict(np.stack([pixels, pixels]))) == 2


def test_predictions_are_a_list_that_prints_well(tagger: Tagger, pictures: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "<b>.png"
    Image.open(pictures[0]).save(gone)
    found = Tagger(tagger.model, threshold=0.0).predict(
        [pictures[0], Image.open(pictures[1]), "none.jpg", gone], on_bad_image="skip"
    )
    gone.unlink()
    assert isinstance(found, list)
    assert isinstance(found[1:], type(found))
    assert repr(found).startswith(f"<Predictions: 4 images>\n  {pictures[0]}: {found[0].labels[0]} ")
    assert "image of 90 x 90: " in repr(found)
    assert "none.jpg: image 'none.jpg' cannot be decoded" in repr(found)
    html = found._repr_html_()
    assert html.count("data:image/jpeg;base64,") == 2  # one is broken, one was deleted since
    assert "&lt;b&gt;.png" in html
    assert "<b>.png" not in html
    assert found[0]._repr_html_().count("<tr>") == 2
    assert repr(type(found)(found * 10)).endswith("… 20 more")
    frame = found.to_pandas()
    assert list(frame.columns) == ["labels", "scores", "error"]
    assert frame.loc[pictures[0], "labels"] == found[0].labels
    assert frame["error"].isna().tolist() == [True, True, False, True]
    wide = found.to_pandas(all_scores=True)
    assert wide.loc[pictures[0], "dog"] == found[0].all_scores["dog"]


def test_to_pandas_names_the_package_that_is_missing(
    tagger: Tagger, pictures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(LabelwiseError, match="pip install pandas"):
        tagger.predict(pictures[0]).to_pandas()


def test_load_refuses_options_that_it_does_not_know(tagger: Tagger, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="treshold"):
        load(tmp_path, treshold=0.5)  # type: ignore[call-arg]


def test_options_for_the_hub_arrive_there(tagger: Tagger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger.model.save(tmp_path / "model")
    given: dict[str, object] = {}

    def snapshot_download(name: str, **options: object) -> str:
        given.update(options, name=name)
        return str(tmp_path / "model")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load("ann/pets", revision="v1", token=False).labels == LABELS
    assert (given["name"], given["revision"], given["token"]) == ("ann/pets", "v1", False)
    with pytest.raises(TypeError, match="revison"):
        load_model(tmp_path / "model", revison="v1")  # a folder needs no hub, but a typo is one all the same


def test_a_copy_of_a_model_predicts_and_names_what_the_rest_needs(tagger: Tagger, pictures: list[str]) -> None:
    fast = Tagger(tagger.model.optimize())
    assert fast.predict(pictures[0])[0].all_scores == pytest.approx(tagger.predict(pictures[0])[0].all_scores, abs=1e-4)
    assert fast.predict(pictures[0])[0].attention("dog").shape == (2, 2)
    with pytest.raises(LabelwiseError, match="OptimizedModel only predicts; load the model that it was made from"):
        require_network(fast.model)
