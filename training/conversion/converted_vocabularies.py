"""Vocabularies of models that are imported from `transformers` or T5X, or exported to it.

For example:

    vocabulary = imported_vocabulary(Path("t5-v1_1-small"), config, sentinels=128)
    export_vocabulary("runs/t5", "exported", model, forms)
"""

import functools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...corpora import vocabularies
from ...corpora.alphabets import ALPHABETS
from ...corpora.vocabularies import special_tokens, tokenization
from ...corpora.vocabularies.factories import Vocabulary
from ...corpora.vocabularies.letters import write_letters
from ...corpora.vocabularies.tokenizer_json import write_tokenizer
from ...inference import Trained
from ...inference.prompting.prompts import text_frame
from ...models import Model
from ...objectives import PromptForm
from ...settings.run_directory import SENTENCEPIECE_MODEL, TOKENIZER, VOCABULARY

TOKENIZERS = (TOKENIZER, "spiece.model", "tokenizer.model", "sentencepiece.bpe.model")


def imported_vocabulary(
    path: Path,
    config: Mapping[str, Any],
    *,
    tokenizer: str | None = None,
    sentinels: int | None = None,
    specials: Sequence[str] = (),
) -> Vocabulary | None:
    """Returns the tokenizer of a directory with its special ids; None if there is no tokenizer.

    ESM-2 is published without a tokenizer.json. Its tokens are known letters.

    Args:
      path: a directory of `transformers`, or a T5X checkpoint. If a run was exported to it, its
        vocabulary.json has the special ids.
      tokenizer: a tokenizer file for a directory without a tokenizer.
      sentinels, specials: more special ids, see `special_tokens.published_ids`.

    Raises ValueError if the directory already has a tokenizer or ids that these would replace.
    """
    wanted = sentinels is not None or bool(specials)
    file = next((path / name for name in (VOCABULARY, *TOKENIZERS) if (path / name).exists()), None)
    exported_run = file == path / VOCABULARY
    if wanted and exported_run:
        raise ValueError(
            f"Got --sentinels or --specials with {path}, an exported run: leave them out, since "
            f"its {VOCABULARY} lists the special ids."
        )
    if tokenizer is not None and file is not None:
        raise ValueError(
            f"Got --tokenizer={tokenizer} with {path}, which holds {file.name}: leave it out, "
            "since the model did not learn the ids of another tokenizer."
        )
    if exported_run:
        return vocabularies.load_vocabulary(str(path))
    if tokenizer is not None:
        file = Path(tokenizer)
    if file is None and _has_ids_of_esm2(path, config):
        file = Path(_folder_of_esm2().name, TOKENIZER)
    if file is None:
        if wanted:
            raise ValueError(
                f"Got --sentinels or --specials with {path}, which holds no tokenizer (one of "
                f"{', '.join(TOKENIZERS)}): give one with --tokenizer=FILE, or leave them out."
            )
        return None
    opened = tokenization.open_tokenizer(str(file))
    ids = special_tokens.published_ids(opened, file.parent, config, sentinels, specials)
    return Vocabulary(opened, ids, {"vocabulary": str(file)})


def _has_ids_of_esm2(path: Path, config: Mapping[str, Any]) -> bool:
    """Returns whether a directory has an ESM-2 or ESM-1b, and not a model of DNA of this family."""
    import tokenizers

    if config.get("model_type") != "esm":
        return False
    letters = tokenizers.Tokenizer.from_file(str(Path(_folder_of_esm2().name, TOKENIZER)))
    tokens = [letters.id_to_token(i) for i in range(letters.get_vocab_size())]
    vocab = path / "vocab.txt"
    if vocab.exists():
        return vocab.read_text(encoding="utf-8").split() == tokens
    ids = config.get("vocab_size"), config.get("pad_token_id"), config.get("mask_token_id")
    return ids == (len(tokens), tokens.index("<pad>"), tokens.index("<mask>"))


@functools.cache
def _folder_of_esm2() -> tempfile.TemporaryDirectory:
    """Returns a folder with ESM-2's tokenizer.json, which is removed when the program ends."""
    import tokenizers

    folder = tempfile.TemporaryDirectory()
    file = str(Path(folder.name, TOKENIZER))
    write_letters(file, ALPHABETS["protein"], k=1)
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<cls> $A <eos>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<cls>", "<eos>")],
    )
    tokenizer.save(file)
    return folder


def imported_frame(path: Path, vocabulary: Vocabulary, layout: str) -> tuple[tuple, tuple]:
    """Returns the ids that the tokenizer.json of a directory adds before and after a text.

    Without a tokenizer.json, returns the usual ids of the layout.
    """
    tokenizer = vocabulary.tokenizer
    ids = vocabulary.ids
    file = path / TOKENIZER
    if not file.exists() and tokenizer.kind == "hugging_face":
        file = Path(str(tokenizer.path))
    if file.exists():
        import tokenizers

        read = tokenizers.Tokenizer.from_file(str(file)).encode("a")
        text = [i for i, special in enumerate(read.special_tokens_mask) if not special]
        return tuple(read.ids[: text[0]]), tuple(read.ids[text[-1] + 1 :])
    cls, sep = (() if i is None else (i,) for i in (ids.cls, ids.sep))
    return {"encoder": (cls, sep), "encoder_decoder": (cls, (ids.eos,))}.get(
        layout, ((ids.bos,), ())
    )


def saved_vocabulary(run_dir: str) -> Vocabulary | None:
    """Returns the vocabulary of a run directory; None if it has none."""
    try:
        return vocabularies.load_vocabulary(run_dir)
    except FileNotFoundError:
        return None


def without_params(model: Model, vocabulary: Vocabulary, forms: Sequence[PromptForm]) -> Trained:
    """Returns a trained model without its parameters, to inspect how it is prompted."""
    codec = vocabulary.codec
    return Trained(model, {}, vocabulary.ids, codec.encode, codec.decode, tuple(forms))


def config_ids(run_dir: str, layout: str) -> dict[str, int | None]:
    """Returns the ids for a config.json from the run's vocabulary; {} if it has no vocabulary.

    If the rows of a decoder start with the padding id, the end-of-sequence id becomes the padding
    id. Otherwise `generate` of `transformers` would mask the start of a prompt without a mask.
    """
    vocabulary = saved_vocabulary(run_dir)
    if vocabulary is None:
        return {}
    ids = vocabulary.ids
    others = {"cls_token_id": ids.cls, "sep_token_id": ids.sep, "mask_token_id": ids.mask}
    found: dict[str, int | None] = {
        "pad_token_id": ids.eos if layout == "decoder" and ids.bos == ids.pad else ids.pad,
        "eos_token_id": ids.eos,
        "bos_token_id": ids.bos,
        "decoder_start_token_id": ids.bos,
    }
    return found | {name: i for name, i in others.items() if i is not None}


def export_vocabulary(run_dir: str, target: str, model: Model, forms: Sequence[PromptForm]) -> str:
    """Writes the run's vocabulary, also as a tokenizer of `transformers`.

    The tokenizer adds the same ids around a text as the model's rows have. For example, a decoder
    trained by pretrax starts with `bos`. The tokenizer of an imported model is in `target` already,
    so only ids that were added to it are written.

    Returns a message about what could not be written, or "".
    """
    folder = Path(target)
    has_tokenizer = any((folder / name).exists() for name in (*TOKENIZERS, VOCABULARY))
    vocabulary = saved_vocabulary(run_dir)
    if vocabulary is None:
        return ""
    added = vocabulary.ids.size - vocabulary.tokenizer.size
    complete = (folder / VOCABULARY).exists() and (folder / TOKENIZER).exists()  # exported before
    if has_tokenizer and (added <= 0 or complete):
        return ""
    frame: tuple = ((), ())  # an imported tokenizer has its own
    if not has_tokenizer:
        for name in (VOCABULARY, SENTENCEPIECE_MODEL, TOKENIZER):
            if (Path(run_dir) / name).exists():
                shutil.copyfile(Path(run_dir) / name, folder / name)
        frame = text_frame(without_params(model, vocabulary, forms))
    try:
        write_tokenizer(target, vocabulary, *frame)
    except ValueError as error:
        what = "The ids that were added are in no" if has_tokenizer else "It holds no"
        note = f"{what} tokenizer.json: {error}."
        if (folder / SENTENCEPIECE_MODEL).exists():  # under the name that transformers looks for
            shutil.copyfile(folder / SENTENCEPIECE_MODEL, folder / "spiece.model")
            note += f" It reads spiece.model, without {added} ids that were added to it."
        return note
    if not has_tokenizer:
        vocabularies.renew_checksums(target)  # tokenizer.json has the special ids now
    return ""
