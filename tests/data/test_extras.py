"""Messages that tell how to install a missing extra."""

import pytest

from pretrax.settings import extras


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "setup.py").touch()
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    return tmp_path


def test_install_command_within_checkout(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    assert extras.install_command("seqio") == "pip install -e '.[seqio]'"


def test_install_command_outside_checkout_names_checkout(checkout, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert extras.install_command("seqio") == f"pip install -e '{checkout}[seqio]'"


def test_install_command_for_wheel_names_package(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "ROOT", tmp_path)
    message = extras.missing_package_message(ModuleNotFoundError(name="grain.python"))
    assert message.endswith("needs grain, which is not installed: pip install 'pretrax[grain]'")
