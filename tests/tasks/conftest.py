"""A small TensorFlow dataset that the tests of `tasks` share."""

import importlib
import sys

import pytest


@pytest.fixture(scope="session")
def tfds_dir(tmp_path_factory) -> str:
    """A TFDS folder with `tiny_texts`: 60 training examples in 4 files, and 10 to validate."""
    folder = tmp_path_factory.mktemp("tfds")
    (folder / "tiny_texts_builder.py").write_text(
        """
import tensorflow_datasets as tfds


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(60), "validation": self._generate_examples(10)}

    def _generate_examples(self, n):
        for i in range(n):
            yield i, {"text": f"document {i} of {n}: " + f"def value_{i}(): return {i}; " * (i % 7)}
"""
    )
    sys.path.insert(0, str(folder))
    try:
        import tensorflow_datasets as tfds

        module = importlib.import_module("tiny_texts_builder")
        config = tfds.download.DownloadConfig(num_shards=4)
        module.TinyTexts(data_dir=str(folder / "data")).download_and_prepare(download_config=config)
    finally:
        sys.path.remove(str(folder))
    return str(folder / "data")
