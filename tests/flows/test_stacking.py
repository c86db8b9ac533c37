import torch

from latentcal.flows.stacking import log_scale_weights, stacking_weights


def _noise(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_of_two_guesses_the_one_with_less_noise_weighs_more_and_a_third_nothing(generator):
    n = 4000
    y = _noise(generator, n, 2) + 7
    guesses = torch.stack([y + 0.5 * _noise(generator, n, 2), y + _noise(generator, n, 2), 14 - y])
    weights = stacking_weights(guesses, y, torch.ones(n).double())
    # Independent errors of variance 1/4 and 1 beside a signal of variance 1 have weights 4 : 1, of sum 5/6.
    torch.testing.assert_close(
        weights, torch.tensor([[4 / 6] * 2, [1 / 6] * 2, [0.0] * 2]).double(), rtol=0, atol=0.06
    )


def test_weights_of_few_rows_are_near_to_those_that_outputs_share(generator):
    y = _noise(generator, 12, 3)
    guesses = torch.stack([y + _noise(generator, 12, 3), y + _noise(generator, 12, 3)])

    def differences(copies):
        rows = torch.ones(12 * copies).double()
        found = stacking_weights(guesses.repeat(1, copies, 1), y.repeat(copies, 1), rows)
        return float((found - found.mean(1, keepdim=True)).abs().max())

    assert differences(1) < 0.5 * differences(200)


def test_weights_of_a_single_output_are_those_of_least_squares(generator):
    y = _noise(generator, 12, 1)
    y = y - y.mean(0)
    guesses = torch.stack([y + 0.5 * _noise(generator, 12, 1), y + 0.5 * _noise(generator, 12, 1)])
    weights = stacking_weights(guesses, y, torch.ones(12).double())
    expected = torch.linalg.lstsq(guesses[..., 0].T, y).solution
    assert bool((expected > 0.1).all())
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)


def test_rows_without_a_weight_do_not_count(generator):
    y = _noise(generator, 200, 2)
    guesses = torch.stack([y + _noise(generator, 200, 2), y + _noise(generator, 200, 2)])
    weights = (torch.arange(200) < 120).double()
    wild = y.clone()
    wild[120:] += 100
    torch.testing.assert_close(
        stacking_weights(guesses, wild, weights), stacking_weights(guesses, y, weights)
    )


def test_log_scales_make_the_mean_square_of_residuals_one(generator):
    n = 3000
    truth = 0.7 * _noise(generator, n, 2)
    residuals = torch.exp(truth) * _noise(generator, n, 2) * torch.tensor([1.0, 1e-3])
    guesses = torch.stack([truth, _noise(generator, n, 2)])
    weights, level = log_scale_weights(guesses, residuals, torch.ones(n).double())
    log_scale = level + (weights[:, None] * guesses).sum(0)
    square = (residuals * torch.exp(-log_scale)).square().mean(0)
    torch.testing.assert_close(square, torch.ones(2).double(), rtol=1e-3, atol=0)
    torch.testing.assert_close(weights[0], torch.ones(2).double(), rtol=0, atol=0.1)
    assert bool((weights[1] < 0.1).all())


def test_a_few_rows_that_are_far_off_do_not_decide_the_weights_of_log_scales(generator):
    n = 600
    truth, ones = _noise(generator, n, 1), torch.ones(n).double()
    residuals = torch.exp(0.7 * truth) * _noise(generator, n, 1)
    wild = residuals.clone()
    wild[truth[:, 0].argsort()[:3]] = 50.0  # where the scale is smallest
    before, after = (log_scale_weights(0.7 * truth[None], each, ones)[0] for each in (residuals, wild))
    assert float(before) > 0.8
    assert float(after) > 0.7


def test_many_guesses_of_the_same_log_scale_have_a_bounded_sum_of_weights(generator):
    truth = _noise(generator, 800, 1)
    guesses = torch.stack([0.3 * truth] * 4)
    weights, _ = log_scale_weights(guesses, truth.exp() * _noise(generator, 800, 1), torch.ones(800).double())
    assert float(weights.sum()) <= 1.2 + 1e-9


def test_without_guesses_the_log_scale_is_that_of_the_mean_square(generator):
    residuals = 5 * _noise(generator, 50, 2)
    weights, level = log_scale_weights(residuals.new_zeros(0, 50, 2), residuals, torch.ones(50).double())
    assert weights.shape == (0, 2)
    torch.testing.assert_close(level, residuals.square().mean(0).log() / 2, rtol=1e-6, atol=1e-6)
