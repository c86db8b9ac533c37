import math

import numpy as np
import pytest
import torch
from torch import distributions as td

import latentcal as lc
import uniformity
from latentcal.adapters import SampleFlow
from latentcal.recalibration import DependenceWarning


def toy(n, m, d, *, narrow=1.0, shift=0.0, seed=0):
    """Members (n, m, d), outputs (n, d), exchangeable with them unless narrow or shifted, and their law."""
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=source)

    root = torch.eye(d, dtype=torch.float64) + 0.3 * draw(n, d, d)
    mean = 2 * draw(n, d)
    members = mean[:, None] + shift + narrow * (root[:, None] @ draw(n, m, d, 1))[..., 0]
    y = mean + (root @ draw(n, d, 1))[..., 0]
    return members, y, td.MultivariateNormal(mean, root @ root.mT)


def exact_log_density(members, y):
    """The predictive law given normal members: multivariate t."""
    m, d = members.shape[1:]
    factor = (m**2 - 1) / (m * (m - d))
    found = []
    for cloud, point in zip(members, y, strict=True):
        scale = torch.cov(cloud.T).reshape(d, d) * factor
        gap = point - cloud.mean(0)
        square = gap @ torch.linalg.solve(scale, gap)
        law = lc.base.student_t(d, m - d)
        found.append(law.log_prob_at_norm(square.sqrt()) - 0.5 * torch.logdet(scale))
    return torch.stack(found)


@pytest.mark.parametrize(("m", "d"), [(5, 1), (10, 3), (4, 6), (2, 2)])
def test_it_keeps_the_promises_of_a_flow(m, d):
    members, y, _ = toy(40, m, d)
    lc.testing.check_flow_contract(lc.from_samples(members), members, y, tolerance=1e-5)


@pytest.mark.parametrize(("m", "d"), [(10, 1), (10, 3), (30, 5)])
def test_unshrunk_it_is_the_multivariate_t_law(m, d):
    members, y, _ = toy(20, m, d)
    flow = lc.from_samples(members, shrinkage=0.0)
    torch.testing.assert_close(flow(members).log_prob(y), exact_log_density(members, y))


def test_the_law_of_the_radius_is_exact():
    """The PIT of 4,000 observations that are exchangeable with 6 members: fails once in a million seeds."""
    n = 4000
    members, y, _ = toy(n, 6, 3)
    u = lc.latent_pit(lc.from_samples(members, shrinkage=0.0)(members), y)
    limit = uniformity.uniform_limit(n)
    assert uniformity.distance_to_uniform(u) < limit
    normal = SampleFlow(0.0, 1.0, torch.full((3,), 1e-3, dtype=torch.float64))
    assert uniformity.distance_to_uniform(lc.latent_pit(normal(members), y)) > limit  # control


def test_the_density_integrates_to_one():
    members, _, _ = toy(1, 8, 1)
    grid = torch.linspace(-300, 300, 60001, dtype=torch.float64)
    density = lc.from_samples(members)(members).log_prob(grid[:, None, None]).exp()[:, 0]
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-4)


def test_the_order_of_members_does_not_matter():
    members, y, _ = toy(10, 7, 3)
    flow = lc.from_samples(members)
    shuffled = members[:, torch.randperm(7, generator=torch.Generator().manual_seed(0))]
    torch.testing.assert_close(flow(shuffled).log_prob(y), flow(members).log_prob(y))


def test_missing_members_are_left_out():
    members, y, _ = toy(10, 7, 2)
    flow = lc.from_samples(members)
    more = torch.cat([members, torch.full((10, 1, 2), math.nan, dtype=torch.float64)], 1)
    more[:, -1, 0] = 1.0  # half missing
    torch.testing.assert_close(flow(more).log_prob(y), flow(members).log_prob(y))
    more[3, 1:] = math.nan
    with pytest.raises(ValueError, match="1 of 10 ensembles have fewer than 2"):
        flow(more)


def test_ensembles_with_too_few_members_left_are_shrunk():
    """4 of 20 members of 5 outputs: their covariance is singular, and unshrunk costs 140 nats."""
    members, y, _ = toy(40, 20, 5)
    fewer = members.clone()
    fewer[:, 4:] = math.nan
    expected = float(lc.from_samples(members[:, :4])(fewer).log_prob(y).mean())
    for known in (members, fewer):
        assert float(lc.from_samples(known)(fewer).log_prob(y).mean()) > expected - 2
    with pytest.raises(ValueError, match="5 outputs from 4 members are singular"):
        lc.from_samples(fewer, y, shrinkage=0.0)
    with pytest.raises(ValueError, match="must be finite"):
        lc.from_samples(members.masked_fill(members > 2, math.inf))


def test_constant_members_have_a_density():
    members, y, _ = toy(10, 7, 2)
    members[3, :, 1] = 0.5
    members[4] = 0.5
    flow = lc.from_samples(members)
    assert bool(torch.isfinite(flow(members).log_prob(y)).all())
    torch.testing.assert_close(flow(members).decode(flow(members).latent(y)), y)
    nothing = torch.zeros(10, 7, 2)
    assert bool(torch.isfinite(lc.from_samples(nothing)(nothing).log_prob(y)).all())


def test_outputs_far_away_have_a_finite_density():
    members, y, _ = toy(10, 7, 2)
    assert bool(torch.isfinite(lc.from_samples(members)(members).log_prob(y + 1e9)).all())


def test_shapes_of_x():
    members, y, _ = toy(10, 7, 2)
    features = torch.arange(10.0)[:, None]
    flow = lc.from_samples((members, features), features=1)
    expected = flow((members, features)).log_prob(y)
    assert flow.summarize(flow.read_features((members, features))).shape == (10, 5)
    torch.testing.assert_close(flow((members.numpy(), features.numpy())).log_prob(y), expected)
    torch.testing.assert_close(flow(flow.read_features((members, features))).log_prob(y), expected)
    for wrong in (members, members[..., :1], features):
        with pytest.raises(ValueError, match="x must be the members"):
            flow(wrong)
    with pytest.raises(ValueError, match=r"x must be \(n, m, d\)"):
        lc.from_samples(members[0])


class Labelled:
    """As much of an xarray as is used here."""

    def __init__(self, values, dims):
        self.values, self.dims = values, dims

    def transpose(self, *dims):
        return Labelled(self.values.transpose([self.dims.index(name) for name in dims]), dims)

    def to_numpy(self):
        return self.values


def test_named_dimensions_are_put_in_order():
    members, y, _ = toy(10, 7, 2)
    labelled = Labelled(members.numpy().transpose(1, 0, 2), ("number", "time", "step"))
    flow = lc.from_samples(labelled)
    torch.testing.assert_close(flow(labelled).log_prob(y), flow(members).log_prob(y))
    with pytest.raises(ValueError, match="The dimension of the members must have one of the names"):
        lc.from_samples(Labelled(members.numpy(), ("time", "a", "b")))


def test_shrinkage_is_chosen_by_rows():
    members, y, _ = toy(500, 8, 6)
    new, new_y, _ = toy(500, 8, 6, seed=1)
    plain, chosen = lc.from_samples(members, shrinkage=0.0), lc.from_samples(members, y)
    assert chosen.shrinkage > 0
    gain = float((chosen(new).log_prob(new_y) - plain(new).log_prob(new_y)).mean())
    assert gain > 0.3  # nats
    many, many_y, _ = toy(300, 100, 2)
    assert lc.from_samples(many, many_y).shrinkage <= 0.1


def test_a_bias_is_taken_out_where_there_is_one():
    members, y, _ = toy(300, 20, 2, shift=0.7)
    flow = lc.from_samples(members, y)
    torch.testing.assert_close(flow.bias, torch.full((2,), -0.7, dtype=torch.float64), atol=0.2, rtol=0)
    members, y, _ = toy(300, 20, 2)
    assert float(lc.from_samples(members, y).bias.abs().max()) < 0.2
    moved = flow.adjust(members)
    torch.testing.assert_close(moved.mean(1), members.mean(1) + flow.bias, atol=0.5, rtol=0)


def test_a_bias_is_found_where_ensembles_are_precise():
    """Some of these ensembles are tight in some direction: a plain mean of the errors costs them dear."""
    members, y, _ = toy(300, 60, 6, shift=0.4)
    new, new_y, _ = toy(1000, 60, 6, shift=0.4, seed=1)
    flow = lc.from_samples(members, y, shrinkage=0.0)
    base = lc.base.student_t(6, 54.0)
    plain = SampleFlow(0.0, 1.0, flow.floor, (y - members.mean(1)).mean(0), base=base)
    known = SampleFlow(0.0, 1.0, flow.floor, torch.full((6,), -0.4, dtype=torch.float64), base=base)
    ours, mean, best = (float(each(new).log_prob(new_y).mean()) for each in (flow, plain, known))
    assert ours - mean > 0.1  # nats; 0.24 to 0.73 in four pairs of seeds
    assert best - ours < 0.5 * (best - mean)


def test_spreads_of_few_members_are_drawn_to_the_usual_ones():
    members, y, _ = toy(400, 5, 2)
    new, new_y, _ = toy(1000, 5, 2, seed=1)
    flow = lc.from_samples(members, y)
    assert flow.pull > 0
    own = lc.from_samples(members, y, shrinkage=flow.shrinkage)  # spreads as they are
    assert own.pull == 0
    assert float((flow(new).log_prob(new_y) - own(new).log_prob(new_y)).mean()) > 0.05
    # Where ensembles have many members and spreads differ much, they are believed.
    size = torch.logspace(-1, 1, 400, dtype=torch.float64)[:, None]
    many, many_y, _ = toy(400, 60, 2)
    many, many_y = many - many.mean(1, keepdim=True), many_y - many.mean(1)
    assert lc.from_samples(size[..., None] * many, size * many_y).pull == 0


def test_autocalibrate_repairs_a_narrow_and_shifted_ensemble():
    members, y, _ = toy(500, 40, 3, narrow=0.6, shift=0.5)
    new, new_y, truth = toy(1000, 40, 3, narrow=0.6, shift=0.5, seed=1)
    flow = lc.from_samples(members, y)
    model = lc.autocalibrate(flow, members, y)
    best = float(truth.log_prob(new_y).mean())
    raw = lc.from_samples(members)
    before, after = (float(each(new).log_prob(new_y).mean()) for each in (raw, model))
    assert best - before > 0.5
    assert best - after < 0.3  # what 40 members do not tell is 0.15 of it
    with pytest.warns(DependenceWarning, match="covariance of the members"):
        lc.recalibrate(flow, members, y)


def test_members_are_moved_and_keep_their_places():
    members, y, _ = toy(500, 30, 2, narrow=0.5, shift=0.3)
    model = lc.autocalibrate(lc.from_samples(members, y), members, y)
    new, new_y, _ = toy(500, 30, 2, narrow=0.5, shift=0.3, seed=1)
    moved = model.adjust(new)
    assert moved.shape == new.shape
    assert model.adjust((10 * new).long()).is_floating_point()
    before, after = (lc.metrics.energy_score(each.movedim(1, 0), new_y).mean() for each in (new, moved))
    assert float(after) < 0.97 * float(before)
    centred, old = moved - moved.mean(1, keepdim=True), new - new.mean(1, keepdim=True)
    agreement = (centred * old).sum((1, 2)) / (centred.norm(dim=(1, 2)) * old.norm(dim=(1, 2)))
    assert float(agreement.min()) > 0.8  # members are where they were, only farther out
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.adjust(new[:, order]), moved[:, order])
    new[0, 3] = math.nan
    again = model.adjust(new)
    assert bool(torch.isnan(again[0, 3]).all())
    assert int(torch.isnan(again).sum()) == 2
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
    with pytest.raises(TypeError, match="no members to move"):
        lc.align(flow, None, y).adjust(new)


def test_moved_members_are_at_quantiles_of_the_law():
    members, y, _ = toy(300, 9, 2, narrow=0.5)
    flow = lc.from_samples(members, y)
    draws = flow(members).sample((4000,), torch.Generator().manual_seed(1))
    expected = (torch.arange(9, dtype=torch.float64) + 0.5) / 9
    errors = []
    for points in (flow.adjust(members), members):
        levels = torch.stack([(draws < point).double().mean(0) for point in points.movedim(1, 0)])
        errors.append(float((levels.sort(0).values - expected[:, None, None]).abs().max()))
    assert errors[0] < 0.1  # of 1,000 draws: six standard deviations
    assert errors[1] > 0.2  # control


def test_a_saved_model_answers_as_before(tmp_path):
    members, y, _ = toy(100, 8, 3, narrow=0.5)
    model = lc.autocalibrate(lc.from_samples(members, y), members, y)
    lc.save(model, tmp_path / "model")
    torch.testing.assert_close(lc.load(tmp_path / "model")(members).log_prob(y), model(members).log_prob(y))


def sampler(x):
    """One draw at a time, too narrow and without the correlation that outputs have."""
    return x[:, :1] + 0.5 * torch.randn(len(x), 2, dtype=x.dtype)


def sampler_rows(n, seed):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=source)
    noise = torch.randn(n, 2, generator=source)
    return x, x[:, :1] + torch.stack([noise[:, 0], 0.8 * noise[:, 0] + 0.6 * noise[:, 1]], 1)


def test_a_sampler_is_recalibrated(tmp_path):
    x, y = sampler_rows(400, 0)
    new_x, new_y = sampler_rows(400, 1)
    flow = lc.from_sampler(sampler, x, members=50)
    lc.testing.check_flow_contract(flow, new_x, new_y)
    model = lc.autocalibrate(flow, x, y)
    before, after = (lc.metrics.energy_score(m(new_x).sample((50,)), new_y).mean() for m in (flow, model))
    assert float(after) < float(before)
    correlation = np.corrcoef(np.asarray(model(new_x[:1]).sample((4000,))[:, 0]).T)[0, 1]
    assert correlation == pytest.approx(0.8, abs=0.12)
    lc.save(model, tmp_path / "model")
    with pytest.raises(lc.files.ModelFileError, match="SamplerFlow"):
        lc.load(tmp_path / "model")
    again = lc.load(tmp_path / "model", flow=flow)
    torch.testing.assert_close(again(new_x).log_prob(new_y), model(new_x).log_prob(new_y))


def test_draws_of_a_sampler_are_made_once():
    calls = []

    def count(x):
        calls.append(len(x))
        return torch.randn(20, len(x), 2)

    x, y = sampler_rows(40, 0)
    flow = lc.from_sampler(count, x, members=30)
    assert calls == [40, 40]
    first = flow(x).log_prob(y)
    torch.testing.assert_close(flow(x[5:9]).log_prob(y[5:9]), first[5:9])
    assert calls == [40, 40]
    flow(x + 1).log_prob(y)
    assert calls == [40] * 4
    with pytest.raises(ValueError, match="samples first"):
        lc.from_sampler(lambda x: torch.zeros(3, 5, 2), x)


def test_draws_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr("latentcal.adapters.samplers.rows_at_a_time", lambda numbers: 25)
    x, y = sampler_rows(200, 0)
    flow = lc.from_sampler(sampler, x[:10], members=5)
    for part in x.split(20):
        flow(part)
        flow(part).log_prob(y[:20])
        assert len(flow._kept) <= 25
    assert flow(x).log_prob(y).shape == (200,)  # more at once than are kept
    assert len(flow._kept) == 25
