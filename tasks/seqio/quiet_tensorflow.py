"""TensorFlow and SeqIO, imported without their notes on CUDA and oneDNN.

    from pretrax.tasks.seqio.quiet_tensorflow import seqio, tf

TensorFlow 2.21 writes these notes while its library is loaded, before it reads TF_CPP_MIN_LOG_LEVEL
(tensorflow/tensorflow issue 100442). They are therefore removed from standard error. After loading,
TensorFlow follows this variable, which JAX sets to 1. If it is 0, all notes are written.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# "I0000 00:00:17… port.cc:153] oneDNN …", similar warnings, and the line before them
_NOTE = re.compile(rb"[IW]\d{4} |WARNING: All log messages before absl::InitializeLog")


@contextlib.contextmanager
def _without_notes() -> Iterator[None]:
    """Removes notes of C++ libraries from standard error."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            for line in written:
                if not _NOTE.match(line):
                    os.write(2, line)


_loud = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
if not _loud:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # a missing GPU is not an error here
with contextlib.nullcontext() if _loud else _without_notes():
    import seqio
    import tensorflow as tf

__all__ = ["keep_off_accelerators", "seqio", "tf"]


def keep_off_accelerators() -> None:
    """Hides accelerators from TensorFlow, which only reads data and must leave memory to JAX."""
    for kind in ("GPU", "TPU"):
        try:
            tf.config.set_visible_devices([], kind)
        except (RuntimeError, ValueError):  # already in use, or there is no such device
            pass
