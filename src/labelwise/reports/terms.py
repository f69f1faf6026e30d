"""The field's words, each with a tooltip: people who never read a paper read reports, too."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

# Keys in lower case are found in any case; plurals are found, too.
GLOSSARY = {
    "mAP": "Mean average precision: the average precision of each label, averaged over the labels.",
    "AP": "Average precision: images are sorted by the label's score; 100 if all that have the label come first.",
    "average precision": "Images are sorted by the label's score; 100 if all that have the label come first.",
    "F1": "One number for precision and recall (their harmonic mean): high only if both are high.",
    "CF1": "F1 of the precision and the recall averaged over the labels: rare labels count as much as frequent ones.",
    "OF1": "F1 over all labels of all images together: frequent labels count more.",
    "CP": "Precision, averaged over the labels.",
    "CR": "Recall, averaged over the labels.",
    "OP": "Precision over all labels of all images together.",
    "OR": "Recall over all labels of all images together.",
    "ECE": "Expected calibration error: how far scores are from the share of cases in which they are right.",
    "expected calibration error": "How far scores are from the share of cases in which they are right: of the labels "
    "with a score of 0.8, 80% should be right.",
    "precision": "Of the images that were given a label, the share that really has it.",
    "recall": "Of the images that have a label, the share in which it was found.",
    "threshold": "A label is given to an image if its score reaches the label's threshold.",
    "operating point": "Precision and recall at the threshold that is in use.",
    "interval": "How far the number could be off because only some images were measured.",
    "bootstrap": "Images are drawn again and again at random, to see how much the numbers depend on which they are.",
    "significant": "Larger than what the choice of test images alone would explain.",
    "Benjamini-Hochberg": "Keeps the share of chance findings low when many labels are compared at once.",
    "false positive": "A label that the model gave to an image that does not have it.",
    "reliability diagram": "Shows whether scores are probabilities: points on the diagonal mean that they are.",
    "temperature": "A number that the model's raw outputs are divided by before they become scores, to calibrate them.",
    "offset": "A number that is subtracted from the model's raw outputs before they become scores, to calibrate them.",
    "co-occurrence": "How often two labels are in the same image.",
    "confident learning": "Finds labels that a model, trained on other images, surely contradicts (Northcutt et al.).",
    "negative transfer": "When learning a label together with others makes it worse.",
    "attention": "How much each part of the image counted when the model looked for a label.",
    "expert": "A small network inside the model's head; labels share some of them and have some of their own.",
    "gate weight": "How much an expert counts for a label.",
    "multiply-add": "One multiplication and one addition: the usual measure of how much a model computes.",
    "FLOPs": "Floating point operations; two for each multiply-add.",
    "parameter": "A number that was learned.",
    "backbone": "The part of the model that turns pixels into features, mostly trained on other images before.",
    "epoch": "One pass over all training images.",
    "loss": "What training makes small: how wrong the scores are on training images.",
    "learning rate": "How large the steps of the training are.",
    "seed": "The number that starts all random choices of a training; another one gives a slightly different model.",
}
_PLAIN = {"svg", "pre", "script", "select", "abbr"}  # no tooltips inside
_TAG = re.compile(r"(<[^>]*>)")  # in attributes, > is escaped
_WORDS = "|".join(
    re.escape(term) if term != term.lower() else f"(?i:{re.escape(term)})"
    for term in sorted(GLOSSARY, key=len, reverse=True)
)
_TERM = re.compile(rf"(?<![\w-])({_WORDS})s?(?![\w-])")


def explained(html: str) -> Markup:
    """HTML with a tooltip for each term where it comes first. It takes the keyboard's focus, so that it opens without a
    mouse.

    >>> explained("<p>mAP of <svg>F1</svg> &lt;CF1&gt;</p>").count("abbr"), "F1</svg>" in explained("<svg>F1</svg>")
    (4, True)
    """
    told: set[str] = set()
    inside = 0  # elements without tooltips that are open

    def mark(found: re.Match[str]) -> str:
        term = found[1] if found[1] in GLOSSARY else found[1].lower()
        if term in told:
            return found[0]
        told.add(term)
        return f'<abbr tabindex="0" title="{escape(GLOSSARY[term])}">{found[0]}</abbr>'

    pieces = _TAG.split(html)
    for place, piece in enumerate(pieces):
        if not piece.startswith("<"):
            pieces[place] = piece if inside else _TERM.sub(mark, piece)
        elif (tag := re.match(r"</?(\w+)", piece)) and tag[1] in _PLAIN:
            inside += -1 if piece.startswith("</") else 1
    return Markup("".join(pieces))
