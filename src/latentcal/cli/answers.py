"""Commands that predict for the rows of a file: ``predict``, ``sample``, ``regions``, ``probability``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .._internal.chunks import CACHE, rows_at_a_time
from .._internal.wording import counted
from . import options
from .messages import Progress, say

if TYPE_CHECKING:
    from .model import Model
    from .reading import Chunk, Source

_ROWS = 2000  # most rows in a batch: few, so that progress is visible
_FIRST_ROWS = 16  # first rows, from which the total time is estimated
_PIECE = 0.5  # seconds for each batch
_DRAWN = 400_000  # numbers drawn at a time; changing it changes the draws
_VOLUME = 256  # points to estimate each volume


@dataclass(frozen=True)
class Request:
    """A model, the rows of a file to predict for, and where to write the predictions.

    Args:
        folder: folder of the model.
        source: the file.
        keep: columns of the file to copy.
        raw: whether their text is copied unchanged; see ``table_writer``.
        out: file to write; standard output if None.
        as_json: print JSON lines; with ``out``, print a summary of what was written.
    """

    folder: Path
    source: Source
    keep: Sequence[str]
    raw: bool
    out: Path | None
    as_json: bool

    @cached_property
    def model(self) -> Model:
        """The model."""
        from .model import load_model

        return load_model(self.folder)

    def stream(
        self,
        what: str,
        answer: Callable[[Chunk], dict[str, Any]],
        names: Sequence[str],
        *,
        targets: bool | Literal["any"] = False,
        repeat: int = 1,
        size: int = _ROWS,
        divisible: bool = False,
    ) -> None:
        """Write the answers with the row numbers and the columns to keep.

        Args:
            what: what is being done, for the progress line.
            answer: function from some rows to columns of answers, with ``repeat`` lines for each row.
            names: names of these columns.
            targets: whether targets are read too; ``"any"`` keeps rows with missing targets.
            repeat: number of lines for each row.
            size: number of rows at a time.
            divisible: whether the answers are independent of the batch size; batches then start small and
                grow to about a second of work.
        """
        import numpy as np

        from .output import json_text, table_writer
        from .reading import chunks

        self._check_names(["row", *names])
        done = 0
        with (
            table_writer(self.out, as_json=self.as_json, raw=self.raw) as write,
            Progress(what, self.source.total, printing=self.out is None) as progress,
        ):
            read = chunks(self.source, self.model.rules, targets=targets, keep=self.keep, size=size)
            for rows in _pace(read) if divisible else read:
                if not len(rows.x):
                    continue
                head = {name: np.repeat(column, repeat) for name, column in rows.head.items()}
                write({**head, **answer(rows)})
                done += len(rows.x)
                progress.advance(len(rows.x))
        if self.out is not None and self.as_json:
            click.echo(json_text({"out": self.out, "rows": done, "columns": ["row", *self.keep, *names]}))
        elif self.out is not None:
            say(f"Wrote {self.out} ({counted(done, 'row')}).")

    def _check_names(self, names: Sequence[str]) -> None:
        """Raise if a column to keep is missing, or two columns of the result would have the same name."""
        from .._internal.wording import check_names, list_names
        from ..tables import column_names

        if self.keep:
            try:
                check_names(self.keep, column_names(self.source.path, **self.source.form))
            except ValueError as error:
                raise click.ClickException(f"--keep: {error}") from error
        if both := sorted({*self.keep} & {*names}):
            raise click.ClickException(
                f"--keep: {list_names(both)} would be both kept columns and columns of the result; rename "
                "them in the file."
            )
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise click.ClickException(
                f"The names {list_names(twice)} would each occur twice; rename the targets and fit again."
            )


def _pace(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same rows in pieces, whose size doubles until one takes half a second to process."""
    size = _FIRST_ROWS
    for chunk in chunks:
        start = 0
        while start < len(chunk.x):
            begin = time.monotonic()
            piece = chunk.slice(start, start + size)
            yield piece
            start += size
            if len(piece.x) == size and time.monotonic() - begin < _PIECE:
                size *= 2


@click.command()
@click.option(
    "--quantiles",
    type=options.Levels(),
    default="0.05,0.5,0.95",
    show_default=True,
    help="Quantile levels for each target.",
)
@options.count(
    "--draws", 128, "Latent points for each prediction; more points are more precise but slower.", least=2
)
@options.answers
def predict(request: Request, quantiles: Sequence[float], draws: int) -> None:
    """Predict the mean and quantiles of each target.

    The output has one line for each row: its number in the file (counted from 0), the columns of --keep, and
    for each target NAME_mean, NAME_q0.05 and so on, in the units of the data. The file needs only the
    features, in any order. Use - to read from standard input.

    \b
    Examples:
        latentcal predict model/ new.csv > predictions.csv
        latentcal predict model/ new.csv --keep id --quantiles 0.1,0.5,0.9 --out predictions.parquet
        latentcal predict model/ new.csv --json | head -3
        zcat new.csv.gz | latentcal predict model/ - > predictions.csv
    """
    import numpy as np

    from .._internal.hints import ArgumentError
    from ..estimator import check_levels

    try:
        check_levels(quantiles, draws)
    except ArgumentError as error:
        raise click.UsageError(error.as_options()) from error
    predictor, targets = request.model.estimator, request.model.targets
    predictor.draws = draws
    predictor.output_names_ = None  # arrays: loading pandas takes longer than predicting a row
    names = [f"{name}_{what}" for name in targets for what in ("mean", *(f"q{q:g}" for q in quantiles))]

    def answer(rows: Chunk) -> dict[str, Any]:
        mean, levels = predictor.predict_with_quantiles(rows.x, quantiles)
        values = np.concatenate([np.asarray(mean)[None], levels])  # (1 + k, n, d)
        return dict(zip(names, values.transpose(2, 0, 1).reshape(len(names), -1), strict=True))

    request.stream("predicting", answer, names, divisible=True)


@click.command()
@options.count("--draws", 100, "Number of draws for each row.")
@options.seed
@options.answers
def sample(request: Request, draws: int, seed: int) -> None:
    """Draw from the predictive distribution of each row.

    The output has one line for each draw: the number of the row in the file, the columns of --keep, the
    number of the draw, and the targets, drawn jointly.

    \b
    Examples:
        latentcal sample model/ new.csv --draws 1000 --out draws.parquet
        latentcal sample model/ new.csv --draws 1 --seed 7
    """
    import numpy as np

    model = request.model
    d = len(model.targets)

    def answer(rows: Chunk) -> dict[str, Any]:
        state = int(np.random.SeedSequence([seed, int(rows.head["row"][0])]).generate_state(1)[0])
        values = model.estimator.sample(rows.x, draws, random_state=state)  # (s, n, d)
        columns = dict(zip(model.targets, values.transpose(1, 0, 2).reshape(-1, d).T, strict=True))
        return {"draw": np.tile(np.arange(draws), len(rows.x)), **columns}

    size = min(_ROWS, rows_at_a_time(draws * d, _DRAWN))
    request.stream("drawing", answer, ["draw", *model.targets], repeat=draws, size=size)


@click.command()
@click.option(
    "--coverage", type=click.FloatRange(0, 1, True, True), default=0.9, show_default=True, help="Probability."
)
@click.option(
    "--inside/--no-inside",
    default=None,
    help="Report whether targets lie inside; by default, if the file has them.",
)
@click.option("--volume", is_flag=True, help="Also write the logarithm of each region's volume.")
@click.option(
    "--exact", is_flag=True, help="Compute the ends of each region more precisely (about 100 times slower)."
)
@options.answers
def regions(request: Request, coverage: float, inside: bool | None, volume: bool, exact: bool) -> None:
    """Give each row a region with guaranteed coverage.

    Each region is for all targets jointly. The output has one line for each row: the ends of the region,
    NAME_low and NAME_high for each target (found by a search from inside; --exact is closer), and whether the
    targets lie inside, if the file has them. The coverage is that of the joint region, and is guaranteed on
    average over rows like the calibration rows. If `fit` had fewer than 1,000 rows and held them out in turn,
    it is only approximate until the model is recalibrated on new rows. Rows with missing targets also get a
    region.

    \b
    Examples:
        latentcal regions model/ new.csv --coverage 0.9 > regions.csv
        latentcal regions model/ test.csv --keep id --volume --out regions.parquet
    """
    import numpy as np
    import torch

    model = request.model
    check = request.source.has(model.targets) if inside is None else inside
    found = np.zeros(2, dtype=np.int64)  # number of rows, and of rows inside
    names = [f"{name}_{end}" for name in model.targets for end in ("low", "high")]
    names += ["inside"] * check + ["log_volume"] * volume

    def answer(rows: Chunk) -> dict[str, Any]:
        predicted = model.estimator.predict_region(rows.x, coverage)
        ends = np.stack(predicted.bounds(quick=not exact), -1)
        values = list(ends.reshape(len(ends), -1).T)
        if check:
            assert rows.y is not None
            known = ~rows.y.isnan().any(1).numpy()
            within = predicted.contains(rows.y.nan_to_num()) & known
            values.append(np.where(known, within, None))
            found[:] += known.sum(), within.sum()
        if volume:
            generator = torch.Generator().manual_seed(0)
            volumes = predicted.region.volume(predicted.x, samples=_VOLUME, generator=generator)
            values.append(volumes.log_value.numpy())
        return dict(zip(names, values, strict=True))

    request.stream("regions", answer, names, targets="any" if check else False, size=500)
    if found[0]:
        share = 100 * found[1] / found[0]
        say(
            f"{found[1]:,} of {found[0]:,} rows ({share:.1f} %) lie inside their {100 * coverage:g} % region."
        )


@click.command()
@click.option("--where", required=True, help="Condition on the targets, as described above.")
@click.option(
    "--samples",
    type=click.Choice([str(32 << k) for k in range(3, 14)]),
    default="4096",
    show_default=True,
    help="Number of points to compute each probability.",
)
@options.answers
def probability(request: Request, where: str, samples: str) -> None:
    """Give the probability of a condition on the targets.

    Conditions compare targets, or sums of them, by <, <=, >, >= and can be combined with and, or, not and
    parentheses: "a > 1 and b < 2", "a + 2*b <= 3 or not (0 < a < 1)". Put names that are not plain words in
    quotes, as in the third example. If targets are counts, are rounded or have atoms, their single values
    have a probability: = and != are allowed, and < differs from <=. The output has one line for each row: the
    probability and its numerical standard error.

    \b
    Examples:
        latentcal probability model/ new.csv --where "rent > 1000 and heating < 80"
        latentcal probability model/ new.csv --where "rent + heating > 1500" --keep id --out risk.csv
        latentcal probability model/ new.csv --where "'net rent' > 1000"
        latentcal probability model/ new.csv --where "visits = 0"
    """
    import numpy as np

    from .where import WhereError, parse_where

    model = request.model
    try:
        region = parse_where(where, model.targets, model.estimator.outputs_)
    except WhereError as error:
        raise click.UsageError(f"--where: {error}") from error
    points = int(samples)
    together = rows_at_a_time(points, 4 * CACHE)

    def answer(rows: Chunk) -> dict[str, Any]:
        parts = [
            model.estimator.probability(x, region, return_error=True, samples=points)
            for x in rows.x.split(together)
        ]
        value, error = (np.concatenate(part) for part in zip(*parts, strict=True))
        return {"probability": value, "error": error}

    request.stream("probabilities", answer, ["probability", "error"], size=min(_ROWS, 16 * together))
