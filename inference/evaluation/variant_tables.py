"""Variant tables in ProteinGym's format, and metrics of scores against measurements.

    mutant,mutated_sequence,DMS_score,DMS_score_bin
    A24G,MKT…,0.71,1

Source: ProteinGym, 2023 (bioRxiv 2023.12.07.570727).
"""

import csv
import functools
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...data import reading
from ...data.task_metrics import auroc, pearson_and_spearman
from ..answering.sequence_variants import SequenceVariant

MUTANT = "mutant"
SEQUENCE = "mutated_sequence"
MEASURED = "DMS_score"
LABEL = "DMS_score_bin"
SCORE = "score"
STEP = "step"
EXTRA = ""  # key of values beyond the table's columns
HEADER = re.compile(r"^>.*$", re.MULTILINE)  # line before a sequence in FASTA
SHOWN = 60  # maximum number of characters of a value in a message

Row = Mapping[str, str]


class VariantTable(NamedTuple):
    """The rows of a table as text, and their parsed values."""

    rows: list[Row]
    variants: list[SequenceVariant]
    measured: list[float] | None  # DMS_score of each row, if the table has it
    labels: list[int] | None  # DMS_score_bin of each row, 0 or 1, if the table has it


def read_wild_type(given: str) -> str:
    """Returns a sequence, given directly or as a FASTA file of one record.

    Raises ValueError for a missing file, and for a file of no or several records.
    """
    if not os.path.isfile(given):  # a long sequence is not a valid path
        if given.isalpha():
            return given
        raise ValueError(
            f"The file {given} does not exist: give a FASTA file, or the sequence itself."
        )
    texts = [
        record.text for record in reading.valid_documents(reading.raw_documents(given, "text"))
    ]
    parts = [part for text in texts for part in HEADER.split(text)]
    sequences = [letters for part in parts if (letters := "".join(part.split()))]
    if len(sequences) != 1:
        raise ValueError(f"{given} has {len(sequences)} sequences, expected one: the wild type.")
    return sequences[0]


def read_variants(
    file: str, wild_type: str, problem_of: Callable[[str], str | None] = lambda sequence: None
) -> VariantTable:
    """Returns the variants of a CSV table.

    A row has `mutant`, substitutions such as "A24G:K30R", or `mutated_sequence`, or both.

    Args:
      problem_of: function that returns why a sequence cannot be read, or None.

    Raises ValueError for a table without rows or without these columns, and for a bad value, with
    its line and column.
    """
    if not Path(file).is_file():
        raise ValueError(f"The file {file} does not exist: give the path of a CSV file.")
    text = io.StringIO(reading.plain_text(file))
    reader = csv.DictReader(text, restkey=EXTRA, skipinitialspace=True)
    columns = [*(reader.fieldnames or [])]
    if not {MUTANT, SEQUENCE} & {*columns}:
        raise ValueError(
            f"{file} has the columns {', '.join(columns) or 'none'}, expected {MUTANT!r} or "
            f"{SEQUENCE!r} among them: rename the column of the variants, and separate columns by "
            "commas."
        )
    for column in (STEP, SCORE):
        if column in columns:
            raise ValueError(
                f"{file} already has a column {column!r}, which the table with scores adds: rename "
                "it."
            )
    if problem := problem_of(wild_type):
        raise _bad("the wild type", "sequence", wild_type, problem)
    rows: list[Row] = []
    variants = []
    numbers: dict[str, list] = {column: [] for column in (MEASURED, LABEL) if column in columns}
    for row in reader:
        place = f"{file}, line {reader.line_num}"
        if isinstance(row.get(EXTRA), list):
            raise ValueError(
                f"{place}: got more values than the {len(columns)} columns of the header, expected "
                "a value in each column: quote values with commas."
            )
        rows.append(row)
        variants.append(_variant(row, wild_type, problem_of, place))
        for column, values in numbers.items():
            values.append(_parsed(row, column, _number if column == MEASURED else _label, place))
    if not rows:
        raise ValueError(f"{file} has no rows, expected a variant in each.")
    return VariantTable(rows, variants, numbers.get(MEASURED), numbers.get(LABEL))


def _variant(
    row: Row, wild_type: str, problem_of: Callable[[str], str | None], place: str
) -> SequenceVariant:
    mutant = row.get(MUTANT) or ""
    sequence = row.get(SEQUENCE) or ""
    column = MUTANT if mutant or SEQUENCE not in row else SEQUENCE
    if column == MUTANT:
        variant = _parsed(row, MUTANT, functools.partial(SequenceVariant.of, wild_type), place)
        if sequence and sequence != variant.sequence:
            raise _bad(place, SEQUENCE, sequence, f"expected the wild type with {MUTANT}={mutant}")
    else:
        variant = SequenceVariant.between(wild_type, sequence)
    problem = problem_of(variant.sequence) if variant.sequence else "expected a sequence"
    if problem:
        raise _bad(place, column, row[column], problem)
    return variant


def _parsed(row: Row, column: str, kind: Callable[[str], Any], place: str) -> Any:
    """Returns the value of a column. Raises ValueError with its place."""
    text = row.get(column) or ""
    try:
        return kind(text)
    except ValueError as error:
        raise _bad(place, column, text, str(error)) from None


def _bad(place: str, column: str, value: str, expected: str) -> ValueError:
    shown = value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
    return ValueError(f"{place}: got {column}={shown!r}, {expected}.")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("expected a number: remove rows without one")
    return number


def _label(text: str) -> int:
    number = _number(text)
    if number not in (0, 1):
        raise ValueError("expected 0 or 1")
    return int(number)


def scored_rows(
    table: VariantTable, scores_of_steps: Mapping[int, Sequence[float]]
) -> list[dict[str, Any]]:
    """Returns the rows of the table with each step and its scores."""
    return [
        {**row, STEP: step, SCORE: round(float(score), 6)}
        for step, scores in scores_of_steps.items()
        for row, score in zip(table.rows, scores)
    ]


def table_text(rows: Sequence[Mapping[str, Any]], file: str) -> str:
    """Returns rows with the same columns as JSON lines or CSV, by the suffix of the file's name.

    >>> table_text([{"region": "exon", "loss": 1.5}, {"region": "gap", "loss": None}], "a.csv")
    'region,loss\\nexon,1.5\\ngap,\\n'
    """
    if file.endswith(reading.JSONL_SUFFIXES):
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def zero_shot_figures(
    table: VariantTable, scores: Sequence[float]
) -> dict[str, tuple[float, float]]:
    """Returns (figure, chance level) by name.

    "spearman" is the rank correlation of scores with DMS_score, and "auroc" the area under the ROC
    curve for DMS_score_bin.
    """
    figures = {}
    if table.measured is not None:
        figures["spearman"] = pearson_and_spearman(table.measured, scores)["spearman"], 0.0
    if table.labels is not None:
        figures["auroc"] = auroc(table.labels, scores)["auroc"], 0.5
    return figures
