import os
import subprocess
import sys
import textwrap
from pathlib import Path

from studies.study_files import cache_folder, write_entry

FILES = {"a": b"1" * 1000, "b": b"2" * 1000, "c": b"3"}


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_folder_is_the_one_that_the_variable_names(monkeypatch, tmp_path):
    monkeypatch.setenv("LATENTCAL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("LATENTCAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "all"))
    assert cache_folder() == tmp_path / "all" / "latentcal"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().parts[-2:] == (".cache", "latentcal")


def test_an_entry_holds_its_files_and_nothing_is_left_beside_it(tmp_path):
    assert write_entry(tmp_path / "runs" / "one", FILES)
    assert content(tmp_path / "runs" / "one") == FILES
    assert os.listdir(tmp_path / "runs") == ["one"]


def test_the_first_of_two_writers_wins(tmp_path):
    assert write_entry(tmp_path / "one", FILES)
    assert not write_entry(tmp_path / "one", {"a": b"other"})
    assert content(tmp_path / "one") == FILES
    assert os.listdir(tmp_path) == ["one"]


def test_what_was_left_unfinished_long_ago_is_swept_away(tmp_path):
    old, new = tmp_path / ".unfinished-old", tmp_path / ".unfinished-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "a").write_bytes(b"1")
    os.utime(old, (0, 0))
    write_entry(tmp_path / "one", FILES)
    assert sorted(os.listdir(tmp_path)) == [".unfinished-new", "one"]


def test_killed_at_any_moment_an_entry_is_whole_or_not_there(tmp_path):
    script = """
        import os, signal, sys
        from pathlib import Path
        sys.path.append(sys.argv[2])
        from alone import module_alone
        cache = module_alone("study_files")

        root, files = Path(sys.argv[1]), {"a": b"1" * 1000, "b": b"2" * 1000, "c": b"3"}
        moment = 0
        while True:
            child = os.fork()
            if child == 0:
                calls = 0
                def dying(function):
                    def call(*arguments):
                        global calls
                        calls += 1
                        if calls > moment:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return function(*arguments)
                    return call
                for name in ("fsync", "open", "close"):
                    setattr(os, name, dying(getattr(os, name)))
                Path.rename = dying(Path.rename)
                cache.write_entry(root / f"entry{moment}", files)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            if status == 0:
                break
            moment += 1
        print(moment)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), str(Path(__file__).parent)]
    moments = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    whole = [tmp_path / f"entry{i}" for i in range(moments + 1) if (tmp_path / f"entry{i}").exists()]
    assert moments > 5  # each file, the folder, the renaming
    assert 1 < len(whole) < moments  # the last moments come after the renaming
    assert all(content(folder) == FILES for folder in whole)
