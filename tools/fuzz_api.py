"""Random calls of the public functions; each must give an answer or a clear error.

    python tools/fuzz_api.py --write            20,000 calls, counts by function
    python tools/fuzz_api.py --case 1234        repeat one call and print its arguments

A call is determined by its number. ``--write`` writes the counts to ``tools/results/fuzz_api.csv``; with
``--add``, they are added to the existing counts of other numbers or of one function (``--only``). Calls with
a bad outcome are printed with their numbers, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import collections
import csv
import os
import random
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import torch  # noqa: E402

from call_table import EFFORT, TABLE  # noqa: E402
from outcomes import BAD, GOOD, Outcome, judge  # noqa: E402
from strategies import Draw  # noqa: E402

RESULTS = HERE / "results" / "fuzz_api.csv"
SHOWN = 300


def function_of(number: int, only: str | None) -> tuple[str, random.Random]:
    """The function of a case (cheap ones are more frequent), and its source of randomness."""
    source = random.Random(number)
    names = [name for name in TABLE if only is None or only in name]
    return source.choices(names, [EFFORT[name] ** -0.6 for name in names])[0], source


def run(number: int, only: str | None = None) -> tuple[str, Outcome]:
    name, source = function_of(number, only)
    torch.manual_seed(number)
    draw = Draw(source)
    return name, judge(TABLE[name](draw), draw)


def show(number: int, only: str | None) -> None:
    name, source = function_of(number, only)
    draw = Draw(source)
    call = TABLE[name](draw)
    print(name, *(f"\n  {key} = {value!r}" for key, value in call.arguments.items()))
    print("must be refused:", draw.refused or "no", "| must be answered:", call.answers and draw.ordinary)
    print(judge(call, draw))
    torch.manual_seed(number)
    try:
        print(call.run())
    except Exception:
        traceback.print_exc()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", help="only functions whose name contains this")
    parser.add_argument("--case", type=int, help="one case, in detail")
    parser.add_argument("--write", action="store_true", help="write the counts")
    parser.add_argument("--add", action="store_true", help="add the counts to those in the file")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case is not None:
        show(options.case, options.only)
        return
    counts: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in sorted(TABLE)}
    start, spent = time.process_time(), collections.Counter[str]()
    wrong = 0
    for number in range(options.first, options.first + options.calls):
        before = time.process_time()
        name, outcome = run(number, options.only)
        spent[name] += time.process_time() - before
        counts[name][outcome.kind] += 1
        if outcome.kind in BAD:
            wrong += 1
            if wrong <= SHOWN:
                print(f"{number} {name}: {outcome.kind}: {outcome.detail[:400]}", flush=True)
    seconds = time.process_time() - start
    kinds = (*GOOD, *BAD)
    total = collections.Counter[str]()
    for count in counts.values():
        total.update(count)
    print(f"{options.calls} calls of {len(TABLE)} functions in {seconds:.0f} s of the processor")
    print(*(f"{kind}: {total[kind]}" for kind in kinds), sep="\n")
    print("costliest:", *(f"{name} {s:.0f} s" for name, s in spent.most_common(6)), sep="  ")
    if options.add and options.results.exists():
        with options.results.open(newline="") as file:
            for row in csv.DictReader(file):
                known = collections.Counter({kind: int(row[kind]) for kind in kinds})
                (total if row["function"] == "all" else counts[row["function"]]).update(known)
    if options.write or options.add:
        with options.results.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["function", "calls", *kinds])
            for name, count in (*counts.items(), ("all", total)):
                writer.writerow([name, count.total(), *(count[kind] for kind in kinds)])
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
