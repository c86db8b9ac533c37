"""``python -m studies.tabular`` from the words of the command line to the files that it writes."""

import subprocess
import sys

import pytest

from studies.tabular import METHODS, RunSpec, Store, __main__, record_id
from studies.tabular.__main__ import main, parse_seeds
from studies.tabular.methods import law_numbers
from studies.tabular.store import DONE, FAILED
from studies.tabular.trainings import training_numbers


def study(capsys, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = 0
    try:
        main(list(words))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):  # which Python prints, and ends with 1
            print(end.code, file=sys.stderr)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    """No flow that another run has trained is found."""
    monkeypatch.setenv("LATENTCAL_CACHE", str(tmp_path / "cache"))


def record(spec: RunSpec, method: str, status: str = DONE, **figures) -> dict:
    head = {key: value for key, value in spec.to_dict().items() if key != "recalibrations"}
    failure = {"error": "ValueError: it went wrong", "traceback": "..."} if status == FAILED else {}
    sizes = {"n_train": 67, "n_calibration": 21, "n_test": 15}
    made = {"training": training_numbers(spec.flow), "law": law_numbers(method)}
    return {
        "id": record_id(spec, method),
        "made_by": made,
        "status": status,
        "method": method,
        **head,
        **sizes,
        **failure,
        **figures,
    }


@pytest.fixture
def store(tmp_path):
    """Records of slump with three seeds, one of which failed in part."""
    path = tmp_path / "records.sqlite"
    known = Store(path)
    for seed in range(3):
        spec = RunSpec("slump", "convex-potential", seed)
        known.append(record(spec, name, nll=2.0 + seed - 0.1 * i) for i, name in enumerate(METHODS[:-1]))
        known.append([record(spec, "HDR-R", DONE if seed else FAILED, nll=3.0)])
    return path


def test_seeds_are_a_number_a_list_or_a_range():
    assert parse_seeds(["3"]) == (0, 1, 2)
    assert parse_seeds(["0"]) == (0,)
    assert parse_seeds(["0", "1", "5"]) == parse_seeds(["0,1,5"]) == (0, 1, 5)
    assert parse_seeds(["5-7"]) == (5, 6, 7)
    assert parse_seeds(["3,"]) == (3,)
    assert parse_seeds(["1", "1", "0-1"]) == (1, 0)
    for wrong in ("a", "7-5", "1-2-3", ","):
        with pytest.raises(ValueError, match=r"not seeds|empty range"):
            parse_seeds([wrong])


def test_a_table_is_printed_or_written(capsys, store, tmp_path):
    code, out, _ = study(capsys, "table", "convex-potential", "--store", str(store))
    assert code == 0
    assert "SLU slump" in out
    assert "3.00 ± 0.58" in out  # BASE: 2, 3, 4
    assert "ValueError: it went wrong (SLU HDR-R seed 0)" in " ".join(out.split())
    file = tmp_path / "new" / "t.tex"
    words = ("--metric", "paired", "--method", "auto", "--format", "latex", "--out", str(file))
    code, out, _ = study(capsys, "table", "convex-potential", "--store", str(store), *words)
    assert (code, str(file) in out) == (0, True)
    assert file.read_text().startswith(r"\begin{table}")


def test_only_some_data_sets_are_shown_where_asked_for(capsys, store):
    words = ("table", "quick", "--store", str(store), "--datasets", "SLU", "edm")
    code, out, _ = study(capsys, *words)
    assert code == 0
    assert "No records in" not in out


def test_status_counts_and_says_why_it_failed(capsys, store):
    code, out, _ = study(capsys, "status", "--store", str(store))
    assert code == 0
    row = next(line for line in out.splitlines() if "quick" in line)  # six sets, three seeds, eight methods
    assert [word for word in row.split() if word.isdigit()] == ["3", "1", "23", "0", "1", "120"]
    assert "SLU HDR-R seed 0: ValueError: it went wrong" in out
    assert "There is no record of maf" in study(capsys, "status", "maf", "--store", str(store))[1]


def test_status_tells_what_has_no_samples_and_refuses_to_mix_trainings(capsys, tmp_path):
    path = tmp_path / "records.sqlite"
    spec = RunSpec("slump", "convex-potential", 0)
    Store(path).append(
        [record(spec, "BASE", version="1.0"), record(spec, "auto", version="1.0", partial=True)]
    )
    words = ("status", "--store", str(path))
    code, out, _ = study(capsys, *words)
    assert code == 0
    row = next(line for line in out.splitlines() if "convex-potential" in line)
    assert [word for word in row.split() if word.isdigit()][:5] == ["1", "1", "2", "1", "0"]
    Store(path).append([record(spec, "LR-KDE", version="1.1") | {"made_by": {"training": [1.0, 2.0]}}])
    for command in (words, ("table", "convex-potential", *words[1:])):
        code, _, error = study(capsys, *command)
        assert code == 1
        assert "records of 2 trainings are mixed" in error


def test_a_run_adds_nothing_to_records_of_other_code(capsys, tmp_path):
    store = tmp_path / "records.sqlite"
    spec = RunSpec("slump", "convex-potential", 0)
    Store(store).append([record(spec, "BASE") | {"made_by": {}}])
    code, _, error = study(
        capsys, "run", "quick", "--datasets", "slump", "--seeds", "4", "--store", str(store)
    )
    assert code == 1
    assert "records of 2 trainings (one of them not recorded)" in error
    assert all("seed3" not in name for name in Store(store).status())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["table", "quick", "--store", "nowhere.sqlite"], 1, "There is no file nowhere.sqlite"),
        (["table", "nope"], 2, "'nope' is not one of"),
        (["table", "quick", "--metric", "nil"], 2, "invalid choice: 'nil'"),
        (["run", "quick", "--seeds", "x"], 2, "'x' are not seeds; write 3"),
        (["run", "quick", "--datasets", "slmp"], 2, "Did you mean 'slump'"),
        (["run", "quick", "--datasets", ","], 2, "There is no data set ','"),
        (["run"], 2, "arguments are required: SUITE"),
        (["run", "quick", "--processes", "0"], 2, "'0' is not a whole number of at least 1"),
        (["rnu", "quick"], 2, "invalid choice: 'rnu'"),
    ],
)
def test_an_error_is_one_line_and_a_code(capsys, words, code, says):
    found, _, error = study(capsys, *words)
    assert found == code
    assert says in error
    assert error.startswith("Error: ")
    assert error.count("\n") == 1


def test_a_suite_without_records_and_a_wrong_method_are_named(capsys, store):
    code, _, error = study(capsys, "table", "maf", "--store", str(store))
    assert (code, error.count("\n")) == (1, 1)
    assert "no record of the suite maf with best weights" in error
    words = ("table", "convex-potential", "--method", "auto", "--store", str(store))
    assert "shows all methods" in study(capsys, *words)[2]
    for name, method in (("decomposition", "BASE"), ("times", "HDR-R")):
        words = ("table", "quick", "--metric", name, "--method", method, "--store", str(store))
        assert "This table always shows" in study(capsys, *words)[2]
    words = ("table", "quick", "--weights", "last", "--store", str(store))
    assert "with last weights" in study(capsys, *words)[2]


@pytest.mark.parametrize("command", [["status"], ["table", "quick"]])
def test_a_file_that_is_no_store_is_left_alone(capsys, tmp_path, command):
    notes = tmp_path / "notes.txt"
    notes.write_text("not to be lost")
    code, _, error = study(capsys, *command, "--store", str(notes))
    assert (code, error.count("\n")) == (1, 1)
    assert "is not a file of records" in error
    assert notes.read_text() == "not to be lost"


def test_records_of_something_else_belong_to_no_suite(capsys, store):
    Store(store).append([{"id": "x", "status": "done"}])
    out = study(capsys, "status", "--store", str(store))[1]
    assert "1 records belong to no suite" in out


def test_the_traceback_is_shown_only_where_asked_for(capsys, store):
    words = ["table", "maf", "--store", str(store)]
    assert "Traceback" not in study(capsys, *words)[2]
    with pytest.raises(__main__.CommandError):
        main([*words, "--debug"])


@pytest.mark.parametrize("command", [[], ["run"], ["status"], ["table"], ["figures"]])
def test_help_has_examples(capsys, command):
    code, out, _ = study(capsys, *command, "--help")
    assert code == 0
    assert "usage: python -m studies.tabular" in out
    if command:
        assert f"python -m studies.tabular {command[0]} " in out.split("Examples:")[1]


def test_figures_are_drawn(capsys, store, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("--store", str(store), "--out", str(tmp_path / "f"), "--no-flows")
    code, _, error = study(capsys, "figures", "convex-potential", *words)
    assert code == 0
    assert (tmp_path / "f" / "ranks.svg").exists()
    assert "latent_reliability is left out" in error


class _Runner:
    """Stands for the runner: notes what it is asked for and records it."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[dict] = []
        self.failing = failing

    def __call__(self, specs, path, **options) -> None:
        self.calls.append({"specs": list(specs), **options})
        for spec in specs:
            Store(path).append(
                record(spec, name, FAILED if name == self.failing else DONE, nll=1.0)
                for name in spec.recalibrations
            )


@pytest.fixture
def runner(monkeypatch):
    stand_in = _Runner()
    monkeypatch.setattr(__main__, "run_suite", stand_in)
    return stand_in


def test_run_does_what_is_waiting_and_writes_tables_and_figures(capsys, runner, tmp_path):
    path = tmp_path / "records.sqlite"
    words = ("quick", "misspecified", "--seeds", "0", "4", "--datasets", "SLU", "edm", "--processes", "2")
    code, out, error = study(capsys, "run", *words, "--store", str(path))
    assert code == 0, error
    (call,) = runner.calls
    assert (call["workers"], call["retry_failed"]) == (2, False)
    order = [(spec.seed, spec.max_epochs == 2, spec.dataset) for spec in call["specs"]]
    assert order[:4] == [(0, False, "slump"), (0, False, "edm"), (0, True, "slump"), (0, True, "edm")]
    assert len(order) == 8
    report = tmp_path / "report"
    assert (report / "quick-best" / "nll.html").exists()
    assert (report / "misspecified-best" / "ranks.png").exists()
    assert (report / "claims.txt").exists()
    code, out, _ = study(capsys, "run", *words, "--store", str(path), "--no-report")
    assert (code, len(runner.calls)) == (0, 1)
    assert "0 of 8 runs are to be done" in out


def test_run_measures_some_methods_without_samples_where_asked_for(capsys, runner, tmp_path):
    words = ("run", "quick", "--seeds", "1", "--datasets", "slump", "--no-report")
    chosen = ("--methods", "base", "auto", "--no-samples")
    code, _, error = study(capsys, *words, *chosen, "--store", str(tmp_path / "r.sqlite"))
    assert code == 0, error
    assert runner.calls[0]["samples"] is False
    assert runner.calls[0]["specs"][0].recalibrations == ("BASE", "auto")


def test_run_fails_where_records_failed(capsys, runner, tmp_path):
    runner.failing = "auto"
    words = (
        "run",
        "quick",
        "--seeds",
        "1",
        "--datasets",
        "slump",
        "--no-report",
        "--weights",
        "last",
    )
    code, _, error = study(capsys, *words, "--store", str(tmp_path / "r.sqlite"))
    assert code == 1
    assert "1 of 8 records failed" in error
    assert runner.calls[0]["specs"][0].weights == "last"
    assert "0 of 1 runs" in study(capsys, *words, "--store", str(tmp_path / "r.sqlite"))[1]
    again = study(capsys, *words, "--store", str(tmp_path / "r.sqlite"), "--retry-failed")
    assert "1 of 1 runs" in again[1]


def test_run_gives_a_cluster_the_address_of_its_scheduler(capsys, runner, tmp_path):
    words = ("run", "quick", "--seeds", "1", "--datasets", "slump", "--no-report")
    path = str(tmp_path / "r.sqlite")
    assert study(capsys, *words, "--store", path, "--scheduler", "tcp://10.0.0.1:8786")[0] == 0
    assert runner.calls[0]["scheduler"] == "tcp://10.0.0.1:8786"


def test_records_go_from_store_to_store_as_lines(capsys, store, tmp_path):
    lines, other = tmp_path / "r.jsonl.gz", tmp_path / "other.sqlite"
    assert study(capsys, "export", str(lines), "--store", str(store))[0] == 0
    assert "24 records are new" in study(capsys, "import", str(lines), "--store", str(other))[1]
    assert "0 records are new" in study(capsys, "import", str(lines), "--store", str(other))[1]
    assert Store(other).status() == Store(store).status()


def test_an_interrupt_says_that_nothing_is_lost(capsys, runner, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "run_suite", interrupted)
    words = ("run", "quick", "--seeds", "1", "--datasets", "slump", "--store", str(tmp_path / "r"))
    code, _, error = study(capsys, *words)
    assert code == 130
    assert "The same command resumes" in error


def test_the_program_runs_as_a_module(store):
    command = [sys.executable, "-m", "studies.tabular", "status", "--store", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "convex-potential" in done.stdout
