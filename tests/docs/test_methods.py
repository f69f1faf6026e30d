"""The page about the methods that both papers compare with: an answer for each row, and what is there is there."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from pages import ROOT

from labelwise import heads, losses

PAGE = ROOT / "docs" / "research" / "methods.md"

# Every row of the tables as the papers print it, without backbones and citations.
TABLES = {
    "HSQ 1": "Q2L-R10T HSQ-R10T HSQ-Linear",
    "HSQ 2": "SRN ResNet-101 CADM ML-GCN KSSNet MS-CMA MCAR SSGRL C-Trans ADD-GCN Q2L-R101 SST ResNet101+TF PSD+TF "
    "SCO-DCNN HSQ-R101 ASL TResNetL Q2L-TResL MITr-l Swin-L CvT-w24 Q2L-SwinL Q2L-CvT ML-Decoder HSQ-CvN",
    "HSQ 3": "CNN-RNN VGG+SVM Fev+Lv HCP RDAL RARL SSGRL(576) MCAR ASL(TRResNetL) ADD-GCN(576) Q2L-TRResL HSQ-CvN(22k)",
    "MLD 1": "GAP Transformer-Decoder ML-Decoder",
    "MLD 2": "GAP Transformer_Decoder ML-Decoder",
    "MLD 3": "None Additive_noise Random-query Both",
    "MLD 4": "ML-Decoder",
    "MLD 5": "ML-GCN KSSNET SSGRL MS-CMA ASL Q2L ML-Decoder",
    "MLD 6": "CONSE Fast0Tag Attention_per_Label Attention_per_Cluster LESA BiAM SDL ML-Decoder",
    "MLD 7": "Learnable Fixed_NLP-based Fixed_Random",
    "MLD 8": "NLP Learnable",
    "MLD 9": "GAP Transformer-Decode ML-Decoder",
    "MLD 10": "ML-Decoder",
    "MLD 11": "RNN FeV+LV ML-GCN SSGRL BMML ASL Q2L ML-Decoder",
    "MLD 12": "CE Focal_Loss ASL ML-Decoder",
    "MLD 13": "Sigmoid Softmax GAP ML-Decoder",
}


class Row(NamedTuple):
    names: list[str]
    tables: list[str]
    third: str
    fourth: str


def rows() -> list[Row]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text("utf-8").splitlines()]
    found = [line for line in cells if len(line) == 4 and line[0] != "rows" and set(line[0]) != {"-"}]
    return [Row(names.split(", "), tables.split(", "), third, fourth) for names, tables, third, fourth in found]


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_a_table_has_an_answer(table: str) -> None:
    answered = {name for row in rows() if table in row.tables for name in row.names}
    wanted = {name.replace("_", " ") for name in TABLES[table].split()}
    assert sorted(wanted - answered) == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.names[0])
def test_a_row_is_of_the_tables_and_what_it_names_exists(row: Row) -> None:
    if row.tables != ["-"]:
        printed = {name.replace("_", " ") for table in row.tables for name in TABLES[table].split()}
        assert sorted(set(row.names) - printed) == []
    assert row.third
    assert row.fourth
    found = re.fullmatch(r"(head|loss) `([\w-]+)` in `([\w/]+\.py)`", row.third)
    if found is None:
        assert "`" not in row.third  # what it is; nothing here goes by that name
        return
    kind, name, file = found.groups()
    assert name in (heads.list_heads() if kind == "head" else losses.list_losses())
    assert (ROOT / "src" / "labelwise" / file).is_file()


def test_the_recipes_that_the_page_names_exist() -> None:
    paths = re.findall(r"`(recipes/[^`]+)`", PAGE.read_text("utf-8"))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
