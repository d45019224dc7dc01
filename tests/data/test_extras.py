"""Messages that tell how to install a missing extra."""

import pytest

from pretrax.settings import extras


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "setup.py").touch()
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    return tmp_path


def test_in_a_checkout_the_extra_is_of_its_folder(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    assert extras.install_command("seqio") == "pip install -e '.[seqio]'"


def test_in_another_folder_the_checkout_is_named(checkout, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert extras.install_command("seqio") == f"pip install -e '{checkout}[seqio]'"


def test_of_an_installed_wheel_the_extra_is_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    said = extras.missing_package_message(ModuleNotFoundError(name="grain.python"))
    assert said.endswith("needs grain, which is not installed: pip install 'pretrax[grain]'")
