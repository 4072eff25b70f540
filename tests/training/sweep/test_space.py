"""A search space is a few words, and wrong ones are named."""

import pytest

from training.errors import SettingError
from training.options.config import TrainConfig
from training.options.names import options_by_name
from training.options.presets import build_config
from training.sweep.space import Categorical, Range, apply, parse_space


@pytest.fixture
def train() -> TrainConfig:
    return build_config("synthetic", None).train


def test_forms_become_ranges_and_choices_of_the_options_type(train: TrainConfig) -> None:
    texts = [
        "learning_rate=log:0.01:0.3",
        "epochs=2:4",
        "batch-size=32,64",
        "model=resnet20,resnet32",
        "flip=true,false",
    ]
    assert parse_space(texts, train) == [
        Range("learning_rate", 0.01, 0.3, log=True, integer=False),
        Range("epochs", 2.0, 4.0, log=False, integer=True),
        Categorical("batch_size", (32, 64)),
        Categorical("model", ("resnet20", "resnet32")),
        Categorical("flip", (True, False)),
    ]


def test_values_reach_nested_options_by_the_names_of_help(train: TrainConfig) -> None:
    changed = apply(train, {"model": "resnet32", "translation": 0.2, "batch_size": 8})
    assert (changed.architecture, changed.augment.translation, changed.batch_size) == ("resnet32", 0.2, 8)
    assert changed.learning_rate == train.learning_rate
    assert {"seed", "weight_decay", "rotation_degrees", "momentum"} <= set(options_by_name(TrainConfig))


def test_options_that_go_together_are_changed_together(train: TrainConfig) -> None:
    for texts in (["workers=2,4", "prefetch=2,4"], ["prefetch=2,4", "workers=2,4"]):
        names = [each.name for each in parse_space(texts, train)]
        loader = apply(train, dict.fromkeys(names, 4)).loader
        assert (loader.workers, loader.prefetch) == (4, 4)
    assert len(parse_space(["gamma=0.5:0.9", "schedule=cosine,exponential"], train)) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "--space is missing"),
        (["learning_rate"], "'learning_rate'; allowed is NAME=LOW:HIGH"),
        (["speed=1:2"], "names 'speed'; allowed is one of accumulation"),
        (["epochs=1,2", "epochs=3,4"], "names epochs twice"),
        (["epochs=2,2"], "a value is named twice"),
        (["epochs=1:two"], "'two' is not a whole number"),
        (["momentum=0.8,high"], "'high' is not a number"),
        (["momentum=0.9:0.8"], "a LOW that is less than HIGH"),
        (["momentum=nan:0.8"], "a LOW that is less than HIGH"),
        (["weight_decay=log:0:0.1"], "allowed for log is a LOW of more than 0"),
        (["momentum=0.1:0.2:0.3"], "allowed is NAME=LOW:HIGH"),
        (["flip=yes,no"], "neither true nor false"),
        (["model=resnet19,resnet20"], "'resnet19' is not one of resnet20"),
        (["model=a:b"], "model has no range"),
        (["batch_size=1,64"], "--batch-size is 1; allowed is 2 or more"),
        (["prefetch=2,4", "epochs=1,2"], "--prefetch goes with --workers"),
        (["gamma=0.5:1.5", "schedule=cosine,exponential"], "--gamma is 1.5"),
        (["momentum=0.5:1.5"], "--momentum is 1.5; allowed is more than 0 and less than 1"),
    ],
)
def test_what_cannot_be_searched_is_named_before_anything_is_trained(
    train: TrainConfig, texts: list[str], message: str
) -> None:
    with pytest.raises(SettingError, match=message.replace("[", "\\[")):
        parse_space(texts, train)
