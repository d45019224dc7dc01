"""Runs that were trained on the library's held-out files are rejected by eval metrics."""

import pytest

from pretrax.comparison.eval_metrics import EVAL_METRICS
from pretrax.comparison.eval_metrics.subject import Subject
from pretrax.corpora import docstring_pairs, python_library, text_files, validation_split
from pretrax.settings.partial import Partial
from tests.comparison.subjects import subject_of
from tests.inference.runs import trained
from tests.refusals import refuses

OF_LIBRARY = (
    *("minimal_pairs", "classify", "tag", "pairs", "retrieve", "finetune", "fill_in"),
    *("word_in_context", "infilling", "finetune_to_write"),
)


@pytest.mark.parametrize("name", OF_LIBRARY)
def test_eval_metrics_reject_runs_trained_on_their_files(name):
    subject = subject_of(
        trained("decoder", "causal_lm"), corpus=Partial(python_library, heldout_every=40)
    )
    with refuses(ValueError, "40", "20"):
        EVAL_METRICS[name](subject)


def test_run_initialized_from_a_run_that_read_the_files_is_rejected(tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder, initial, interval in ((first, None, 40), (second, first, 20), (third, second, 20)):
        folder.mkdir()
        corpus = "from pretrax import training\nfrom pretrax import corpora\n"
        corpus += "training.Run.corpus = @corpora.python_library\n"
        corpus += f"corpora.python_library.heldout_every = {interval}\n"
        begun = f"training.Run.initial_run = '{initial}'\n" if initial else ""
        (folder / "config.gin").write_text(corpus + begun)
    with refuses(ValueError, first, third):
        Subject(str(third)).check_library_unseen()
    (first / "config.gin").unlink()
    Subject(str(third)).check_library_unseen()


def test_nested_corpus_is_checked():
    inner = Partial(python_library, heldout_every=40)
    subject = subject_of(
        trained("decoder", "causal_lm"), corpus=Partial(validation_split, corpus=inner)
    )
    with refuses(ValueError, "40", "20"):
        subject.check_library_unseen()


def test_run_that_holds_out_the_files_is_accepted():
    trained_model = trained("decoder", "causal_lm")
    of_others = Partial(text_files, heldout_every=40)  # It holds out its own files.
    for corpus in (None, of_others, python_library, Partial(docstring_pairs, heldout_every=10)):
        subject_of(trained_model, corpus=corpus).check_library_unseen()
