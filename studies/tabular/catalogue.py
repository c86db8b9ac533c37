"""The data sets of the paper's study, one entry each: size, rules of reading, licence, source, mirrors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from ..study_files import RemoteFile

MAX_ROWS = 50_000  # that one run uses; the sizes of the entries count no more


@dataclass(frozen=True)
class DatasetEntry:
    """Description of a data set, without reading its file.

    Args:
        name: full name.
        abbreviation: the paper's three letters; empty for a set that is not the paper's.
        file: path inside the data folder; it may lie there uncompressed, too, without the ending ``.gz``.
        shape: (n, p, d) after preprocessing: rows (at most 50,000), features, targets.
        targets: a number k for the last k columns, in file order; or the names of the targets, and then the
            features are all other columns in sorted order.
        licence: of the data.
        source: where the file comes from.
        header: whether the first line of a csv file names the columns; else they are column_000, column_001
            and so on.
        index_column: whether the first column only counts the rows, and goes.
        drop: columns that go before anything else.
        complete_rows: whether rows with any missing value go before anything else.
        comparable: whether results on it can be compared with the paper's.
        same_rows: whether the rows are, as far as is known, those that the paper draws from.
        heavy_atoms: whether a target has the same value in more than half of the rows. The NLL of a density
            then mainly says how long it was trained.
        note: what else to know before using it.
        how_to_get: what to do where the file is missing.
        remote: the uncompressed file on the web; None where no public address of exactly this file is known,
            or where the licence asks every user to fetch it himself.
        available: whether the file is in the data folder (set by ``list_datasets``).
    """

    name: str
    abbreviation: str
    file: str
    shape: tuple[int, int, int]
    targets: int | tuple[str, ...]
    licence: str
    source: str
    header: bool = True
    index_column: bool = False
    drop: tuple[str, ...] = ()
    complete_rows: bool = False
    comparable: bool = True
    same_rows: bool = True
    heavy_atoms: bool = False
    note: str = ""
    how_to_get: str = ""
    remote: RemoteFile | None = None
    available: bool = False


_MULAN = "Mulan's multi-target regression data (github.com/tsoumakas/mulan, data/multi-target)"
_MULAN_COPY = f"{_MULAN}, as kept in github.com/Zhendong-Wang/Probabilistic-Conformal-Prediction"
_PAPER = "unchanged from github.com/Vekteur/latent-recalibration"
_DRF = f"github.com/lorismichel/drf, {_PAPER}"
_PROCESSED = "data public domain; processing GPL-3.0"
_MEPS_SOURCE = "Medical Expenditure Panel Survey of the US AHRQ, file {file} (panel {panel})"
_MEPS_HOW = (
    "The survey is under a data use agreement: read it, download the file {file} of the Medical Expenditure "
    "Panel Survey from AHRQ (meps.ahrq.gov) yourself, make meps_{panel}_reg.csv with the steps of "
    "get_meps_data in github.com/yromano/cqr, and save it, compressed with gzip, under that path. Its first "
    "column is the row index; its targets are K6SUM42 and UTILIZATION_reg. It must not be passed on against "
    "the agreement."
)


def _mulan(
    name: str,
    abbreviation: str,
    shape: tuple[int, int, int],
    source: str = f"{_MULAN}, {_PAPER}",
    how_to_get: str = "",
) -> DatasetEntry:
    file = f"mulan/{name}.arff.gz"
    return DatasetEntry(name, abbreviation, file, shape, shape[2], "GPL", source, how_to_get=how_to_get)


def _cevid(name: str, abbreviation: str, shape: tuple[int, int, int], survey: str) -> DatasetEntry:
    file = f"cevid/{name}.csv.gz"
    return DatasetEntry(name, abbreviation, file, shape, shape[2], _PROCESSED, f"{survey}, from {_DRF}")


def _meps(panel: int, abbreviation: str, shape: tuple[int, int, int], file: str) -> DatasetEntry:
    return DatasetEntry(
        f"meps_{panel}",
        abbreviation,
        f"feldman/meps_{panel}.csv.gz",
        shape,
        ("K6SUM42", "UTILIZATION_reg"),
        "AHRQ data use agreement",
        _MEPS_SOURCE.format(file=file, panel=panel),
        index_column=True,
        how_to_get=_MEPS_HOW.format(file=file, panel=panel),
    )


_ENTRIES = (
    _mulan("slump", "SLU", (103, 7, 3)),
    _mulan("edm", "EDM", (154, 16, 2)),
    _mulan("atp7d", "AT2", (296, 355, 6)),
    _mulan("sf1", "SF1", (323, 31, 3)),
    _mulan("oes97", "OE2", (334, 263, 16)),
    _mulan("atp1d", "AT1", (337, 354, 6)),
    _mulan("jura", "JUR", (359, 15, 3)),
    _mulan("oes10", "OE1", (403, 298, 16)),
    _mulan("enb", "ENB", (768, 3, 2)),
    _mulan("wq", "WQ", (1060, 16, 14)),
    _mulan("sf2", "SF2", (1066, 31, 3)),
    _mulan("scpf", "SCP", (1137, 8, 3)),
    DatasetEntry(
        "ansur2",
        "ANS",
        "del_barrio/ansur2.csv.gz",
        (1986, 1, 2),
        2,
        "public domain",
        f"US Army anthropometric survey ANSUR II, from the Open Design Lab, {_PAPER}",
        complete_rows=True,
    ),
    DatasetEntry(
        "households",
        "HO2",
        "camehl/households.csv.gz",
        (7207, 14, 4),
        ("inc", "food", "house", "utili"),
        _PROCESSED,
        f"US BLS Consumer Expenditure Survey, from github.com/aschnuecker/Superlevel-sets, {_PAPER}",
        index_column=True,
        drop=("newid", "inc.a"),
    ),
    _mulan("scm20d", "SC2", (8966, 60, 16), _MULAN_COPY),
    _mulan("rf1", "RF1", (9005, 64, 8), _MULAN_COPY),
    _mulan(
        "scm1d",
        "SC1",
        (9803, 279, 16),
        _MULAN,
        "Take scm1d.arff (9,803 rows, 280 features, then 16 targets) from github.com/tsoumakas/mulan, "
        "data/multi-target, and save it, compressed with gzip, under that path. The set scm1d_partial has "
        "part of its rows and features; results on it are not comparable with the paper's.",
    ),
    DatasetEntry(
        "scm1d_partial",
        "",
        "mulan/scm1d_partial.csv.gz",
        (5756, 256, 16),
        16,
        "GPL",
        f"{_MULAN}, pieced together from github.com/gkremling/FLOWGEM and "
        "github.com/hasbiahmad11/semiconductor_prediction",
        comparable=False,
        note="5,756 of the 9,803 rows and 256 of the 280 features of scm1d: "
        "results are not comparable with the paper's.",
    ),
    _cevid("births2", "BI2", (10000, 24, 4), "US CDC birth records"),
    _cevid("air", "AIR", (10000, 15, 6), "US EPA air quality measurements"),
    _cevid("births1", "BI1", (10000, 23, 2), "US CDC birth records"),
    _cevid("wage", "WAG", (10000, 78, 2), "American Community Survey"),
    _meps(21, "ME3", (15656, 138, 2), "h192"),
    _meps(19, "ME1", (15785, 138, 2), "h181"),
    _meps(20, "ME2", (17541, 138, 2), "h181"),
    DatasetEntry(
        "house",
        "HO1",
        "feldman/house.csv.gz",
        (21613, 17, 2),
        ("lat", "price"),
        "CC BY 4.0 as stated by the paper's repository",
        f"King County house sales, {_PAPER}",
    ),
    DatasetEntry(
        "bio",
        "BIO",
        "feldman/bio.csv.gz",
        (45730, 8, 2),
        ("F7", "F9"),
        "CC BY 4.0",
        f"UCI Physicochemical Properties of Protein Tertiary Structure, {_PAPER}",
    ),
    DatasetEntry(
        "blog_data",
        "BLO",
        "feldman/blog_data.csv.gz",
        (50000, 269, 2),
        ("column_060", "column_280"),
        "CC BY 4.0",
        "blogData_train.csv of UCI BlogFeedback, as kept in github.com/bbengfort/hadoop-fundamentals",
        header=False,
    ),
    DatasetEntry(
        "calcofi",
        "CAL",
        "del_barrio/calcofi.csv.gz",
        (50000, 1, 2),
        ("Salnty", "T_degC"),
        "CC BY 4.0",
        "bottle database of the California Cooperative Oceanic Fisheries Investigations, "
        "from github.com/CalCOFI/calcofi4r",
        complete_rows=True,
        same_rows=False,
        note="A random subset of the present database; the paper's own file could not be compared with it.",
    ),
    DatasetEntry(
        "taxi",
        "TAX",
        "wang/taxi.csv.gz",
        (50000, 4, 2),
        2,
        "public domain",
        "New York City Taxi & Limousine Commission, yellow cabs, January to June 2016, pieced together",
        same_rows=False,
        note="A stand-in: the paper draws from January 2016 alone, which here are rows 0 to 14,775. "
        "The names of the columns are the original ones: *_lat holds the longitude, *_lon the latitude.",
    ),
)

# SHA-256 of the uncompressed files. Left out are the sets whose licence asks every user to fetch the file
# himself (MEPS), those that were pieced together or drawn at random and lie nowhere in this form (taxi,
# calcofi, scm1d_partial), and the complete scm1d, of which no checksum is known.
_SUMS = """
8ee416404862dc199c7247ba207dd60c444eb37e9d4dfe76ea55319fa4607359  camehl/households.csv
63d90546808e08166159bac726f967d9584fd97513b47576f70bf599832c0012  cevid/air.csv
cb2b922b4c92e4dfa72afe96f1cd6302322687446b16d6f2a569dafffd350174  cevid/births1.csv
3d03e84eebe821e2c85ad1afd679b7816adb90a6fb49f02ddb1bf588490cbdb8  cevid/births2.csv
b41b26c21b83d7f166cf01b51c10645c09e2bd0e4fa1e232424d1f6fa5f30262  cevid/wage.csv
b76b24c41db056d6218e0616033276f018f89351a324089f16458aa6ad5fc53d  del_barrio/ansur2.csv
4277cfcb4e91a181746cbc654f001b57951c9e6a80f4f795fdb5c807e0848f40  feldman/bio.csv
f3cc953ea9913361be6d3bae2c393eef73eab57b1cb8e5bf8a22f1e5eb5dd05f  feldman/blog_data.csv
d0875baa0251b21d4bdc9d2ae940a4fe0bb6009824f23dd0e2a5b2bf04557b7e  feldman/house.csv
ed935ba476c4994ba40d6712d590fb389709cceba7cf7dbbb33ef28c84762bb9  mulan/atp1d.arff
77d59efdf4a6329c71c854684de7409d0d61d3bebccd6821ae268c1620c95b2d  mulan/atp7d.arff
37777374030f592a53cbcf597ae0aa6105238a1c696dd04ccb229be982f6bc5b  mulan/edm.arff
8277d9094ccda6da2cd1c2b79c90ca201fa3695e75aca173ffc43138dcab0071  mulan/enb.arff
78ce7655f49073e3622ef7ba25657b3900a2b279ba3d48cb82e353e56bac3d2a  mulan/jura.arff
37f9fa429f6f2ece2cdfd08e84649971e61ee0b4e75d66166c082bacf3d36251  mulan/oes10.arff
aee74aa656c709f797f45d817c41996be94c2e924c0f1e7ad315fb7e2f1a9498  mulan/oes97.arff
994f9e334811e040d2002e46d3ce06504e5d441249bf65448f53d6ea24b33cf0  mulan/rf1.arff
2261a94bff5cfb617dbd2e7fd2c17d15d45135103a081917d1358c2ad13a4bd2  mulan/scm20d.arff
f7d3c7b134c0e5ddff56a7900371cb44328f9b7f550203c4a556929203ea81e9  mulan/scpf.arff
8f78e64aca64f7c0c7ba4d9b2f114feb2a6f72e6116e87d7dab94e7cab426d93  mulan/sf1.arff
2c1ac60f3e612b0e0bc9884ffe98a205ce07ca83f3f89c019220fde350396795  mulan/sf2.arff
3a9a9eba416b06c7668153b44073a0e165afbfc9e526d53b174e5f97a707ca6c  mulan/slump.arff
4a0906b4a51bf52c986790ddaf261ba51faa3da9cffe823badabd88d38d252fe  mulan/wq.arff
"""

_GITHUB = "https://raw.githubusercontent.com"
_PAPER_FILES = f"{_GITHUB}/Vekteur/latent-recalibration/3d3f766ab87a314960f4a5231a0812e7cd35bc98/data"
_MULAN_FIRST = f"{_GITHUB}/tsoumakas/mulan/122fce8fbefdb292ba3acbb03867a7fc8f1dcaa9/data/multi-target"
_MULAN_SECOND = f"{_GITHUB}/tsoumakas/mulan/49efcccb0666c59f57d942c13c6184af028c7650/data/multi-target"
_SHORT_NUMBERS = (  # the same values in another number format than Mulan's own files
    f"{_GITHUB}/Zhendong-Wang/Probabilistic-Conformal-Prediction/"
    "e6f505beaf07f208cb496f85ac91fd37482677c6/data"
)
_SUPERLEVEL_SETS = f"{_GITHUB}/aschnuecker/Superlevel-sets/19b015bfc683e9dad6a7c7965eed7ae22e186e99"


def _urls(file: str) -> tuple[str, ...]:
    """Addresses of a file by its path in the data folder: where it comes from, then the paper's copy."""
    path = PurePosixPath(file)
    copy = f"{_PAPER_FILES}/{file}"
    if path.stem in ("rf1", "scm20d"):
        return (f"{_SHORT_NUMBERS}/{path.name}",)
    if path.stem == "households":
        return (f"{_SUPERLEVEL_SETS}/Matlab/CEX_2015_b.csv", copy)
    if path.parent.name == "mulan":
        folder = _MULAN_SECOND if path.stem in ("edm", "enb", "scpf", "wq") else _MULAN_FIRST
        return (f"{folder}/{path.name}", copy)
    return (copy,)


MIRRORS: dict[str, RemoteFile] = {
    PurePosixPath(file).stem: RemoteFile(file, sha256, _urls(file))
    for sha256, file in (line.split() for line in _SUMS.strip().splitlines())
}

_HEAVY_ATOMS = {"edm", "sf1", "oes97", "wq", "sf2", "scpf", "births2", "wage", "blog_data"}

ENTRIES: tuple[DatasetEntry, ...] = tuple(
    replace(entry, remote=MIRRORS.get(entry.name), heavy_atoms=entry.name in _HEAVY_ATOMS)
    for entry in _ENTRIES
)
