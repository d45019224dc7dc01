"""Modes that predict classes: of texts, of pairs of texts and of words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ...objectives import PromptForm
from ...objectives.sentence_pairs import next_sentence_form
from ..answering.answers import text_field
from ..answering.classifying import classify, judge, tag
from ..answering.options import Options
from ..prompting.items import text_of_item
from ..trained import Mode, Trained, cls_and_sep, register_mode


def _classes(predict: Callable, trained: Trained, inputs: Sequence, options: Options) -> list[dict]:
    records: list[dict] = []
    for classes in predict(trained, inputs, options):
        if len(classes) == 1:
            records.append({"answer": f"{classes[0][1]:.3f}"})
            continue
        named = [{"class": name, "probability": p} for name, p in classes[: options.top]]
        records.append({"answer": classes[0][0], "classes": named})
    return records


def _tags(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    return [
        {"answer": " ".join(name for _, name in words), "words": [list(pair) for pair in words]}
        for words in tag(trained, texts, options)
    ]


def _pair(texts: Sequence[str], options: Mapping[str, Any]) -> list[dict]:
    if len(texts) != 2:
        raise ValueError(
            f"Got {len(texts)} texts in mode 'pair', expected two: give both texts, or --file "
            'with the fields "text" and "second" in each line.'
        )
    return [{"text": texts[0], "second": texts[1]}]


def _show_classes(console: Console, item: dict, record: dict) -> None:
    classes = record.get("classes", [])
    shares = ", ".join(f"{c['class']} {c['probability']:.3f}" for c in classes)
    texts = " | ".join(repr(item[name][:60]) for name in ("text", "second") if name in item)
    console.print(Text(f"{shares or record['answer']}: {texts}"), soft_wrap=True)


def _show_tags(console: Console, item: dict, record: dict) -> None:
    console.print(Text(" ".join(f"{word}/{name}" for word, name in record["words"])))


register_mode(
    Mode(
        name="pair",
        about="predicts whether a second text follows the first",
        layouts=("encoder",),
        read=lambda item: (text_of_item(item), text_field(item, "second")),
        form=lambda trained, mode: next_sentence_form(trained.ids),
        answer=lambda *arguments: _classes(judge, *arguments),
        objectives="next_sentence_prediction or sentence_order_prediction",
        example='"TEXT" "TEXT"',
        items=_pair,
        show=_show_classes,
    )
)
register_mode(
    Mode(
        name="classify",
        about="predicts a class or a number for each text",
        form=lambda trained, mode: PromptForm(
            mode, *cls_and_sep(trained.ids), head="classes", pooling="first"
        ),
        reads_only_frame=True,
        answer=lambda *arguments: _classes(classify, *arguments),
        is_scorable=True,
        objectives="sequence_classification or sequence_regression",
        options=("top",),
        show=_show_classes,
    )
)
register_mode(
    Mode(
        name="tag",
        about="predicts the class of each word",
        layouts=("encoder", "decoder"),
        form=lambda trained, mode: PromptForm(
            mode, *cls_and_sep(trained.ids), head="token_classes"
        ),
        reads_only_frame=True,
        answer=_tags,
        is_scorable=True,
        objectives="token_classification",
        show=_show_tags,
    )
)
