"""Rows in partitions: the same fit as on one machine, through real workers over TCP."""

import warnings

import pytest
import torch

import latentcal as lc
from alike import alike
from latentcal._internal import progress_bar
from latentcal.diagnostics import diagnose_partitions
from latentcal.recalibration import evaluate_partitions, recalibrate_partitions
from latentcal.recalibration import partitions as delayed
from toys import SinhFlow

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pd = pytest.importorskip("pandas")

# Older versions of dask see the cluster of another test.
pytestmark = pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler:UserWarning")


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


@pytest.fixture
def _alone(monkeypatch):
    """No cluster, though one may be there from another test."""
    monkeypatch.setattr(delayed, "_active_client", lambda: None)


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
    client.wait_for_workers(2, timeout=60)
    workers = client.nthreads()  # asked now; what the client remembers may be older
    assert len(workers) == 2
    assert all(address.startswith("tcp://") for address in workers)
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
    with pytest.warns(
        lc.recalibration.CalibrationReuseWarning, match="used again"
    ):  # said by workers, heard here
        evaluate_partitions(model, in_parts(x, y))


def test_a_law_of_x_gets_its_features_back_in_the_same_order(client):
    x, y = rows()
    y = y * torch.exp(0.5 * x[:, :1])
    flow = SinhFlow(2)
    model = recalibrate_partitions(flow, in_parts(x, y), fit=lc.ConditionalRadius.fit, with_x=True)
    assert_same_model(model, lc.recalibrate(flow, x, y, fit=lc.ConditionalRadius.fit), x, y)


@pytest.mark.usefixtures("_alone")
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
    with pytest.raises(ValueError, match=r"No columns \['w'\]"):
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
    assert alike(report.to_dict(), expected.to_dict())
    assert not alike(diagnose_partitions(flow, in_parts(x + 1, y), **quick).to_dict(), expected.to_dict())


@pytest.mark.usefixtures("_alone")
def test_of_too_many_rows_a_random_part_is_diagnosed():
    x, y = rows(400)
    flow, quick = SinhFlow(2), {"permutations": 399, "samples": 10}
    report = diagnose_partitions(flow, in_parts(x, y), max_rows=100, seed=3, **quick)
    assert report.n == 100
    assert report.notes[0] == "These are 100 of 400 rows in 5 partitions, drawn at random."
    part = torch.randperm(400, generator=torch.Generator().manual_seed(3))[:100].sort().values
    expected = lc.diagnose(flow, x[part], y[part], **quick)
    assert alike(report.to_dict()["findings"], expected.to_dict()["findings"])


@pytest.mark.usefixtures("_alone")
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


@pytest.mark.usefixtures("_alone")
def test_what_is_wrong_with_a_partition_is_said_with_its_number():
    frames = pytest.importorskip("dask.dataframe")
    x, y = rows()
    y[130] = torch.nan  # of 120 rows each
    with pytest.raises(ValueError, match=r"Partition 1: y has NaN .*first at \(10,\)"):
        recalibrate_partitions(SinhFlow(2), in_parts(x, y))
    with pytest.raises(TypeError, match=r"a list of pairs: \[\(x, y\)\]"):
        recalibrate_partitions(SinhFlow(2), (x, y))
    with pytest.raises(TypeError, match=r"Partition 0: it must be a pair \(x, y\), .*got Tensor"):
        recalibrate_partitions(SinhFlow(2), [dask.delayed(y)])
    table = pd.DataFrame({"u": y[:100, 0], "a": x[:100, 0], "town": ["Ghent"] * 100})
    with pytest.raises(TypeError, match="from_pandas"):
        recalibrate_partitions(SinhFlow(1), table, targets="u")
    frame = frames.from_pandas(table, npartitions=2)
    with pytest.raises(ValueError, match=r"Partition \d: the columns \['town'\] are not numeric"):
        recalibrate_partitions(SinhFlow(1), frame, targets="u")
    with pytest.raises(ValueError, match=r"\['u'\] are in both targets and features"):
        recalibrate_partitions(SinhFlow(1), frame, targets="u", features=["a", "u"])
    with pytest.raises(ValueError, match="Partition 1: y has NaN or infinite values, first in row 10"):
        diagnose_partitions(SinhFlow(2), in_parts(x, y))
    wrong = [(x[:100], y[:90])]
    for function in (recalibrate_partitions, evaluate_partitions, diagnose_partitions):
        with pytest.raises(ValueError, match="Partition 0: x and y must have the same rows, got 100 and 90"):
            function(SinhFlow(2), wrong)


@pytest.mark.usefixtures("_alone")
def test_columns_of_several_kinds_of_numbers_are_numbers():
    frames = pytest.importorskip("dask.dataframe")
    x, y = rows()
    table = pd.DataFrame({"u": y[:, 0], "v": y[:, 1], "half": x[:, 0] > 0, "b": x[:, 1]})
    table["whole"] = (10 * x[:, 0].round(decimals=1)).long().numpy()
    table = table.astype({"whole": "Int64"})
    features = torch.from_numpy(table[["half", "whole"]].to_numpy(dtype=float))
    frame = frames.from_pandas(table, npartitions=3)
    model = recalibrate_partitions(SinhFlow(2), frame, targets=["u", "v"], features=["half", "whole"])
    assert_same_model(model, lc.recalibrate(SinhFlow(2), features, y), features, y)
    one = recalibrate_partitions(SinhFlow(2), frame, targets=["u", "v"], features="b")
    assert_same_model(one, lc.recalibrate(SinhFlow(2), x[:, 1:], y), x[:, 1:], y)


@pytest.mark.usefixtures("_alone")
def test_partitions_that_share_their_source_read_it_once():
    x, y = rows()
    loads = []

    @dask.delayed
    def source():
        loads.append(1)
        return x, y

    shared = source()
    cut = dask.delayed(lambda pair, i: (pair[0][i::3], pair[1][i::3]))
    evaluate_partitions(SinhFlow(2), [cut(shared, i) for i in range(3)])
    assert len(loads) == 1


def test_threads_of_a_worker_leave_warnings_as_they_were(tmp_path):
    x, y = rows()
    before = list(warnings.filters), warnings.showwarning
    with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=4,
            processes=False,
            dashboard_address="127.0.0.1:0",
            local_directory=str(tmp_path),
        ) as cluster,
        distributed.Client(cluster),
    ):
        evaluate_partitions(SinhFlow(2), in_parts(x, y, 12))
    assert (list(warnings.filters), warnings.showwarning) == before


def test_what_is_no_partition_is_refused():
    with pytest.raises(TypeError, match="dask DataFrame or delayed pairs"):
        recalibrate_partitions(SinhFlow(2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="partitions is empty"):
        recalibrate_partitions(SinhFlow(2), [])


@pytest.mark.usefixtures("_alone")
def test_the_norms_of_a_partition_show_no_bar_of_their_own(monkeypatch, capfd):
    monkeypatch.setattr(progress_bar, "SECONDS_BETWEEN_LINES", 0)
    x, y = rows(100)
    recalibrate_partitions(SinhFlow(2), in_parts(x, y, 2), progress=False)
    assert capfd.readouterr().err == ""
    lc.latent_norms(SinhFlow(2), x, y, progress=True)
    assert "latent norms" in capfd.readouterr().err  # control


@pytest.mark.usefixtures("_alone")
def test_one_partition_fits_what_all_rows_fit_with_a_law_that_depends_on_x():
    x, y = rows(100)
    model = recalibrate_partitions(SinhFlow(2), in_parts(x, y, 1), fit=lc.ConditionalRadius.fit, with_x=True)
    assert_same_model(model, lc.recalibrate(SinhFlow(2), x, y, fit=lc.ConditionalRadius.fit), x, y)
