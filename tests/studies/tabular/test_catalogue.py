"""The list of data sets: the paper's table, names, and messages that say which file to put where."""

import hashlib

import pytest

from studies.tabular import datasets

# Name, abbreviation, rows, features, targets: the paper's table of data sets.
PAPER = """
slump SLU 103 7 3          edm EDM 154 16 2           atp7d AT2 296 355 6       sf1 SF1 323 31 3
oes97 OE2 334 263 16       atp1d AT1 337 354 6        jura JUR 359 15 3         oes10 OE1 403 298 16
enb ENB 768 3 2            wq WQ 1060 16 14           sf2 SF2 1066 31 3         scpf SCP 1137 8 3
ansur2 ANS 1986 1 2        households HO2 7207 14 4   scm20d SC2 8966 60 16     rf1 RF1 9005 64 8
scm1d SC1 9803 279 16      births2 BI2 10000 24 4     air AIR 10000 15 6        births1 BI1 10000 23 2
wage WAG 10000 78 2        meps_21 ME3 15656 138 2    meps_19 ME1 15785 138 2   meps_20 ME2 17541 138 2
house HO1 21613 17 2       bio BIO 45730 8 2          blog_data BLO 50000 269 2 calcofi CAL 50000 1 2
taxi TAX 50000 4 2
"""
CELLS = PAPER.split()
TABLE = [
    (CELLS[i], CELLS[i + 1], tuple(int(number) for number in CELLS[i + 2 : i + 5]))
    for i in range(0, len(CELLS), 5)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder, named by the variable."""
    monkeypatch.setenv("LATENTCAL_DATA", str(tmp_path))
    return tmp_path


def put(folder, name, content=b"something"):
    path = folder / datasets.find(name).file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_comparable_sets_are_those_of_the_papers_table():
    comparable = [entry for entry in datasets.ENTRIES if entry.comparable]
    assert len(TABLE) == 29
    assert [(entry.name, entry.abbreviation, entry.shape) for entry in comparable] == TABLE


def test_the_part_of_scm1d_is_a_set_of_its_own_that_says_it_is_not_comparable():
    partial, complete = datasets.find("scm1d_partial"), datasets.find("SC1")
    assert complete.name == "scm1d"
    assert not partial.comparable
    assert partial.shape == (5756, 256, 16)
    assert "not comparable" in partial.note


@pytest.mark.parametrize(("name", "abbreviation"), [row[:2] for row in TABLE])
def test_a_set_is_found_by_name_and_by_abbreviation_in_any_case(name, abbreviation):
    for key in (name, name.upper(), abbreviation, abbreviation.lower()):
        assert datasets.find(key).name == name


def test_every_entry_says_licence_and_source_and_has_a_file_of_its_own():
    assert all(entry.licence and entry.source for entry in datasets.ENTRIES)
    assert len({entry.file for entry in datasets.ENTRIES}) == len(datasets.ENTRIES)


@pytest.mark.parametrize("name", ["", "nothing like it"])
def test_an_unknown_name_is_an_error(name):
    with pytest.raises(ValueError, match=r"There is no data set .*list_datasets\(\)"):
        datasets.find(name)


def test_a_misspelt_name_is_an_error_that_guesses_the_right_one():
    with pytest.raises(ValueError, match="Did you mean 'households'"):
        datasets.find("household")


def test_the_listing_shows_which_files_are_there(folder):
    put(folder, "bio")
    assert [entry.name for entry in datasets.list_datasets() if entry.available] == ["bio"]
    lines = str(datasets.list_datasets()).splitlines()
    assert len(lines) == 1 + len(datasets.ENTRIES)
    (bio,) = [line.split() for line in lines if line.startswith("bio ")]
    assert bio[:7] == ["bio", "BIO", "45730", "8", "2", "yes", "yes"]
    (partial,) = [line for line in lines if line.startswith("scm1d_partial ")]
    assert partial.split()[5:7] == ["no", "no"]
    assert "not comparable with the paper's" in partial


def test_a_file_may_lie_in_the_folder_uncompressed(folder):
    path = put(folder, "bio").rename(folder / "feldman/bio.csv")
    assert datasets.locate(datasets.find("bio")) == path
    assert [entry.name for entry in datasets.list_datasets() if entry.available] == ["bio"]


def test_the_listing_needs_no_folder(monkeypatch):
    monkeypatch.delenv("LATENTCAL_DATA", raising=False)
    assert len(datasets.list_datasets()) == 30
    assert not any(entry.available for entry in datasets.list_datasets())


def test_the_argument_goes_before_the_variable(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    path = put(other, "bio")
    assert datasets.locate(datasets.find("bio"), other) == path
    with pytest.raises(FileNotFoundError):
        datasets.locate(datasets.find("bio"))


def test_without_a_folder_the_error_names_the_variable_and_the_file(monkeypatch):
    monkeypatch.delenv("LATENTCAL_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"LATENTCAL_DATA.*folder=.*wang/taxi\.csv\.gz"):
        datasets.load("taxi")


def test_a_folder_that_does_not_exist_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nowhere, named by folder=, does not exist"):
        datasets.load("bio", tmp_path / "nowhere")
    monkeypatch.setenv("LATENTCAL_DATA", str(tmp_path / "lost"))
    with pytest.raises(
        FileNotFoundError, match=r"lost, named by the variable LATENTCAL_DATA, does not exist"
    ):
        datasets.list_datasets()


def test_a_missing_file_is_named_with_its_source(folder):
    with pytest.raises(FileNotFoundError, match="which is not there") as error:
        datasets.load("HO1")
    assert str(folder / "feldman/house.csv.gz") in str(error.value)
    assert "King County" in str(error.value)


@pytest.mark.parametrize(("panel", "survey"), [(19, "h181"), (20, "h181"), (21, "h192")])
def test_a_missing_meps_file_is_an_error_that_tells_the_whole_way(folder, panel, survey):
    with pytest.raises(FileNotFoundError) as error:
        datasets.load(f"meps_{panel}")
    message = str(error.value)
    for word in (
        str(folder / f"feldman/meps_{panel}.csv.gz"),
        "data use agreement",
        survey,
        f"meps_{panel}_reg.csv",
        "yromano/cqr",
        "row index",
        "K6SUM42 and UTILIZATION_reg",
        "must not be passed on",
    ):
        assert word in message


def test_the_missing_complete_scm1d_is_an_error_that_tells_where_it_comes_from(folder):
    with pytest.raises(FileNotFoundError, match=r"tsoumakas/mulan.*scm1d_partial.*not comparable") as error:
        datasets.load("scm1d")
    assert str(folder / "mulan/scm1d.arff.gz") in str(error.value)


def test_a_file_that_differs_from_its_checksum_is_an_error(folder):
    path = put(folder, "bio")
    digest = hashlib.sha256(b"something").hexdigest()
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  other.csv.gz\n{digest}  feldman/bio.csv.gz\n\n")
    assert datasets.locate(datasets.find("bio")) == path
    path.write_bytes(b"something else")
    with pytest.raises(
        ValueError, match=r"damaged or another version.*SHA256SUMS says.*Fetch the file again"
    ):
        datasets.locate(datasets.find("bio"))


def test_a_file_without_a_checksum_is_not_checked(folder):
    path = put(folder, "bio")
    assert datasets.locate(datasets.find("bio")) == path
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  other.csv.gz\n")
    assert datasets.locate(datasets.find("bio")) == path


def test_nine_of_the_comparable_sets_have_heavy_atoms():
    heavy = [entry for entry in datasets.list_datasets() if entry.heavy_atoms]
    assert len(heavy) == 9
    assert all(entry.comparable for entry in heavy)
