"""What a model is called if nobody says it."""

from pathlib import Path

import pytest

from training.commands.cli import dispatch
from training.errors import SettingError
from training.options.presets import build_config


@pytest.mark.parametrize(
    ("folder", "name"),
    [("birds", "birds"), ("FashionMNIST", "fashionmnist"), ("My Birds", "my-birds"), ("-_odd_.set", "odd_.set")],
)
def test_a_model_is_named_after_its_folder_as_requests_can_spell_it(tmp_path: Path, folder: str, name: str) -> None:
    assert build_config(None, str(tmp_path / folder)).name == name


def test_a_folder_of_which_no_letter_can_be_spelt_has_a_name_too(tmp_path: Path) -> None:
    assert build_config(None, str(tmp_path / "鳥")).name == "model"


def test_a_name_that_is_none_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="the model's name is 'My Birds'; allowed are lower-case letters"):
        dispatch(["prepare", "--preset", "synthetic", "--name", "My Birds", "--runs", str(tmp_path / "runs")], {})
    assert not (tmp_path / "runs").exists()
