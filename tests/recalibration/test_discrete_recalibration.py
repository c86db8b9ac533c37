import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from latentcal.flows import AutoregressiveFlow, mean_nll, train_flow
from latentcal.pit import latent_pit
from latentcal.radius import DiscreteOutputWarning
from latentcal.radius.gamma_kde import GammaKDE
from latentcal.radius.scaled import ScaledRadius
from latentcal.radius.stacked import StackedRadius
from latentcal.recalibration import CalibrationReuseWarning, latent_norms, recalibrate
from latentcal.recalibration.discrete import Dequantizer
from toys import scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit


def _counts(n, generator):
    """Features and outputs: a count that is 0 in 64 % of the rows, and a continuous one that follows it."""
    x = torch.randn(n, 2, generator=generator)
    busy = torch.rand(n, generator=generator) < torch.sigmoid(x[:, 0] - 0.7)
    count = busy * (1 + torch.poisson(torch.exp(0.5 + 0.3 * x[:, 1]), generator=generator))
    return x, torch.stack([count, 0.5 * count + torch.randn(n, generator=generator)], 1)


def test_a_heavy_atom_is_warned_of_and_recorded(generator):
    x, y = _counts(500, generator)
    flow = scaled_gaussian(2, 1.0, torch.float32)
    share = (y[:, 0] == 0).double().mean().item()
    with pytest.warns(DiscreteOutputWarning, match=rf"{share:.0%} of the rows .* output 0") as caught:
        record = recalibrate(flow, x, y, fit=ScaledRadius.fit).recalibration
    assert caught[0].filename == __file__
    assert record.atom_share == pytest.approx(share)
    assert record.atom_output == 0
    assert not record.dequantized
    assert f"atoms       {share:.1%} of output 0 at one value, without noise on them" in str(record)
    silent = recalibrate(flow, x, y, fit=ScaledRadius.fit, discrete="ignore").recalibration
    assert silent.lambda_ == pytest.approx(record.lambda_)
    recalibrate(flow, x, y[:, 1:].expand(-1, 2), fit=ScaledRadius.fit)  # continuous: silent
    few = recalibrate(flow, x[:15], y[:15], fit=ScaledRadius.fit).recalibration  # less than 20 rows: silent
    assert few.atom_share > 0.2


def test_ties_are_warned_of_once_or_not_at_all(generator):
    y = torch.ones(100, 2)
    y[torch.randperm(100, generator=generator)[:50]] += torch.randn(50, 2, generator=generator)
    flow = scaled_gaussian(2, 1.0)
    with pytest.warns(DiscreteOutputWarning, match="50% of the rows have the same value") as caught:
        recalibrate(flow, None, y, fit=GammaKDE.fit)
    assert len(caught) == 1
    with pytest.warns(DiscreteOutputWarning, match="50% of the 100 latent norms are tied"):
        recalibrate(flow, [y[:60], y[60:]], fit=GammaKDE.fit)  # batches: seen by their norms alone
    recalibrate(flow, None, y, fit=GammaKDE.fit, discrete="ignore")


def test_dequantised_norms_are_those_of_jittered_outputs(generator):
    x, y = _counts(300, generator)
    flow = scaled_gaussian(2, 1.0, torch.float32)
    seen = []

    def fit(sample):
        seen.append(sample.radii)
        return ScaledRadius.fit(sample)

    record = recalibrate(flow, x, y, fit=fit, discrete="dequantize").recalibration
    dequantizer = Dequantizer.fit(y)
    jittered = dequantizer.jitter(y, torch.Generator().manual_seed(0))
    torch.testing.assert_close(seen[0], latent_norms(flow, x, jittered))
    assert (seen[0] - latent_norms(flow, x, y)).abs().max() > 0.01  # control: without noise
    assert record.dequantized
    assert record.tied == 0
    assert "with noise on them" in str(record)
    assert record.fingerprint.share_of(x, y) == 1  # of the rows as they were given
    seed = torch.Generator().manual_seed(5)
    recalibrate(flow, x, y, fit=fit, discrete=dequantizer, generator=seed)
    jittered = dequantizer.jitter(y, torch.Generator().manual_seed(5))
    torch.testing.assert_close(seen[1], latent_norms(flow, x, jittered))


def test_batches_take_noise_that_was_fitted_before(generator):
    x, y = _counts(300, generator)
    flow, batches = scaled_gaussian(2, 1.0, torch.float32), DataLoader(TensorDataset(x, y), batch_size=64)
    with pytest.raises(ValueError, match=r"discrete=Dequantizer\.fit"):
        recalibrate(flow, batches, discrete="dequantize")
    record = recalibrate(flow, batches, fit=ScaledRadius.fit, discrete=Dequantizer.fit(y)).recalibration
    assert record.dequantized
    assert record.atom_share is None
    with pytest.raises(ValueError, match="discrete must be 'warn'"):
        recalibrate(flow, x, y, discrete="jitter")


def test_the_randomised_latent_pit_is_uniform_where_that_of_counts_is_not(generator):
    n = 3000
    flow = scaled_gaussian(1, 2.0)
    y = torch.poisson(torch.full((2 * n, 1), 1.0, dtype=torch.float64), generator=generator)
    dequantizer = Dequantizer.fit(y[:n])
    model = recalibrate(flow, None, y[:n], fit=GammaKDE.fit, discrete=dequantizer)
    limit = 2 * uniform_limit(n) + 0.02  # 0.02: smoothing of the map
    assert distance_to_uniform(latent_pit(model(), dequantizer.jitter(y[n:], generator))) < limit
    with pytest.warns(CalibrationReuseWarning):  # counts repeat
        counts = latent_pit(model(), y[n:])
    assert distance_to_uniform(counts) > 2 * limit  # control


@pytest.mark.slow
@pytest.mark.parametrize("trained_on", ["counts", "jittered"])
def test_recalibration_does_no_harm_where_an_output_is_mostly_one_value(trained_on):
    gains = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        x, y = _counts(3000, generator)
        dequantizer = Dequantizer.fit(y[:1000])
        used = y if trained_on == "counts" else dequantizer.jitter(y, generator)
        flow = AutoregressiveFlow(2, 2, flows=2, hidden=32)
        train_flow(
            flow,
            x[:1000],
            used[:1000],
            validation=(x[1000:1400], used[1000:1400]),
            max_epochs=40,
            batch_size=256,
        )
        model = recalibrate(flow, x[1400:2000], used[1400:2000], fit=StackedRadius.fit, discrete="ignore")
        gains.append(mean_nll(flow, x[2000:], used[2000:]) - mean_nll(model, x[2000:], used[2000:]))
    assert min(gains) > -0.02
    assert sum(gains) > -0.01
