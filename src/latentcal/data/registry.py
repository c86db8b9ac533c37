"""The tabular data sets by name: size, rules of reading, licence and source, and where their files lie."""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER_VARIABLE = "LATENTCAL_DATA"
MAX_ROWS = 50_000  # that one run uses; the sizes of the entries count no more


@dataclass(frozen=True)
class DatasetEntry:
    """What is known about a data set before its file is read.

    Args:
        name: full name.
        abbreviation: the paper's three letters; empty for a set that is not the paper's.
        file: path inside the data folder.
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
        note: what else to know before using it.
        how_to_get: what to do where the file is missing.
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
    note: str = ""
    how_to_get: str = ""
    available: bool = False


class Listing(tuple[DatasetEntry, ...]):
    """Entries in the order of the paper's table; prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        lines = [f"{'name':14} {'abbr.':5} {'n':>6} {'p':>4} {'d':>3}  {'here':4}  licence"]
        for entry in self:
            n, p, d = entry.shape
            here = "yes" if entry.available else "no"
            remark = "" if entry.comparable else " (not comparable with the paper's)"
            abbreviation = entry.abbreviation or "-"
            size = f"{n:6} {p:4} {d:3}"
            lines.append(f"{entry.name:14} {abbreviation:5} {size}  {here:4}  {entry.licence}{remark}")
        return "\n".join(lines)


def list_datasets(folder: str | os.PathLike[str] | None = None) -> Listing:
    """Every known data set with its size, licence and source, and whether its file is in the data folder.

    Args:
        folder: the data folder; by default the one named by the variable LATENTCAL_DATA. Where neither is
            given, no set counts as available.

    Examples:
        >>> [(entry.name, entry.shape) for entry in list_datasets()][:2]
        [('slump', (103, 7, 3)), ('edm', (154, 16, 2))]
    """
    if folder is None and not os.environ.get(FOLDER_VARIABLE):
        return Listing(ENTRIES)
    root = data_folder(folder)
    return Listing(replace(entry, available=(root / entry.file).is_file()) for entry in ENTRIES)


def find(name: str) -> DatasetEntry:
    """The entry of a data set by its full name or the paper's abbreviation, in any case."""
    entry = _BY_NAME.get(name.lower())
    if entry is None:
        close = difflib.get_close_matches(name.lower(), _BY_NAME, n=3)
        guess = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ValueError(f"There is no data set {name!r}. {guess}latentcal.data.list() shows all of them.")
    return entry


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the data files: the argument, else the variable LATENTCAL_DATA."""
    named = os.environ.get(FOLDER_VARIABLE) if folder is None else folder
    if not named:
        raise FileNotFoundError(
            "Where the data lie is not known. "
            f"Set the environment variable {FOLDER_VARIABLE} to the folder that holds them, or pass folder=."
        )
    root = Path(named).expanduser()
    if not root.is_dir():
        origin = f"the variable {FOLDER_VARIABLE}" if folder is None else "folder="
        raise FileNotFoundError(f"The data folder {root}, named by {origin}, does not exist.")
    return root


def locate(entry: DatasetEntry, folder: str | os.PathLike[str] | None = None) -> Path:
    """Path of the file of a data set, whose checksum is right where the folder has a list of them.

    Raises:
        FileNotFoundError: no folder, or no such file in it; the message says what to put where.
        ValueError: the file is not the one listed in ``SHA256SUMS``.
    """
    try:
        root = data_folder(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} {entry.name} is the file {entry.file} in it.") from None
    path = root / entry.file
    if not path.is_file():
        advice = entry.how_to_get or f"It comes from: {entry.source}."
        raise FileNotFoundError(
            f"The data set {entry.name} needs the file {path}, which is not there. {advice}"
        )
    expected = _checksums(root).get(entry.file)
    if expected is not None:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise ValueError(
                f"{path} is damaged or another version: its SHA-256 is {found}, {root / 'SHA256SUMS'} says "
                f"{expected}. Fetch the file again. It comes from: {entry.source}."
            )
    return path


def _checksums(root: Path) -> dict[str, str]:
    """SHA-256 by relative path, from lines ``<hex>  <path>``; empty where the folder has no list."""
    listing = root / "SHA256SUMS"
    if not listing.is_file():
        return {}
    lines = (line.split(maxsplit=1) for line in listing.read_text().splitlines() if line.strip())
    return {path.strip().lstrip("*"): digest.lower() for digest, path in lines}


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


ENTRIES: tuple[DatasetEntry, ...] = (
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
        note="A stand-in: the paper draws from January 2016 alone, which here are rows 0 to 14,775. "
        "The names of the columns are the original ones: *_lat holds the longitude, *_lon the latitude.",
    ),
)

_BY_NAME = {key.lower(): entry for entry in ENTRIES for key in (entry.name, entry.abbreviation) if key}
