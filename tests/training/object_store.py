"""gs:// in memory for fsspec and for Orbax's paths: a bucket that has no empty folders."""

from etils.epath import backend, gpath
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from orbax.checkpoint._src.path import gcs_utils


class _ObjectStore(MemoryFileSystem):
    protocol = "gs"
    store = {}
    pseudo_dirs = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("gs://"))

    def mkdir(self, path, create_parents=True, **kwargs):
        """Does nothing, like gcsfs for anything but a bucket."""

    def makedirs(self, path, exist_ok=False):
        """Does nothing."""


def emptied(monkeypatch) -> MemoryFileSystem:
    """Returns the files of an empty gs://, which a test with `monkeypatch` reads and writes.

    Tensorstore, which Orbax uses for arrays, would still access the real bucket.
    """
    monkeypatch.setitem(_registry, "gs", _ObjectStore)
    files = _ObjectStore()
    files.store.clear()
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
    monkeypatch.setattr(backend.fsspec_backend, "fs", lambda path: files)
    monkeypatch.setattr(gcs_utils, "is_hierarchical_namespace_enabled", lambda path: False)
    return files
