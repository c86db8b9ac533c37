import json

import pytest

from studies.tabular import METHODS, RunSpec


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (
            RunSpec("enb", "convex-potential", 3),
            "enb-convex-potential-hidden40-layers2-learning_rate0.001-epochs5000-patience60-seed3",
        ),
        (
            RunSpec("bio", "maf", 0, max_epochs=10, patience=7),
            "bio-maf-flows3-hidden64-layers2-learning_rate0.001-epochs10-patience7-seed0",
        ),
        (
            RunSpec("bio", "flow-matching", 0, (("layers", 5), ("hidden", 32), ("learning_rate", 0.0002))),
            "bio-flow-matching-hidden32-layers5-learning_rate0.0002-epochs5000-patience30-seed0",
        ),
    ],
)
def test_the_key_of_a_training_stays_what_caches_know(spec, key):
    assert spec.key == key


def test_weights_and_recalibrations_share_one_training():
    spec = RunSpec("enb", "maf", 0)
    other = RunSpec("enb", "maf", 0, weights="last", recalibrations=("BASE",))
    assert other.key == spec.key
    assert other != spec


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1},
        {"sizes": (("hidden", 8),)},
        {"max_epochs": 2},
        {"patience": 30},
        {"smooth": 10},
        {"split": (0.6, 0.2, 0.2)},
        {"flow": "maf"},
        {"dataset": "slump"},
    ],
    ids=str,
)
def test_what_changes_the_training_changes_the_key(fields):
    plain = {"dataset": "enb", "flow": "convex-potential", "seed": 0}
    assert RunSpec(**{**plain, **fields}).key != RunSpec(**plain).key


def test_a_spec_survives_json():
    fields = {"weights": "last", "split": (0.5, 0.3, 0.2), "recalibrations": ("BASE", "auto")}
    spec = RunSpec("enb", "maf", 2, (("hidden", 32),), **fields)
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert hash(again) == hash(spec)


def test_the_order_of_sizes_does_not_matter():
    first = RunSpec("enb", "maf", 0, (("layers", 3), ("hidden", 32)))
    assert first == RunSpec("enb", "maf", 0, (("hidden", 32), ("layers", 3)))
    assert dict(first.sizes) == {"flows": 3, "hidden": 32, "layers": 3, "learning_rate": 1e-3}


def test_an_abbreviation_is_the_same_data_set():
    assert RunSpec("ENB", "maf", 0) == RunSpec("enb", "maf", 0)
    assert RunSpec("my own", "maf", 0).dataset == "my own"


def test_patience_is_the_flows_own_by_default():
    patience = {
        flow: RunSpec("enb", flow, 0).patience for flow in ("convex-potential", "maf", "flow-matching")
    }
    assert patience == {"convex-potential": 60, "maf": 30, "flow-matching": 30}
    assert RunSpec("enb", "maf", 0).recalibrations == METHODS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flow": "glow"}, "no flow 'glow'"),
        ({"weights": "middle"}, "'best' or 'last'"),
        ({"recalibrations": ("BASE", "LR-magic")}, "LR-magic"),
        ({"max_epochs": 0}, "max_epochs must be at least 1"),
        ({"smooth": 0}, "smooth must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"sizes": (("hiden", 8),)}, r"maf has no \['hiden'\]; it has flows, hidden, layers, bins and"),
        ({"sizes": (("transform", "affine"),)}, r"maf has no \['transform'\]"),
        ({"split": (0.5, 0.5)}, "three positive shares"),
        ({"split": (0.9, 0.9, 0.9)}, "three positive shares"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_says_what_is_right(fields, message):
    with pytest.raises(ValueError, match=message):
        RunSpec(**{"dataset": "enb", "flow": "maf", "seed": 0, **fields})


def test_unknown_fields_of_a_dict_are_named():
    with pytest.raises(ValueError, match="colour"):
        RunSpec.from_dict({"dataset": "enb", "flow": "maf", "seed": 0, "colour": "red"})
