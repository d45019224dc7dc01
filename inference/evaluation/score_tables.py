"""Writes tables of scores as CSV or JSON lines."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...data import reading


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
