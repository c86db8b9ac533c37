"""Rows in partitions: the same fit as on one machine, through real workers over TCP."""

import pytest
import torch

import latentcal as lc
from latentcal import diagnose_partitions, evaluate_partitions, recalibrate_partitions
from toys import SinhFlow

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dask")
    with (
        dask.config.set({"distributed.worker.daemon": True}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            protocol="tcp",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            local_directory=str(folder),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def rows(n=600, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=generator), 1.4 * torch.randn(n, 2, generator=generator)


def in_parts(x, y, count=5):
    return [dask.delayed((a, b)) for a, b in zip(x.chunk(count), y.chunk(count), strict=True)]


def assert_same_model(ours, theirs, x, y):
    with torch.no_grad():
        torch.testing.assert_close(ours(x).log_prob(y), theirs(x).log_prob(y), rtol=1e-6, atol=1e-6)
    assert ours.recalibration.n == theirs.recalibration.n
    assert ours.recalibration.fingerprint == theirs.recalibration.fingerprint


def test_two_workers_over_tcp_fit_what_one_machine_fits(client):
    assert all(address.startswith("tcp://") for address in client.scheduler_info()["workers"])
    assert len(client.scheduler_info()["workers"]) == 2
    x, y = rows()
    flow = SinhFlow(2)
    expected = lc.recalibrate(flow, x, y)
    model = recalibrate_partitions(flow, in_parts(x, y))
    assert_same_model(model, expected, x, y)
    new_x, new_y = rows(300, seed=1)
    u, log_density = evaluate_partitions(model, in_parts(new_x, new_y))
    with torch.no_grad():
        torch.testing.assert_close(u, lc.latent_pit(expected(new_x), new_y), rtol=1e-6, atol=1e-6)
        direct = expected(new_x).log_prob(new_y.double())
    torch.testing.assert_close(log_density, direct, rtol=1e-6, atol=1e-6)
    with pytest.warns(lc.CalibrationReuseWarning, match="used again"):  # said by workers, heard here
        evaluate_partitions(model, in_parts(x, y))


def test_a_law_of_x_gets_its_features_back_in_the_same_order(client):
    x, y = rows()
    y = y * torch.exp(0.5 * x[:, :1])
    flow = SinhFlow(2)
    model = recalibrate_partitions(flow, in_parts(x, y), fit=lc.ConditionalRadius.fit, with_x=True)
    assert_same_model(model, lc.recalibrate(flow, x, y, fit=lc.ConditionalRadius.fit), x, y)


def test_a_dask_data_frame_names_its_outputs():
    frames = pytest.importorskip("dask.dataframe")
    x, y = rows()
    table = pd.DataFrame(torch.cat([y, x], 1).numpy(), columns=["u", "v", "a", "b"])
    frame = frames.from_pandas(table, npartitions=3)
    flow = SinhFlow(2)
    model = recalibrate_partitions(flow, frame, targets=["u", "v"])
    assert_same_model(model, lc.recalibrate(flow, x, y), x, y)
    with pytest.raises(ValueError, match=r"targets=\['a', 'b'\]"):
        recalibrate_partitions(flow, frame)
    with pytest.raises(ValueError, match=r"no columns \['w'\]"):
        recalibrate_partitions(flow, frame, targets=["u", "w"])


def test_a_worker_that_is_lost_is_made_up_for(client):
    import os
    import signal

    x, y = rows()
    flow = SinhFlow(2)
    victim = next(iter(client.run(os.getpid).values()))
    os.kill(victim, signal.SIGKILL)
    assert_same_model(recalibrate_partitions(flow, in_parts(x, y)), lc.recalibrate(flow, x, y), x, y)


def test_two_workers_over_tcp_report_what_one_machine_reports(client):
    x, y = rows(400)
    flow, quick = SinhFlow(2), {"permutations": 399, "samples": 10}
    expected = lc.diagnose(flow, x, y, **quick)
    report = diagnose_partitions(flow, in_parts(x, y), **quick)
    assert report.to_dict() == expected.to_dict()
    assert diagnose_partitions(flow, in_parts(x + 1, y), **quick).to_dict() != expected.to_dict()


def test_of_too_many_rows_a_random_part_is_diagnosed():
    x, y = rows(400)
    flow, quick = SinhFlow(2), {"permutations": 399, "samples": 10}
    report = diagnose_partitions(flow, in_parts(x, y), max_rows=100, seed=3, **quick)
    assert report.n == 100
    assert report.notes[0] == "These are 100 of 400 rows in 5 partitions, drawn at random."
    part = torch.randperm(400, generator=torch.Generator().manual_seed(3))[:100].sort().values
    expected = lc.diagnose(flow, x[part], y[part], **quick)
    assert report.to_dict()["findings"] == expected.to_dict()["findings"]


def test_empty_partitions_are_passed_over():
    x, y = rows()
    flow, nothing = SinhFlow(2), dask.delayed((torch.zeros(0, 2), torch.zeros(0, 2)))
    parts = in_parts(x, y)
    parts = [nothing, *parts[:2], nothing, *parts[2:]]
    model = recalibrate_partitions(flow, parts)
    assert_same_model(model, lc.recalibrate(flow, x, y), x, y)
    assert len(evaluate_partitions(flow, parts)[0]) == len(y)
    quick = {"permutations": 399, "samples": 10, "max_rows": 50}
    assert diagnose_partitions(flow, parts, **quick).n == 50
    for function in (recalibrate_partitions, evaluate_partitions, diagnose_partitions):
        with pytest.raises(ValueError, match="All 2 partitions are empty"):
            function(flow, [nothing, nothing])


def test_what_is_wrong_with_a_partition_is_said_with_its_number():
    frames = pytest.importorskip("dask.dataframe")
    x, y = rows()
    y[130] = torch.nan  # of 120 rows each
    with pytest.raises(ValueError, match=r"Partition 1: y has NaN .*first at \(10,\)"):
        recalibrate_partitions(SinhFlow(2), in_parts(x, y))
    with pytest.raises(TypeError, match=r"a list of pairs: \[\(x, y\)\]"):
        recalibrate_partitions(SinhFlow(2), (x, y))
    with pytest.raises(TypeError, match=r"Partition 0 must be a pair \(x, y\), got Tensor"):
        recalibrate_partitions(SinhFlow(2), [dask.delayed(y)])
    table = pd.DataFrame({"u": y[:100, 0], "a": x[:100, 0], "town": ["Ghent"] * 100})
    with pytest.raises(TypeError, match="from_pandas"):
        recalibrate_partitions(SinhFlow(1), table, targets="u")
    with pytest.raises(ValueError, match=r"columns \['town'\] hold no numbers"):
        recalibrate_partitions(SinhFlow(1), frames.from_pandas(table, npartitions=2), targets="u")


def test_what_is_no_partition_is_refused():
    with pytest.raises(TypeError, match="dask DataFrame or delayed pairs"):
        recalibrate_partitions(SinhFlow(2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="no partitions"):
        recalibrate_partitions(SinhFlow(2), [])
