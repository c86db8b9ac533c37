"""The record of a recalibration has the norms that were fitted, so that rows are encoded once."""

import pytest
import torch

import latentcal as lc


@pytest.mark.parametrize("repair", [lc.recalibrate, lc.autocalibrate])
def test_the_record_has_the_norms_of_its_rows_until_it_is_saved(repair, tmp_path):
    y = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).double()
    flow = lc.flows.LinearGaussianFlow(torch.zeros(2, 1), torch.zeros(2), torch.eye(2)).double()
    model = repair(flow, y[:, :1], y)
    torch.testing.assert_close(model.recalibration.norms, lc.latent_norms(flow, y[:, :1], y))
    lc.save(model, tmp_path / "model")
    loaded = lc.load(tmp_path / "model").recalibration
    assert loaded.norms is None
    assert loaded.n == 60
