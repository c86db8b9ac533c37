import pytest
import torch

import same
from latentcal.recalibration.discrete import Dequantizer, atoms
from uniformity import distance_to_uniform, uniform_limit


def _outputs(generator, n=2000):
    """A count with many zeros, a continuous output, and one that is 0 or else continuous."""
    count = torch.poisson(torch.full((n,), 3.0), generator=generator)
    count = count * (torch.rand(n, generator=generator) < 0.4)
    continuous = torch.randn(n, generator=generator)
    mixed = torch.rand(n, generator=generator) * (torch.rand(n, generator=generator) < 0.7)
    return torch.stack([count, continuous, mixed], 1)


def test_atoms_and_lattices_are_found(generator):
    y = _outputs(generator)
    found = atoms(y)
    count, continuous, mixed = found.outputs
    assert count.step == pytest.approx(1)
    assert count.values[0] == 0
    assert count.shares[0] == pytest.approx((y[:, 0] == 0).double().mean().item())
    assert list(count.shares) == sorted(count.shares, reverse=True)
    assert min(count.shares) > 0.05
    assert continuous.step is mixed.step is None
    assert continuous.values == ()
    assert mixed.values == (0.0,)
    assert found.output == 0
    assert found.share == count.shares[0]
    assert "output 0: lattice of step 1," in str(found)
    assert "output 1: continuous, 2,000 values, no atoms" in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_lattice_is_found_in_other_units(dtype, generator):
    counts = torch.poisson(torch.full((3000, 1), 2.0), generator=generator) ** 2  # 0, 1, 4, 9, ...
    y = ((counts.double() - 5.3) / 7.7).to(dtype)
    assert atoms(y).outputs[0].step == pytest.approx(1 / 7.7, rel=1e-5)


def test_values_that_repeat_but_lie_on_no_lattice_are_told_apart(generator):
    values = torch.tensor([0.0, 1.0, 2.3, 4.9])
    y = values[torch.randint(0, 4, (400, 1), generator=generator)]
    assert atoms(y).outputs[0].step is None
    assert len(atoms(y).outputs[0].values) == 4


def test_data_without_atoms_have_none(generator):
    found = atoms(torch.randn(50, 3, generator=generator))
    assert found.share == 0
    assert found.output is None
    assert atoms(torch.ones(1, 2)).share == 0  # one row repeats nothing


def test_noise_fills_the_cells_of_a_lattice_and_can_be_undone(generator):
    y = _outputs(generator)
    dequantizer = Dequantizer.fit(y)
    noisy = dequantizer.jitter(y, generator)
    offset = noisy[:, 0] - y[:, 0]
    assert same.decided(noisy[:, 0].round().long(), y[:, 0].long())
    assert distance_to_uniform(offset + 0.5) < uniform_limit(2000)
    assert same.copied(noisy[:, 1], y[:, 1])


def test_noise_at_a_lone_atom_stays_between_its_neighbours(generator):
    y = _outputs(generator)
    noisy = Dequantizer.fit(y).jitter(y, generator)[:, 2]
    zero = y[:, 2] == 0
    nearest = y[~zero, 2].min()
    assert same.copied(noisy[~zero], y[~zero, 2])
    assert noisy[zero].abs().max() <= nearest / 2
    assert distance_to_uniform(noisy[zero] / nearest + 0.5) < uniform_limit(int(zero.sum()))


def test_noise_depends_on_the_generator_alone(generator):
    y = _outputs(generator)
    dequantizer = Dequantizer.fit(y)
    one, two, other = (dequantizer.jitter(y, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert same.drawn(one, two)
    assert same.different(one, other)
    assert dequantizer.jitter(y.expand(4, -1, -1)).shape == (4, 2000, 3)
    assert dequantizer.jitter(y.long()).dtype == torch.float32


def test_an_output_with_one_value_is_left_as_it_is(generator):
    y = torch.stack([torch.full((30,), 2.0), torch.arange(30.0) % 3], 1)
    noisy = Dequantizer.fit(y).jitter(y, generator)
    assert same.copied(noisy[:, 0], y[:, 0])
    assert (noisy[:, 1] != y[:, 1]).all()


def test_what_has_no_outputs_is_refused():
    with pytest.raises(ValueError, match=r"y \(n, d\)"):
        atoms(torch.zeros(3))
    with pytest.raises(ValueError, match="NaN or infinite values in 1 of"):
        atoms(torch.tensor([[1.0], [torch.nan]]))
    with pytest.raises(ValueError, match=r"share must lie in \[0, 1\), got 1"):
        atoms(torch.zeros(3, 1), share=1)
    with pytest.raises(ValueError, match="must be the 2 outputs that this noise was fitted to"):
        Dequantizer.fit(torch.rand(5, 2)).jitter(torch.zeros(3, 1))


def test_values_that_occur_twice_each_are_a_lattice_and_those_that_occur_less_often_are_not():
    values = torch.arange(10.0)
    twice = torch.cat([values, values])
    assert atoms(twice[:, None]).outputs[0].step == pytest.approx(1)
    assert atoms(twice[:-1, None]).outputs[0].step is None
