import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import latentcal as lc

LEVELS = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]


def rows(n, seed=0):
    """Features and two outputs, the second of which follows the first; and their law."""
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 2, dtype=torch.float64, generator=source)
    factor = torch.tensor([[1.0, 0.0], [0.8, 0.6]], dtype=torch.float64)
    truth = td.MultivariateNormal(3 * x, scale_tril=factor)
    return x, 3 * x + torch.randn(n, 2, dtype=torch.float64, generator=source) @ factor.T, truth


def first(features):
    return td.Normal(3 * features[:, 0], 1.0)


def second(features):
    return stats.norm(3 * features[:, 1] + 0.8 * (features[:, 2] - 3 * features[:, 0]), 0.6)


def test_a_chain_of_true_laws_is_the_true_law():
    x, y, truth = rows(30)
    flow = lc.from_chain([first, second])
    torch.testing.assert_close(flow(x).log_prob(y), truth.log_prob(y))
    torch.testing.assert_close(flow(x).log_prob(y[:1]), truth.log_prob(y[:1].expand_as(y)))
    lc.testing.check_flow_contract(flow, x, y)
    draws = flow(x[:1]).sample((4000,), torch.Generator().manual_seed(0))[:, 0]
    assert float(torch.corrcoef(draws.T)[0, 1]) == pytest.approx(0.8, abs=0.05)


def test_the_first_model_is_asked_once_for_each_x():
    asked = []

    def counted(features):
        asked.append(len(features))
        return first(features)

    x, y, truth = rows(10)
    flow = lc.from_chain([counted, second], levels=np.array(LEVELS))
    draws = y + torch.randn(50, 10, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(flow(x).log_prob(draws), truth.log_prob(draws))
    assert asked == [10]
    torch.testing.assert_close(flow(x).decode(flow(x).latent(draws)), draws)
    with pytest.raises(ValueError, match="some are NaN or infinite in 20 of 20 rows"):
        lc.from_chain([lambda features: stats.norm(np.nan * features[:, 0], 1)])(rows(20)[0]).sample()


def test_another_order_is_the_same_law():
    x, y, truth = rows(30)

    def second_alone(features):
        return td.Normal(3 * features[:, 1], 1.0)

    def first_given_second(features):
        return td.Normal(3 * features[:, 0] + 0.8 * (features[:, 2] - 3 * features[:, 1]), 0.6)

    flow = lc.from_chain([second_alone, first_given_second], order=[1, 0])
    lc.testing.check_flow_contract(flow, x, y, log_prob=truth.log_prob(y))


def test_one_model_is_the_univariate_formula():
    x, y, _ = rows(20)
    flow = lc.from_chain([lambda features: stats.gumbel_r(3 * features[:, 0], 2.0)])
    law = stats.gumbel_r(3 * x[:, 0].numpy(), 2.0)
    z = flow(x).latent(y[:, :1])[:, 0]
    np.testing.assert_allclose(z, stats.norm.ppf(law.cdf(y[:, 0].numpy())), atol=0.01)  # 25 quantiles
    np.testing.assert_allclose(flow(x).log_prob(y[:, :1]), law.logpdf(y[:, 0].numpy()), atol=0.05)


class WithQuantiles:
    """A model with the signature of quantile-forest."""

    def predict(self, X, quantiles=None):
        return np.asarray(first(torch.as_tensor(X)).mean)[:, None] + stats.norm.ppf(quantiles)


class WithList:
    """A model with the signature of TabPFN."""

    def predict(self, X, output_type="mean", quantiles=None):
        assert output_type == "quantiles"
        return list(WithQuantiles().predict(X, quantiles).T)


class WithAlpha:
    """A model with the signature of skpro, whose levels cross."""

    def predict_quantiles(self, X, alpha):
        return WithQuantiles().predict(X, alpha)[:, ::-1]


@pytest.mark.parametrize("model", [WithQuantiles(), WithList(), WithAlpha()])
def test_models_that_give_quantiles(model):
    x, y, _ = rows(20)
    expected = first(x).log_prob(y[:, 0])
    for levels in (None, LEVELS):
        flow = lc.from_chain([model], levels=levels, tails="normal")
        torch.testing.assert_close(flow(x).log_prob(y[:, :1]), expected)


def test_what_is_no_chain_is_refused():
    x, y, _ = rows(20)
    with pytest.raises(TypeError, match="a list of models"):
        lc.from_chain({0.5: first})
    with pytest.raises(TypeError, match="pred_dist"):
        lc.from_chain([object()])
    with pytest.raises(ValueError, match="each of 2 outputs once"):
        lc.from_chain([first, second], order=[0, 0])
    with pytest.raises(ValueError, match="ascending"):
        lc.from_chain([first], levels=[0.9, 0.1])
    with pytest.raises(TypeError, match="neither ppf nor icdf"):
        lc.from_chain([lambda features: features])(x).log_prob(y[:, :1])
    with pytest.raises(ValueError, match="finite quantiles"):
        lc.from_chain([lambda features: td.Normal(torch.zeros(3), 1.0)])(x).log_prob(y[:, :1])


def test_boosted_quantiles_of_scikit_learn():
    ensemble = pytest.importorskip("sklearn.ensemble")
    x, y, truth = rows(1200)

    def make(level):
        return ensemble.HistGradientBoostingRegressor(loss="quantile", quantile=level, max_iter=40)

    flow = lc.fit_chain(make, x[:600], y[:600], levels=LEVELS)
    model = lc.autocalibrate(flow, x[600:900], y[600:900])
    new = slice(900, None)
    raw, repaired = (float(m(x[new]).log_prob(y[new]).mean()) for m in (flow, model))
    assert repaired > raw
    assert float(truth.log_prob(y)[new].mean()) - repaired < 1  # nats, of 600 rows of boosting


def test_quantile_forests():
    forest = pytest.importorskip("quantile_forest")
    x, y, _ = rows(400)
    flow = lc.fit_chain(lambda: forest.RandomForestQuantileRegressor(n_estimators=20), x, y, order=[1, 0])
    assert bool(torch.isfinite(flow(x[:20]).log_prob(y[:20])).all())
    assert flow(x[:3]).sample((5,)).shape == (5, 3, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::RuntimeWarning")
def test_ngboost(tmp_path):
    ngboost = pytest.importorskip("ngboost")
    x, y, _ = rows(300)
    options = {"n_estimators": 20, "verbose": False}
    chain = lc.fit_chain(lambda: ngboost.NGBRegressor(**options), x, y)
    assert bool(torch.isfinite(chain(x).log_prob(y)).all())
    single = ngboost.NGBRegressor(**options).fit(x.numpy(), y[:, 0].numpy())
    law = single.pred_dist(x.numpy())
    np.testing.assert_allclose(lc.from_ngboost(single, x)(x).log_prob(y[:, :1]), law.logpdf(y[:, 0].numpy()))
    joint = ngboost.NGBRegressor(Dist=ngboost.distns.MultivariateNormal(2), **options)
    joint.fit(x.numpy(), y.numpy())
    flow = lc.from_ngboost(joint, x)
    lc.testing.check_flow_contract(flow, x, y)
    np.testing.assert_allclose(flow(x).log_prob(y), joint.pred_dist(x.numpy()).logpdf(y.numpy()), rtol=1e-6)
    model = lc.autocalibrate(flow, x, y)
    lc.save(model, tmp_path / "model")
    with pytest.raises(lc.files.ModelFileError, match="NormalFlow, is not in the file"):
        lc.load(tmp_path / "model")
    again = lc.load(tmp_path / "model", flow=flow)
    torch.testing.assert_close(again(x).log_prob(y), model(x).log_prob(y))
