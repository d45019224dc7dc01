"""The corpus of instructions and dialogues in JSONL, Parquet and Arrow files."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
from annotated_types import Interval

from ..constraints import AtLeastTwo, checked
from ..data.corpus import Corpus, Document, in_parts
from ..data.reading import JSONL_SUFFIXES, RawDocument, has_fields, text_of_field
from ..data.records import MAX_RECORD_TOKENS
from ..data.token_store import TRAIN
from .text import (
    FileSplit,
    OnMalformed,
    counted,
    found_files,
    tokenized_files,
    vocabulary_source,
    with_heldout,
)
from .text_readers import LeftOut
from .tokenizing import corpus_of
from .vocabularies import Factory
from .vocabularies.tokenization import Tokenizer, batches


@checked
def dialogues(
    run_dir: str,
    *,
    files: str | Sequence[str],
    vocabulary: Factory,
    heldout_files: str | Sequence[str] | None = None,
    longest_tokens: Annotated[int, Interval(ge=2, le=MAX_RECORD_TOKENS)] = 1024,
    on_malformed: OnMalformed = "error",
    heldout_every: AtLeastTwo = 20,
    seed: int = 0,
) -> Corpus:
    """Instructions and dialogues in JSONL, Parquet and Arrow files, for `objectives.dialogue`.

        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hey"}]}
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
        {"instruction": "Translate.", "input": "good day", "output": "bon jour"}

    These are the formats of OpenAI chats (a content may be a list of text parts), ShareGPT
    conversations and Alpaca instructions. The parts of a document alternate between user messages
    and answers. A system message is put before the first user message, separated by an empty line.
    An instruction and its input are joined in the same way. If a dialogue is longer than
    `longest_tokens`, its last turns are left out and counted. A dialogue whose first answer does
    not fit is left out entirely.

    Args:
        files: paths, glob patterns or bucket URLs ("gs://…"), as a list or separated by commas.
        heldout_files: paths or patterns of the held-out dialogues, instead of `heldout_every`.
        longest_tokens: largest number of tokens of a dialogue, which must fit in a row of the run.
        on_malformed: "error" to stop at a malformed line, or "skip" to skip and count such lines.
        heldout_every: one dialogue in `heldout_every` is held out, and at least one.

    Raises ValueError for invalid settings or lines (`data.reading.MalformedLine` for a line),
    FileNotFoundError for a pattern without files, and OSError for a file that cannot be opened.
    """
    paths = found_files(run_dir, files, heldout_files)
    split = FileSplit(paths, heldout_every, turns_of, on_malformed)
    for path in itertools.chain.from_iterable(paths.values()):
        if not has_fields(path):
            raise ValueError(
                f"{path} is plain text, expected JSONL ({', '.join(JSONL_SUFFIXES)}), Parquet or "
                "Arrow, also as .gz or .zst: write each dialogue as a line or a row."
            )
    vocab = vocabulary(run_dir, vocabulary_source(split, "\n".join))
    tokens = tokenized_files(
        run_dir,
        split,
        vocab,
        encode=functools.partial(_encode_turns, longest_tokens),
        settings=[longest_tokens],
    )
    if heldout_files is None:  # Hold out whole dialogues, even if there are only a few.
        count = len(tokens.documents[TRAIN])
        if count < 2:
            raise ValueError(
                f"Got {count} dialogue in {', '.join(paths[TRAIN])}, expected 2 or more, because "
                "one is held out: give more dialogues, or set `heldout_files`."
            )
        split = split._replace(heldout_every=min(heldout_every, count))
    tokens, held_out = with_heldout(tokens, split)
    return corpus_of(
        f"Dialogues of {counted(paths[TRAIN])}",
        tokens,
        vocab,
        held_out=held_out,
        seed=seed,
        longest=longest_tokens,
    )


def turns_of(line: dict) -> list[str]:
    r"""Returns the turns of a dialogue, alternating between user messages and answers.

        turns_of({"instruction": "Add.", "input": "1 1", "output": "2"})    # ["Add.\n\n1 1", "2"]

    Raises ValueError, with the reason, for a line that is not a dialogue.
    """
    if line.get("messages") is not None:  # A table of several formats has null values.
        return _turns(map(_openai_message, _objects(line, "messages", "role", "content")))
    if line.get("conversations") is not None:
        return _turns(map(_sharegpt_message, _objects(line, "conversations", "from", "value")))
    question = [text_of_field(name, line) for name in ("instruction", "input") if line.get(name)]
    if not question or not line.get("output"):
        raise ValueError('expected "messages", "conversations", or "instruction" and "output"')
    return _turns([("user", "\n\n".join(question)), ("assistant", text_of_field("output", line))])


def _objects(line: dict, name: str, role: str, text: str) -> list[dict]:
    messages = line[name]
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise ValueError(f'"{name}" is not a list of objects with "{role}" and "{text}"')
    return messages


_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


def _sharegpt_message(message: dict) -> tuple[str, str]:
    role = str(message.get("from"))
    return _SHAREGPT_ROLES.get(role, role), text_of_field("value", message)


def _openai_message(message: dict) -> tuple[str, str]:
    if message.get("tool_calls") or message.get("function_call"):
        raise ValueError("a message calls a tool, expected only text")
    if message.get("weight") not in (None, 1):
        raise ValueError(
            f"a message has the weight {message['weight']!r}, expected 1, because the loss counts "
            "every answer: leave out dialogues with other weights"
        )
    role = str(message.get("role"))
    content = message.get("content")
    if isinstance(content, list):
        kinds = {str(part.get("type") if isinstance(part, dict) else part) for part in content}
        if kinds - {"text"}:
            raise ValueError(
                f"a message has parts of the types {sorted(kinds)}, expected only text"
            )
        text = "".join(text_of_field("text", part) for part in content)
    else:
        text = text_of_field("content", message)
    return "system" if role == "developer" else role, text


def _turns(messages: Iterable[tuple[str, str]]) -> list[str]:
    turns: list[str] = []
    before = ""
    for role, content in messages:
        if role == "system" and not turns and not before:
            before = f"{content}\n\n" if content.strip() else ""
        elif not content.strip():
            raise ValueError(f"message {len(turns) + 1}, with the role {role!r}, has no text")
        elif role == ("user", "assistant")[len(turns) % 2]:
            turns.append(before + content)
            before = ""
        else:
            raise ValueError(
                f"message {len(turns) + 1} has the role {role!r}, expected user and assistant in "
                "turn, after at most one system message"
            )
    if len(turns) < 2:
        raise ValueError("no answer in it, expected a user message and an assistant message")
    return turns


def _encode_turns(
    longest: int, tokenizer: Tokenizer, dialogues: Iterable[RawDocument], left_out: LeftOut
) -> Iterator[Document]:
    """Yields the documents of dialogues, each with the question-answer pairs that fit."""
    for batch in batches(dialogues, lambda part: sum(map(len, part.text))):
        flat = iter(tokenizer.encode_batch([turn for part in batch for turn in part.text]))
        for part in batch:
            turns = [next(flat) for _ in part.text]
            turns = turns[: len(turns) // 2 * 2]  # Drop a last question without an answer.
            ends = np.cumsum([turn.size for turn in turns])[1::2]
            fitting = int(np.sum(ends <= longest))
            left_out["answers beyond longest_tokens"] += len(ends) - fitting
            if fitting:
                yield in_parts(*turns[: 2 * fitting])
