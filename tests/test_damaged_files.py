"""Damaged and forged model files: a small share of tools/fuzz_files.py, and what it found."""

import os
import sys
from pathlib import Path

import pytest
import torch

import latentcal as lc

for name in ("sklearn", "pandas", "click", "zuko"):
    pytest.importorskip(name)
if os.name == "nt":
    pytest.skip("the clock of a case needs signals", allow_module_level=True)

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import fuzz_files  # noqa: E402

from latentcal._internal.model_folder import ModelFileError  # noqa: E402
from latentcal._internal.smoothers import AdditiveFeatures, NeighbourSmoother  # noqa: E402
from latentcal.conformal import HPDScore  # noqa: E402
from latentcal.radius import ProbitMixture  # noqa: E402
from latentcal.recalibration.maps import AffineMap, Chain, CoordinateMap  # noqa: E402


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    return [fuzz_files.Original(name, kind, root / name) for name, kind in fuzz_files.model_kinds().items()]


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_or_forged_file_is_refused_in_one_line_or_another_valid_model(
    originals, tmp_path, monkeypatch
):
    monkeypatch.setattr(fuzz_files, "SECONDS", 60.0)  # a busy machine is no hang
    outcomes = {}
    for number in range(5 * len(originals)):
        own, what, files = fuzz_files.make_case(number, originals)
        outcomes[number] = (own.name, what, *fuzz_files.outcome_of(own, files, tmp_path))
    wrong = {number: outcome for number, outcome in outcomes.items() if outcome[2] in fuzz_files.WRONG}
    assert wrong == {}
    assert sum(outcome[2] == "clear error" for outcome in outcomes.values()) > len(outcomes) / 2


def scaled(depth: int) -> lc.RadiusLaw:
    law: lc.RadiusLaw = lc.radius.Chi(2)
    for _ in range(depth):
        law = lc.ScaledRadius(law, 1.0)
    return law


def test_what_is_nested_too_deeply_is_refused_when_it_is_saved(tmp_path):
    """It was saved, and could not be loaded."""
    lc.save(scaled(49), tmp_path / "model")
    assert isinstance(lc.load(tmp_path / "model"), lc.ScaledRadius)
    with pytest.raises(TypeError, match="nested more than 50 levels deep"):
        lc.save(scaled(50), tmp_path / "deeper")
    assert not (tmp_path / "deeper").exists()


def test_a_model_with_nan_is_not_saved(tmp_path):
    flow = lc.flows.ConvexPotentialFlow(2, 1, hidden=4)
    with torch.no_grad():
        next(flow.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="has NaN values"):
        lc.save(flow, tmp_path / "model")


class Identity(lc.ConditionalFlow):
    """A flow of somebody else."""

    def __init__(self) -> None:
        super().__init__(lc.base.standard_normal(2))

    def encode(self, y, x=None):
        return y, torch.zeros(y.shape[:-1])

    def decode(self, z, x=None):
        return z


def test_two_foreign_flows_in_one_model_are_refused_when_they_are_saved(tmp_path):
    """Both came back as the one flow that load was given."""
    with pytest.raises(TypeError, match="second flow"):
        lc.save(lc.recalibration.FlowEnsemble([Identity(), Identity()]), tmp_path / "model")
    flow = Identity()
    lc.save(lc.recalibration.FlowEnsemble([flow, flow.with_base(lc.base.laplace(2))]), tmp_path / "model")
    assert len(lc.load(tmp_path / "model", flow=flow).flows) == 2


class OwnRadius(lc.ScaledRadius):
    """A law of the user's."""


class Chi(lc.ScaledRadius):
    """A law of the user's with a name that is taken."""


def test_a_law_of_the_users_is_named_when_it_is_loaded(tmp_path):
    lc.save(OwnRadius(lc.radius.Chi(3), 2.0), tmp_path / "model")
    with pytest.raises(ModelFileError, match=r"needs the unknown class 'OwnRadius'.*classes="):
        lc.load(tmp_path / "model")
    assert type(lc.load(tmp_path / "model", classes=[OwnRadius])) is OwnRadius
    with pytest.raises(TypeError, match="latentcal uses this name"):
        lc.save(Chi(lc.radius.Chi(3), 2.0), tmp_path / "other")
    with pytest.raises(TypeError, match="with unique names"):
        lc.load(tmp_path / "model", classes=[Chi])


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def prerank(spread: torch.Tensor) -> lc.recalibration.PrerankRecalibration:
    law = ProbitMixture(doubles(0), doubles(1), doubles(1))
    return lc.recalibration.PrerankRecalibration(torch.tensor([1, 1]), law, 0.0, None, spread)


PARTS = {
    "a law that ends below 0": lambda: lc.GammaKDE(doubles(1.0), 2.0, upper=-1.0),
    "bins of a spline far apart": lambda: lc.SplineRadius(
        1.0, 1.0, doubles(1, 1e30), doubles(1, 1), doubles(1, 1, 1)
    ),
    "a scale below the floats": lambda: lc.ScaledRadius(lc.radius.Chi(2), 1e-320),
    "bins of a pulled law below 0": lambda: lc.radius.TightenedRadius(
        lc.radius.Chi(2), doubles(1, -1), doubles(1, 1), 0.5
    ),
    "parts of a stack that end elsewhere": lambda: lc.StackedRadius(
        [lc.radius.Chi(2)], doubles(1), lc.radius.BallRadius(2), 0.5
    ),
    "counts below 0": lambda: lc.StreamingRadius(lc.radius.Chi(2), window=2, totals=doubles(-1, 0)),
    "degrees of freedom below the floats": lambda: lc.radius.StudentRadius(2, 1e-320),
    "a dimension beyond any": lambda: lc.radius.Chi(2**63),
    "maps of different coordinates": lambda: Chain(
        [
            AffineMap(torch.zeros(2), torch.eye(2)),
            CoordinateMap(*[doubles(0, 1, 2)[None]] * 2, torch.ones(1, 3)),
        ]
    ),
    "a shift that is a matrix": lambda: AffineMap(torch.eye(2), torch.ones(2)),
    "columns that are not there": lambda: AdditiveFeatures(
        *[doubles(0)] * 2, torch.tensor([1]), torch.tensor([0]), doubles(0), doubles(0), doubles(1)
    ),
    "neighbours of another width": lambda: NeighbourSmoother(
        doubles(0),
        doubles(1),
        torch.zeros(3, 2).double(),
        torch.zeros(3, 1).double(),
        doubles(1, 1, 1),
        torch.tensor([1]),
    ),
    "scores out of order": lambda: lc.Region(
        lc.base.standard_normal(2), lc.conformal.LatentScore(), doubles(2, 1), 0.5
    ),
    "mixed dtypes": lambda: lc.flows.LinearGaussianFlow(None, torch.zeros(1), torch.eye(1).double()),
    "heads of negative size": lambda: lc.flows.TarFlow(
        (1, 2, 1), patch_size=1, channels=4, num_blocks=1, layers_per_block=1, head_dim=-2
    ),
    "a ladder without steps": lambda: lc.recalibration.Ladder(["a"], [], [0.0], [0.0], [0.0], 0, 5, 2),
    "counts of ranks below 0": lambda: lc.recalibration.PrerankRecalibration(
        torch.tensor([1, -1]), None, 0.0, None
    ),
    "a reach without steps": lambda: prerank(spread=doubles(0)[0]),
    "steps of a reach in a matrix": lambda: prerank(spread=doubles(0, 1)[None]),
    "steps of a reach out of order": lambda: prerank(spread=doubles(1, 0)),
    "steps of a reach in whole numbers": lambda: prerank(spread=torch.tensor([0, 1])),
    "a seed beyond 64 bits": lambda: HPDScore(seed=1 << 65),
    "a seed of pre-ranks beyond 64 bits": lambda: lc.recalibration.PrerankRecalibrated(
        lc.base.standard_normal,
        lc.pit.negative_log_density,
        prerank(spread=doubles(0, 1)),
        bins=1,
        seed=1 << 65,
    ),
    "more draws than memory": lambda: HPDScore(samples=1 << 62),
}


@pytest.mark.parametrize("name", PARTS)
def test_numbers_that_do_not_go_together_are_refused_where_they_are_put_together(name):
    """Each was loaded from a forged file, and failed inside torch, hung or gave NaN when it was asked."""
    with pytest.raises(ValueError, match=r"must|have|has|differ|end|need"):
        PARTS[name]()


def test_a_flow_of_many_small_layers_is_not_built_from_a_file_of_few_numbers(tmp_path, originals):
    """Sizes within their bounds asked for a million layers."""
    import json

    from latentcal._internal.model_folder import _document_hash

    lc.save(lc.flows.FlowMatching(2, 1, hidden=2, layers=1), tmp_path / "model")
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    document["model"]["args"]["layers"] = 1_000_000
    document["sha256"] = _document_hash(document)
    (tmp_path / "model" / "model.json").write_text(json.dumps(document))
    with pytest.raises(ModelFileError, match="more layers than the file has numbers"):
        lc.load(tmp_path / "model")
