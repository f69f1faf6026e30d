"""Tables that people have, with what is read of each: `test_any_table.py` opens them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from unicodedata import normalize

Read = dict[str, str]  # image -> labels, with blanks between them


class Given(NamedTuple):
    """A table with some (empty) images near it."""

    text: str | Mapping[str, Any] | list[Any]  # JSON unless it is text
    images: str  # with blanks between them
    happens: Read | str  # what is read, or what the error says
    note: str = ""  # what is assumed and said; nothing may be assumed in silence
    options: Mapping[str, Any] = {}
    file: str = "t.csv"


COCO = {
    "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1}, {"id": 2, "image_id": 2, "category_id": 2}],
    "categories": [{"id": n, "name": name} for n, name in ((1, "cat"), (2, "dog"))],
}
TASKS = [
    {
        "id": n,
        "data": {"image": f"/data/local-files/?d=p/{n}.jpg"},
        "annotations": [{"result": results}] * bool(results),
    }
    for n, results in (
        (1, [{"from_name": "what", "value": {"choices": ["cat", "hot dog"]}}, {"value": {"text": ["blurred"]}}]),
        (2, [{"from_name": "what", "value": {"rectanglelabels": ["dog"], "x": 3}}]),
        (3, []),
    )
]
SAMPLES = {
    "samples": [
        {
            "filepath": f"data/{n}.jpg",
            "tags": ["validation"],
            "metadata": None,
            "ground_truth": {"_cls": kind, **labels},
        }
        for n, kind, labels in (
            (1, "Classifications", {"classifications": [{"label": "cat"}, {"label": "dog"}]}),
            (2, "Detections", {"detections": [{"label": "dog", "bounding_box": [0, 0, 1, 1]}]}),
        )
    ]
}
LABEL_STUDIO_CSV = """annotation_id,annotator,defects,id,image,lead_time
1,1,"{""choices"": [""person"", ""hot dog""]}",5,/data/upload/1/0123abcd-1.jpg,3.2
2,1,person,6,/data/upload/1/0123abce-2.jpg,3.2
"""
QUOTES = """image,caption,labels
1.jpg,"a "big" dog, asleep",dog
2.jpg,"5 inch,cat
3.jpg,"fine, really",dog
4.jpg,tall",cat
5.jpg,"two
lines",cat
"""
TWO = {"1.jpg": "cat", "2.jpg": "dog"}
CASES: dict[str, Given] = {
    # images
    "names without ending": Given(
        "ImageID,labels\nb1,cat\nb2,dog\n",
        "b1.jpg b2.png",
        {"b1.jpg": "cat", "b2.png": "dog"},
        r"'ImageID' \('b1' is .*b1\.jpg\)",
    ),
    "names of files in a folder below": Given(
        "Id,labels\n1.jpg,cat\n2.jpg,dog\n",
        "im/x/1.jpg im/2.jpg",
        {"im/x/1.jpg": "cat", "im/2.jpg": "dog"},
        "column 'Id'",
    ),
    "numbers without their zeros": Given(
        "image_id,labels\n1,cat\n22,dog\n",
        "im/0001.jpg im/0022.jpg",
        {"im/0001.jpg": "cat", "im/0022.jpg": "dog"},
        "image_id",
    ),
    "addresses": Given(
        "url,labels\nhttps://h/a/1.jpg?w=200,cat\nhttps://h/a/2.jpg,dog\n", "1.jpg 2.jpg", TWO, "column 'url'"
    ),
    "an address beside the file": Given(
        "image,photo,labels\nhttp://h/8,1.jpg,cat\nhttp://h/9,2.jpg,dog\n", "1.jpg 2.jpg", TWO, "'photo'"
    ),
    "paths of Windows": Given(
        "image,labels\nC:\\Users\\me\\p\\1.jpg,cat\nC:\\Users\\me\\q\\1.jpg,dog\n",
        "p/1.jpg q/1.jpg",
        {"p/1.jpg": "cat", "q/1.jpg": "dog"},
        r"'C:.*' is .*p/1\.jpg",
    ),
    "paths of Windows, and a root": Given(
        "image,labels\nC:\\me\\p\\1.jpg,cat\n", "p/1.jpg r/p/1.jpg", {"r/p/1.jpg": "cat"}, options={"root": "r"}
    ),
    "paths of another machine": Given(
        "image,labels\n/home/me/p/1.jpg,cat\n/home/me/p/2.jpg,dog\n",
        "p/1.jpg p/2.jpg",
        {"p/1.jpg": "cat", "p/2.jpg": "dog"},
        "is .*p/1",
    ),
    "accents in two parts": Given(
        f"image,labels\n{normalize('NFD', 'café')}.jpg,cat\n2.jpg,dog\n",
        f"{normalize('NFC', 'café')}.jpg 2.jpg",
        {"café.jpg": "cat", "2.jpg": "dog"},
        r"is .*café\.jpg",
    ),
    "raw files that were developed": Given(
        "image,labels\nDSC_1.NEF,cat\nDSC_2.NEF,dog\n",
        "DSC_1.jpg DSC_2.jpg",
        {"DSC_1.jpg": "cat", "DSC_2.jpg": "dog"},
        r"'DSC_1\.NEF' is .*DSC_1\.jpg",
    ),
    "other case": Given("image,labels\nIMG_1.JPG,cat\n", "img_1.jpg", {"img_1.jpg": "cat"}, "is .*img_1"),
    "two files of that name": Given(
        "image,labels\n1.jpg,cat\n",
        "p/1.jpg q/1.jpg",
        r"t\.csv row 2: '1\.jpg' may be any of 2 files .*p/1\.jpg.*root=",
    ),
    "two rows, one file": Given(
        "image,labels\np/1.jpg,cat\nq/1.jpg,dog\n", "r/1.jpg", r"row 3: 'q/1\.jpg' and another image are both found as "
    ),
    "files beside the table's folder": Given(
        "image,labels\nimg/1.jpg,cat\n",
        "data/img/1.jpg",
        r"does not exist\. Images of that name lie in .*data; .*root='.*data'",
        file="tables/t.csv",
    ),
    "no column with files": Given(
        "Id,labels\n7,cat\n", "1.jpg", r"has no image column: it has Id, labels, .*image_column=.*root="
    ),
    # labels
    "commas": Given(
        'image,labels\n1.jpg,"cat, dog"\n2.jpg,dog\n',
        "1.jpg 2.jpg",
        {"1.jpg": "cat dog", "2.jpg": "dog"},
        "separated by ','",
    ),
    "semicolons": Given(
        "image,labels\n1.jpg,cat;dog\n2.jpg,dog\n",
        "1.jpg 2.jpg",
        {"1.jpg": "cat dog", "2.jpg": "dog"},
        "separated by ';'",
    ),
    "pipes": Given("image,labels\n1.jpg,cat|dog\n2.jpg,dog\n", "1.jpg 2.jpg", {"1.jpg": "cat dog", "2.jpg": "dog"}),
    "blanks": Given(
        "image,labels\n1.jpg,cat dog\n2.jpg,dog cow\n3.jpg,cow cat\n4.jpg,cow\n",
        "1.jpg 2.jpg 3.jpg 4.jpg",
        {"1.jpg": "cat dog", "2.jpg": "cow dog", "3.jpg": "cat cow", "4.jpg": "cow"},
        "separated by white space",
    ),
    "a stray pipe among commas": Given(
        'image,labels\n1.jpg,"a, b"\n2.jpg,"b, c"\n3.jpg,"a, c"\n4.jpg,"c, a|b"\n5.jpg,"b, a"\n',
        "1.jpg 2.jpg 3.jpg 4.jpg 5.jpg",
        {"1.jpg": "a b", "2.jpg": "b c", "3.jpg": "a c", "4.jpg": "a|b c", "5.jpg": "a b"},
        "separated by ','",
    ),
    "a separator that is given": Given(
        "image,labels\n1.jpg,cat+dog\n", "1.jpg", {"1.jpg": "cat dog"}, options={"separator": "+"}
    ),
    "JSON lists": Given(
        'image,labels\n1.jpg,"[""cat"", ""dog""]"\n2.jpg,[]\n', "1.jpg 2.jpg", {"1.jpg": "cat dog", "2.jpg": ""}
    ),
    "Python lists": Given(
        "image;labels\n1.jpg;['cat', 'dog']\n2.jpg;('dog',)\n", "1.jpg 2.jpg", {"1.jpg": "cat dog", "2.jpg": "dog"}
    ),
    "Python sets": Given(
        "image;labels\n1.jpg;{'cat', 'dog'}\n2.jpg;set()\n", "1.jpg 2.jpg", {"1.jpg": "cat dog", "2.jpg": "set()"}
    ),
    "NumPy lists": Given(
        "image,labels\n1.jpg,['cat' 'dog']\n2.jpg,['dog']\n", "1.jpg 2.jpg", {"1.jpg": "cat dog", "2.jpg": "dog"}
    ),
    "lists that are no lists": Given(
        "image,labels\n1.jpg,{cat: [dog\n2.jpg,{cat: [1}\n",
        "1.jpg 2.jpg",
        r"row 3: cannot read the labels '\{cat: \[1\}'",
    ),
    "the only other column": Given(
        "image,Genre\n1.jpg,cat\n2.jpg,dog\n", "1.jpg 2.jpg", TWO, "labels from column 'Genre'"
    ),
    "several other columns": Given(
        "image,Genre,width\n1.jpg,cat,640\n",
        "1.jpg",
        r"not clear which one lists them: 'Genre' \(cat\); name it \(label_column='Genre'\)$",
    ),
    "a column with names that repeat": Given(
        "image,width,stichworte,title\n"
        + "".join(
            f'{n}.jpg,{640 + n},"{what}",my {n}. photo\n' for n, what in enumerate(("cat, dog", "dog", "cat", "dog"))
        ),
        "0.jpg 1.jpg 2.jpg 3.jpg",
        {"0.jpg": "cat dog", "1.jpg": "dog", "2.jpg": "cat", "3.jpg": "dog"},
        "labels from column 'stichworte', separated by ','",
    ),
    "two columns with names that repeat": Given(
        "image,width,camera,what\n" + "".join(f"{n}.jpg,640,D{n % 2},{'cat' if n < 3 else 'dog'}\n" for n in range(5)),
        "0.jpg 1.jpg 2.jpg 3.jpg 4.jpg",
        r"which one lists them: 'camera' \(D0\), 'what' \(cat\); name it",
    ),
    "decimal commas": Given(
        'image;lat;what\n1.jpg;"51,5";cat\n2.jpg;"51,5";cat\n3.jpg;"51,5";dog\n4.jpg;"50,5";dog\n',
        "1.jpg 2.jpg 3.jpg 4.jpg",
        {"1.jpg": "cat", "2.jpg": "cat", "3.jpg": "dog", "4.jpg": "dog"},
        "labels from column 'what'$",
    ),
    "ones and noughts beside names": Given(
        "image,sharp,what\n1.jpg,1,cat\n2.jpg,0,cat\n",
        "1.jpg 2.jpg",
        r"but not 'what' \(cat\); .*ignore_columns='what' or label_column='what'",
    ),
    "a checklist with numbers of rows": Given(
        "Nr;image;cat;dog;cow\n1;1.jpg;x;;\n2;2.jpg;;X;✓\n3;3.jpg;ja;TRUE;\n",
        "1.jpg 2.jpg 3.jpg",
        {"1.jpg": "cat", "2.jpg": "dog cow", "3.jpg": "cat dog"},
        "numbers of rows, no labels: 'Nr'; a blank is no, because no cell says no",
    ),
    "tags in several columns": Given(
        "image,tag 1,tag 2,tag 3\n1.jpg,cat,dog,\n2.jpg,dog,,\n3.jpg,cat,,\n4.jpg,dog,,\n",
        "1.jpg 2.jpg 3.jpg 4.jpg",
        {"1.jpg": "cat dog", "2.jpg": "dog", "3.jpg": "cat", "4.jpg": "dog"},
        "labels from columns 'tag 1', 'tag 2', 'tag 3'",
    ),
    "lists in numbered columns": Given(
        'image;keyword_1;Keyword_2\n1.jpg;dog, sun;hot dog\n2.jpg;sun;["cat", "dog"]\n3.jpg;dog;fire truck\n',
        "1.jpg 2.jpg 3.jpg",
        {"1.jpg": "dog+hot dog+sun", "2.jpg": "cat dog sun", "3.jpg": "dog+fire truck"},
        "labels from columns 'keyword_1', 'Keyword_2', separated by ','$",
    ),
    "lists in numbered columns, with a separator": Given(
        "image,tag1,tag2\n1.jpg,dog sun,\n2.jpg,sun,cat dog\n",
        "1.jpg 2.jpg",
        {"1.jpg": "dog sun", "2.jpg": "cat dog sun"},
        "labels from columns 'tag1', 'tag2'$",
        options={"separator": "space"},
    ),
    "what two people saw": Given(
        "image,rater1,rater2\n1.jpg,cat,cat\n2.jpg,dog,cat\n3.jpg,dog,dog\n4.jpg,cat,cat\n",
        "1.jpg 2.jpg 3.jpg 4.jpg",
        r"which one lists them: 'rater1' \(cat\), 'rater2' \(cat\); name it, or join them .*label_column='rater1'",
    ),
    "answers to questions": Given(
        "image,question1,question2\n1.jpg,maybe,often\n2.jpg,often,maybe\n3.jpg,maybe,maybe\n4.jpg,often,often\n",
        "1.jpg 2.jpg 3.jpg 4.jpg",
        r"which one lists them: 'question1' \(maybe\), 'question2' \(often\); name it",
    ),
    "numbered columns that need not be labels": Given(
        "image,lens 1,lens 2,owner\n1.jpg,wide,tele,me\n2.jpg,tele,,you\n3.jpg,wide,,me\n4.jpg,wide,,me\n",
        "1.jpg 2.jpg 3.jpg 4.jpg",
        r"which one lists them: 'lens 1' \(wide\), 'lens 2' \(tele\), 'owner' \(me\)",
    ),
    "numbered columns of labels": Given(
        "image,tag 1,tag 2\n1.jpg,1,0\n2.jpg,1,1\n",
        "1.jpg 2.jpg",
        {"1.jpg": "tag 1", "2.jpg": "tag 1+tag 2"},
    ),
    "scores": Given(
        "image,cat,dog\n1.jpg,0.9,0.1\n", "1.jpg", r"row 2: column 'cat' holds '0.9', but a column per label holds 1"
    ),
    "empty columns of a spreadsheet": Given("image;labels;;\n1.jpg;cat;;\n2.jpg;dog;;\n", "1.jpg 2.jpg", TWO),
    "labels by image": Given({"1.jpg": ["cat"], "2.jpg": "dog"}, "1.jpg 2.jpg", TWO, file="t.json"),
    "labels and splits by image": Given(
        {"1.jpg": {"labels": ["cat"], "split": "test"}, "2.jpg": {"labels": ["dog"], "split": "train"}},
        "1.jpg 2.jpg",
        TWO,
        file="t.json",
    ),
    "codes, not counts": Given("image,cat,dog\n1.jpg,1,2\n2.jpg,2,1\n", "1.jpg 2.jpg", "2"),
    "a caption and a license": Given(
        "image,caption,license\n" + "".join(f"{n}.jpg,my {n}. photo,{'CC0' if n % 2 else 'CC-BY'}\n" for n in range(6)),
        "0.jpg 1.jpg 2.jpg 3.jpg 4.jpg 5.jpg",
        r"not clear which one lists them: 'caption' \(my 0\. photo\), 'license' \(CC-BY\)",
    ),
    "counts": Given(
        "image,cat,dog\n1.jpg,3,0\n2.jpg,0,2\n3.jpg,0,0\n4.jpg,1,1\n",
        "1.jpg 2.jpg 3.jpg 4.jpg",
        {"1.jpg": "cat", "2.jpg": "dog", "3.jpg": "", "4.jpg": "cat dog"},
        "a number above 1 is a count",
    ),
    "ones and noughts beside numbers that repeat": Given(
        "image,cat,width\n1.jpg,1,640\n2.jpg,0,640\n3.jpg,0,800\n",
        "1.jpg 2.jpg 3.jpg",
        r"but not 'width' \(640\); leave such columns out \(ignore_columns='width'\)$",
    ),
    "ones and blanks that are unknown": Given(
        "image;cat;dog\n1.jpg;1;\n2.jpg;;1\n",
        "1.jpg 2.jpg",
        TWO,
        options={"blank": "unknown"},
    ),
    "a checklist with a no": Given(
        "image;cat;dog\n1.jpg;x;\n2.jpg;no;x\n",
        "1.jpg 2.jpg",
        r"say what a blank is with blank=absent or blank=unknown",
    ),
    "the same, with a word": Given(
        "image;cat;dog\n1.jpg;x;\n2.jpg;no;x\n", "1.jpg 2.jpg", TWO, options={"blank": "absent"}
    ),
    "a label and a mistake": Given(
        "image,cat\n1.jpg,1\n2.jpg,0\n3.jpg,2\n", "1.jpg 2.jpg 3.jpg", r"row 4: column 'cat' holds '2'"
    ),
    "variants of a name": Given(
        "image,labels\n1.jpg,Traffic_light\n2.jpg,traffic light\n3.jpg,traffic light\n",
        "1.jpg 2.jpg 3.jpg",
        {"1.jpg": "Traffic_light", "2.jpg": "traffic light", "3.jpg": "traffic light"},
        "almost the same name: 'traffic light' and 'Traffic_light'; join them with merge_variants=yes",
    ),
    "variants, joined": Given(
        "image,labels\n1.jpg,Cat|cat\n2.jpg,cat\n3.jpg,CAT|dog\n",
        "1.jpg 2.jpg 3.jpg",
        {"1.jpg": "cat", "2.jpg": "cat", "3.jpg": "cat dog"},
        options={"merge_variants": "yes"},
    ),
    "variants, joined and sorted": Given(
        "image,labels\n1.jpg,Cat|Dog\n2.jpg,cat\n3.jpg,cat\n",
        "1.jpg 2.jpg 3.jpg",
        {"1.jpg": "Dog cat", "2.jpg": "cat", "3.jpg": "cat"},
        options={"merge_variants": "yes"},
    ),
    # rows
    "wrong quotes in a column that nobody needs": Given(
        QUOTES,
        "1.jpg 2.jpg 3.jpg 4.jpg 5.jpg",
        {"1.jpg": "dog", "2.jpg": "cat", "3.jpg": "dog", "4.jpg": "cat", "5.jpg": "cat"},
        r"read past 2 cells with wrong quotes \(row 2, 'caption', row 3, 'caption'\)",
    ),
    "a quote that swallows a row": Given(
        'image,caption,labels\n1.jpg,"5 inch,cat\n2.jpg,tall",dog\n', "1.jpg 2.jpg", TWO, "read past 1 cell"
    ),
    "wrong quotes in the labels": Given(
        'image,labels\n1.jpg,"a "big" dog"\n2.jpg,dog\n',
        "1.jpg 2.jpg",
        r"row 2: the quotes in column 'labels' are wrong.*bad_rows=skip",
    ),
    "the same, left out": Given(
        'image,labels\n1.jpg,"a "big" dog"\n2.jpg,dog\n',
        "1.jpg 2.jpg",
        {"2.jpg": "dog"},
        "1 row is left out, the first: row 2",
        {"bad_rows": "skip"},
    ),
    "too many fields, left out": Given(
        "image,labels\n1.jpg,cat,dog\n2.jpg,dog\n",
        "1.jpg 2.jpg",
        {"2.jpg": "dog"},
        "1 row is left out",
        {"bad_rows": "skip"},
    ),
    "a column that is called like a split": Given(
        "image,set,labels\n" + "".join(f"{n}.jpg,{n},cat\n" for n in range(1001)),
        "1.jpg",
        r"column 'set' names 1001 splits.*split_column=",
    ),
    # tools
    "Label Studio, CSV": Given(
        LABEL_STUDIO_CSV,
        "1.jpg 2.jpg",
        {"1.jpg": "hot dog+person", "2.jpg": "person"},
        "column 'image' .*; labels from column 'defects'",
    ),
    "Label Studio, JSON": Given(
        TASKS,
        "p/1.jpg p/2.jpg p/3.jpg",
        {"p/1.jpg": "cat+hot dog", "p/2.jpg": "dog"},
        "1 task without an annotation is left out",
        file="t.json",
    ),
    "Label Studio, JSON-MIN": Given(
        [{"image": "/data/upload/1/0123abcd-1.jpg", "id": 1, "what": {"choices": ["cat", "dog"]}, "annotator": 1}],
        "1.jpg",
        {"1.jpg": "cat dog"},
        "labels from column 'what'",
        file="t.json",
    ),
    "fiftyone, samples": Given(
        SAMPLES,
        "data/1.jpg data/2.jpg",
        {"data/1.jpg": "cat dog", "data/2.jpg": "dog"},
        "'ground_truth'",
        file="samples.json",
    ),
    "fiftyone, labels": Given(
        {"classes": ["cat", "dog"], "labels": {"1": 0, "2": [0, 1]}},
        "data/1.jpg data/2.png",
        {"data/1.jpg": "cat", "data/2.png": "cat dog"},
        "is .*data/1",
        file="labels.json",
    ),
    "fiftyone, a class that is not listed": Given(
        {"classes": ["cat"], "labels": {"1": 3}}, "data/1.jpg", "there is no class 3; 1 are listed", file="labels.json"
    ),
    "fiftyone, COCO": Given(
        COCO, "data/1.jpg data/2.jpg", {"data/1.jpg": "cat", "data/2.jpg": "dog"}, file="labels.json"
    ),
    "an object of something else": Given({"samples": 3}, "", "expected a list of objects", file="t.json"),
}
