"""Damaged and forged model files; each must load unchanged, be refused clearly, or be another valid model.

    python tools/fuzz_files.py                  # 105,000 cases, writes results/fuzz_files.csv
    python tools/fuzz_files.py --first 4711 --cases 1   # repeat one case and print its outcome

An interrupted run resumes. The number of a case determines the model (one of every kind that can be saved),
the damage and its place. Two in five cases change bytes. The others edit the manifest or the tensors and
update the checksums, as an attacker would. Outcomes:

- identical answer: the loaded model answers as the saved model;
- clear error: ``ModelFileError``, or an error of the command line, in one line;
- valid edit: a changed number that is finite, has the type, shape and dtype of the original, is accepted by
  the checks of the constructors, and gives answers without NaN;
- another model: bit for bit the file that ``save`` writes for another valid model, such as another law with
  the same arguments;
- refused when asked: a valid edit or another model that answers these inputs with a ``ValueError``, for
  example because it has another number of features;
- other exception, silently different, hang (more than 5 s of computing), more than 1 GB: must not happen.
"""

from __future__ import annotations

import argparse
import copy
import csv
import hashlib
import json
import math
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent / "tests"))

import click  # noqa: E402
from safetensors.torch import load as from_safetensors  # noqa: E402
from safetensors.torch import save as as_safetensors  # noqa: E402

from latentcal._internal.names import CLASSES  # noqa: E402
from latentcal.files import ModelFileError  # noqa: E402
from model_kinds import Kind, model_kinds  # noqa: E402

OUTCOMES = (
    *("identical answer", "clear error", "valid edit", "another model", "refused when asked"),
    *("other exception", "silently different", "hang", "more than 1 GB"),
)
WRONG = OUTCOMES[5:]
SECONDS, BYTES = 5.0, 1 << 30
_BATCH = 1000  # cases that one process does
_LONGEST = 1000  # characters of an error
_NAMES = (*CLASSES, "RadiusLaw", "ConditionalFlow", "Score", "Norm", "LatentMap", "dict", "os.system", "")
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 4096, 10**7, 10**12, 2**63, 2**64, 10**40, -(10**7)),
    *(0.0, 0.5, 1.0, -1.5, 1e-320, 1e308, -1e308, 1e15),
    *({"float": "nan"}, {"float": "inf"}, {"float": "-inf"}, {"float": "1.0"}, {"float": 1.0}),
    *("", "x", "latentcal", "x" * 100_000, "\n\n\x00", "\ud800", [], [1], [[1.0, 2.0]], {}, {"x": 1}),
    *({"same": 0}, {"same": 1}, {"same": 99}, {"same": "0"}, {"function": "negative_log_density"}),
    *({"function": "eval"}, {"tensor": "model.none"}, {"tensor": 3}, {"class": "Chi"}),
    {"class": "Chi", "id": 900, "args": {"dim": 2}},
    {"class": "Fingerprint", "id": 901, "args": {"hashes": []}},
)

Document = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Files = tuple[bytes | None, bytes | None]
"""Content of the manifest and of the file of numbers; None if there is no such file."""


class Original:
    """A saved model: its files and its answers."""

    def __init__(self, name: str, kind: Kind, folder: Path) -> None:
        self.name, self.kind = name, kind
        kind.write(kind.model, folder)
        self.manifest = (folder / "model.json").read_bytes()
        self.document: Document = json.loads(self.manifest)
        self.numbers_name: str = self.document["numbers"]["file"]
        self.numbers = (folder / self.numbers_name).read_bytes()
        self.tensors: Tensors = dict(sorted(from_safetensors(self.numbers).items()))
        self.answer = kind.answer(kind.read(folder))


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def parent_of(node: Any, path: tuple[Any, ...]) -> Any:
    """The container of a place."""
    for key in path[:-1]:
        node = node[key]
    return node


# --- damage to bytes


def flip(rng: random.Random, content: bytes) -> bytes:
    """Flip some bits."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut(rng: random.Random, content: bytes) -> bytes:
    """Remove the end or a piece, or append bytes."""
    place = rng.randrange(len(content) + 1)
    end = min(len(content), place + rng.randrange(1, 65))
    return rng.choice(
        (content[:place], content[:place] + content[end:], content + rng.randbytes(8), content[place:], b"")
    )


def damage_bytes(rng: random.Random, own: Original, others: list[Original]) -> tuple[str, Files]:
    """Damage bytes without updating the checksums."""
    what = rng.choice(("bits", "bits", "truncation", "truncation", "swapped files", "missing file"))
    other, first = rng.choice(others), rng.random() < 0.5
    if what == "swapped files":
        manifest = other.manifest.replace(other.numbers_name.encode(), own.numbers_name.encode())
        return what, (manifest, own.numbers) if first else (own.manifest, other.numbers)
    if what == "missing file":
        return what, (None, own.numbers) if first else (own.manifest, None)
    change = flip if what == "bits" else cut
    if first:
        return what, (change(rng, own.manifest), own.numbers)
    return what, (own.manifest, change(rng, own.numbers))


# --- forged content with correct checksums


def edit_value(rng: random.Random, document: Document, tensors: Tensors, others: list[Original]) -> str:
    """Replace a value by another one, of the same or of any type."""
    path = rng.choice([*places(document)])
    holder = parent_of(document, path)
    old = holder[path[-1]]
    if type(old) in (int, float) and rng.random() < 0.6:
        factor = rng.choice((-1, 0.5, 1.01, 2, 10))
        new = rng.choice((old * factor, old + rng.choice((-1, 1, 0.125))))
        holder[path[-1]] = int(new) if type(old) is int else new
        return "number"
    holder[path[-1]] = copy.deepcopy(rng.choice(_VALUES))
    return "value"


def edit_key(rng: random.Random, document: Document, tensors: Tensors, others: list[Original]) -> str:
    """Remove, add or rename an entry; remove or duplicate an item."""
    path = rng.choice([*places(document)])
    holder, key = parent_of(document, path), path[-1]
    what = rng.choice(("missing", "extra", "renamed"))
    if isinstance(holder, list):
        if what == "missing":
            del holder[key]
        else:
            holder.insert(key, copy.deepcopy(holder[key]))
    elif what == "missing":
        del holder[key]
    elif what == "extra":
        holder[rng.choice(("extra", "base", "args", "state", "foreign", "id", "class", "dim"))] = rng.choice(
            _VALUES
        )
    else:
        holder[rng.choice((f"{key}_", str(key).upper(), "dim", "law"))] = holder.pop(key)
    return f"{what} key"


def edit_class(rng: random.Random, document: Document, tensors: Tensors, others: list[Original]) -> str:
    """Change the class or the number of an object, or replace it by an earlier object."""
    paths = [path for path in places(document) if isinstance(_at(document, path), dict)]
    objects = [_at(document, path) for path in paths if "id" in _at(document, path)]
    if not objects:
        return edit_value(rng, document, tensors, others)
    node = rng.choice(objects)
    what = rng.choice(("class", "class", "number", "cycle", "foreign"))
    if what == "class":
        node["class"] = rng.choice(_NAMES)
    elif what == "number":
        node["id"] = rng.choice((0, 1, -1, 10**9, "0", None, 2.0))
    elif what == "cycle":
        part = node.get("args") if isinstance(node.get("args"), dict) else node
        if part:
            part[rng.choice([*part])] = {"same": node["id"]}
    else:
        node["foreign"] = node.pop("class", "Flow")
        node.pop("args", None), node.pop("state", None)
    return f"another {what}"


def edit_tree(rng: random.Random, document: Document, tensors: Tensors, others: list[Original]) -> str:
    """Replace a part by another one of this or another model, or nest it in lists or laws."""
    path = rng.choice([*places(document)])
    holder = parent_of(document, path)
    what = rng.choice(("own part", "part of another", "deep lists", "deep laws"))
    if what == "deep lists":
        for _ in range(rng.choice((1, 2, 60, 500))):
            holder[path[-1]] = [holder[path[-1]]]
        return what
    if what == "deep laws":
        for number in range(rng.choice((1, 2, 60, 150))):
            law = {"reference": holder[path[-1]], "scale": 1.0, "power": 1.0}
            holder[path[-1]] = {"class": "ScaledRadius", "id": 1000 + number, "args": law}
        return what
    source = document if what == "own part" else rng.choice(others).document
    found = _at(source, rng.choice([*places(source)]))
    holder[path[-1]] = copy.deepcopy(found)
    return what


def edit_tensor(rng: random.Random, document: Document, tensors: Tensors, others: list[Original]) -> str:
    """Remove, add or rename a tensor, or change its shape, dtype or numbers."""
    if not tensors:
        tensors["model.extra"] = torch.zeros(2)
        return "extra tensor"
    name = rng.choice([*tensors])
    old = tensors[name]
    what = rng.choice(("missing", "extra", "renamed", "shape", "shape", "dtype", "swapped", *["numbers"] * 4))
    if what == "missing":
        del tensors[name]
    elif what == "extra":
        tensors[rng.choice(("model.extra", "extra", "estimator.extra", f"{name}.x"))] = old.clone()
    elif what == "renamed":
        tensors[f"{name}_"] = tensors.pop(name)
        if rng.random() < 0.5:  # everywhere
            for path in places(document):
                if _at(document, path) == name:
                    parent_of(document, path)[path[-1]] = f"{name}_"
    elif what == "shape":
        flat = old.reshape(-1)
        shapes = [old[:-1] if old.dim() and len(old) else old, flat[:0], flat, flat[:1].reshape(())
                  if flat.numel() else flat, old.unsqueeze(0), torch.cat([flat, flat])]  # fmt: skip
        if old.dim() == 2:
            shapes += [old.T.contiguous(), old[:, :-1].contiguous(), torch.cat([old, old], 1)]
        tensors[name] = rng.choice(shapes).clone()
    elif what == "dtype":
        tensors[name] = old.to(
            rng.choice((torch.float32, torch.float64, torch.int64, torch.bool, torch.float16))
        )
    elif what == "swapped":
        other = rng.choice([*tensors])
        tensors[name], tensors[other] = tensors[other], old
    elif old.numel():
        new = old.clone().reshape(-1)
        place = rng.randrange(new.numel())
        if new.is_floating_point():
            values = (
                math.nan,
                math.inf,
                -math.inf,
                0.0,
                -1.0,
                1e30,
                -float(new[place]),
                1.01 * float(new[place]),
            )
            new[place] = rng.choice((*values, *values[-1:] * 4))
        else:
            new[place] = rng.choice((0, 1, -1, 100, 2**62)) if new.dtype != torch.bool else not new[place]
        tensors[name] = new.reshape(old.shape)
    return f"{what} tensor" if what != "numbers" else "numbers of a tensor"


def edit_frame(rng: random.Random, document: Document, tensors: Tensors, others: list[Original]) -> str:
    """Change the entries around the model without correcting the checksums."""
    document["_frame"] = rng.choice(
        (
            ("version", rng.choice(_VALUES)),
            ("schema", rng.choice(_VALUES)),
            ("format", rng.choice(_VALUES)),
            ("numbers", rng.choice(_VALUES)),
            (rng.choice(("estimator", "table", "other")), rng.choice(_VALUES)),
            ("numbers.file", rng.choice((*_VALUES, "../x", "model.json"))),
            ("numbers.tensors", rng.choice(_VALUES)),
        )
    )
    return "frame"


_EDITS: tuple[Callable[..., str], ...] = (
    *(edit_value, edit_value, edit_value, edit_key, edit_class, edit_tree),
    *(edit_tensor, edit_tensor, edit_tensor, edit_frame),
)


def forge(rng: random.Random, own: Original, others: list[Original]) -> tuple[str, Files]:
    """Make one or two edits, with correct checksums of the result."""
    document = {
        name: copy.deepcopy(own.document[name])
        for name in ("model", "estimator", "table")
        if name in own.document
    }
    tensors = {name: tensor.clone() for name, tensor in own.tensors.items()}
    what, frames = [], []
    for _ in range(2 if rng.random() < 0.2 else 1):
        if document:
            what.append(rng.choice(_EDITS)(rng, document, tensors, others))
            frames.append(document.pop("_frame", None))
    frame = frames[0] or frames[-1]
    numbers = as_safetensors(tensors)
    whole = {name: own.document[name] for name in ("format", "schema", "version")} | document
    whole["numbers"] = {
        "file": own.numbers_name,
        "sha256": hashlib.sha256(numbers).hexdigest(),
        "tensors": {
            name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
            for name, tensor in tensors.items()
        },
    }
    if frame is not None:
        name, _, inner = frame[0].partition(".")
        if inner:
            whole[name][inner] = frame[1]
        else:
            whole[name] = frame[1]
    whole["sha256"] = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
    return what[0] if len(what) == 1 else "two edits", (json.dumps(whole).encode(), numbers)


def _at(node: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


# --- outcomes


def make_case(number: int, originals: list[Original]) -> tuple[Original, str, Files]:
    """Model, damage and files of a case."""
    rng = random.Random(number)
    own = originals[number % len(originals)]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * limit)  # deep lists in deep lists; the reader has the usual limit
    try:
        what, files = damage_bytes(rng, own, originals) if rng.random() < 0.4 else forge(rng, own, originals)
    finally:
        sys.setrecursionlimit(limit)
    return own, what, files


def outcome_of(own: Original, files: Files, folder: Path) -> tuple[str, str]:
    """Outcome of a case, with the error or the difference."""
    for name, content in (("model.json", files[0]), (own.numbers_name, files[1])):
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
    start = time.process_time()
    try:
        outcome = _outcome_of(own, files, folder)
    except TimeoutError as error:
        return "hang", str(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if time.process_time() - start > SECONDS:
        return "hang", outcome[1]
    return outcome


def _outcome_of(own: Original, files: Files, folder: Path) -> tuple[str, str]:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        loaded = own.kind.read(folder)
    except (ModelFileError, click.ClickException) as error:
        chain, lines = _chain(error), str(error)
        if any(word in chain for word in ("alloc", "MemoryError", "not enough memory")):
            return "more than 1 GB", chain
        clear = "\n" not in lines and 20 < len(lines) < _LONGEST
        return ("clear error" if clear else "other exception"), lines
    except TimeoutError:
        raise
    except BaseException as error:
        return _unexpected(error)
    try:
        answer = own.kind.answer(loaded)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        # The library's own words, not those of torch.
        valid = "latentcal" in frames[-1].filename and (frames[-1].line or "").startswith("raise")
        valid &= _is_number_edit(own, files) or _is_own_file(own, loaded, files, folder)
        return ("refused when asked" if valid else "other exception"), _chain(error)
    except TimeoutError:
        raise
    except BaseException as error:
        return _unexpected(error)
    if _alike(answer, own.answer):
        return "identical answer", ""
    if _has_nan(answer):
        return "silently different", f"NaN in {answer}"
    if _is_number_edit(own, files):
        return "valid edit", ""
    if _is_own_file(own, loaded, files, folder):
        return "another model", ""
    return "silently different", str(answer)


def _unexpected(error: BaseException) -> tuple[str, str]:
    text = _chain(error)
    memory = isinstance(error, MemoryError) or "alloc" in text
    return ("more than 1 GB" if memory else "other exception"), text


def _chain(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-1500:]


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and one == other


def _has_nan(answer: Any) -> bool:
    items = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ()
    return answer != answer or any(map(_has_nan, items))


def _is_number_edit(own: Original, files: Files) -> bool:
    """Whether only numbers differ, all finite and with the old type, shape and dtype."""
    document, tensors = json.loads(files[0] or b""), from_safetensors(files[1] or b"")
    sections = ("model", "estimator", "table")
    if [_skeleton(document.get(name)) for name in sections] != [
        _skeleton(own.document.get(name)) for name in sections
    ]:
        return False
    return tensors.keys() == own.tensors.keys() and all(
        tensor.dtype == own.tensors[name].dtype
        and tensor.shape == own.tensors[name].shape
        and bool((torch.isfinite(tensor) | (tensor == math.inf) & torch.isinf(own.tensors[name]).any()).all())
        for name, tensor in tensors.items()
    )


def _skeleton(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _skeleton(value) for name, value in node.items()}
    if isinstance(node, list):
        return [_skeleton(value) for value in node]
    return type(node).__name__ if isinstance(node, (bool, int, float)) else node


def _is_own_file(own: Original, loaded: Any, files: Files, folder: Path) -> bool:
    """Whether saving the loaded model gives the same files."""
    again = folder.with_name("again")
    shutil.rmtree(again, ignore_errors=True)
    own.kind.write(loaded, again)
    first, second = json.loads(files[0] or b""), json.loads((again / "model.json").read_bytes())
    for document in (first, second):
        document.get("table", {}).pop("written", None)
    same = all(first.get(name) == second.get(name) for name in ("model", "estimator", "table"))
    one = from_safetensors(files[1] or b"")
    two = from_safetensors((again / second["numbers"]["file"]).read_bytes())
    return same and one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# --- running


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS:g} s")


def run_batch(numbers: range, originals: list[Original], folder: Path, report: Callable[[str], None]) -> None:
    """Run cases and report a line for each."""
    signal.signal(signal.SIGPROF, _too_long)
    warnings.simplefilter("ignore")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, resource.RLIM_INFINITY))
    for number in numbers:
        own, what, files = make_case(number, originals)
        outcome, text = outcome_of(own, files, folder)
        report(json.dumps([number, own.name, what, outcome, text if outcome in WRONG else ""]))


def run(first: int, cases: int, originals: list[Original], folder: Path) -> Iterator[list[Any]]:
    """Rows (number, model, damage, outcome, text) from processes that may die in a case."""
    done, end = first, first + cases
    while done < end:
        numbers = range(done, min(done + _BATCH, end))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with os.fdopen(write, "w", buffering=1) as pipe:
                run_batch(numbers, originals, folder, lambda line: print(line, file=pipe))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            while select.select([pipe], [], [], 20 * SECONDS)[0] and (line := pipe.readline()):
                row = json.loads(line)
                done = row[0] + 1
                yield row
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        if done < numbers.stop:
            own, what, _ = make_case(done, originals)
            yield [
                done,
                own.name,
                what,
                "hang" if status == signal.SIGKILL else "other exception",
                f"status {status}",
            ]
            done += 1


def read_counts(path: Path) -> Counter[tuple[str, str, str]]:
    """Counts of an interrupted run by model, damage and outcome."""
    if not path.exists():
        return Counter()
    with path.open(newline="") as file:
        return Counter(
            {(row["model"], row["damage"], row["outcome"]): int(row["cases"]) for row in csv.DictReader(file)}
        )


def write_counts(path: Path, counts: Counter[tuple[str, str, str]]) -> None:
    """Write the counts for ``read_counts``."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["model", "damage", "outcome", "cases"])
        rows.writerows([*key, count] for key, count in sorted(counts.items()))


def main() -> None:
    """Run cases, print bad outcomes, write the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=105_000)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "fuzz_files.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    counts = read_counts(options.results)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=memory) as place:
        originals = [Original(name, kind, Path(place) / name) for name, kind in model_kinds().items()]
        folder = Path(place) / "case"
        folder.mkdir()
        if options.cases == 1:
            own, what, files = make_case(options.first, originals)
            signal.signal(signal.SIGPROF, _too_long)
            print(own.name, what, *outcome_of(own, files, folder), sep="\n")
            return
        done = sum(counts.values())
        for number, name, what, outcome, text in run(
            options.first + done, options.cases - done, originals, folder
        ):
            counts[name, what, outcome] += 1
            if outcome in WRONG:
                line = text.strip().splitlines()[-1][:300]
                print(f"case {number}: {name}, {what}: {outcome}\n  {line}", flush=True)
            if number % 1000 == 999:
                write_counts(options.results, counts)
    write_counts(options.results, counts)
    totals = Counter[str]()
    for (_, _, outcome), count in counts.items():
        totals[outcome] += count
    print(f"{options.cases:,} cases in {time.perf_counter() - start:,.0f} s")
    for outcome in OUTCOMES:
        print(f"{outcome:<20}{totals[outcome]:>9,}")


if __name__ == "__main__":
    main()
