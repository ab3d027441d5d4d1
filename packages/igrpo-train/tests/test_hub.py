"""The published files by a download that is faked: what is checked, unpacked and joined."""

import gzip
import shutil
from pathlib import Path

import pytest

LINES = b'{"id": "0", "contents": "Ghent"}\n{"id": "1", "contents": "Oslo"}\n'


@pytest.fixture
def hub(tmp_path):
    """A stand-in for the hub: a folder of files, and a function that brings them; `hub.calls` lists what was asked."""
    store = tmp_path / "hub"
    store.mkdir()

    def download(spec, folder):
        download.calls.append(spec)
        name = spec.rpartition("/")[2]
        if not (store / name).exists():
            raise FileNotFoundError(f"hub file must be in the cache or reachable, got {spec!r}")
        return Path(shutil.copy(store / name, folder / name))

    download.calls, download.store = [], store
    return download


def _table(form, size, *names, **more):
    from igrpo_train.hub import Published

    parts = tuple(f"hf://datasets/a/b/{name}" for name in names)
    return {"it": (Published(name=f"whole.{form}", parts=parts, form=form, size=size, **more),)}


def _fetch(hub, folder, table):
    from igrpo_train.hub import fetch_published

    return fetch_published("it", folder, table=table, download=hub)


def test_a_split_index_is_joined_checked_and_its_parts_removed(tmp_path, hub):
    (hub.store / "part_aa").write_bytes(b"header" + b"a" * 100)
    (hub.store / "part_ab").write_bytes(b"b" * 50)
    table = _table("split", 150, "part_aa", "part_ab", slack=10)
    [path] = _fetch(hub, tmp_path / "out", table)
    assert path.read_bytes() == b"header" + b"a" * 100 + b"b" * 50
    assert list((tmp_path / "out").iterdir()) == [path]
    # What is there is checked, not fetched again.
    assert _fetch(hub, tmp_path / "out", table) == [path]
    assert len(hub.calls) == 2
    with pytest.raises(ValueError, match=r"whole\.split must have 1,000 bytes, got 156: remove it and fetch it again"):
        _fetch(hub, tmp_path / "out", _table("split", 1000, "part_aa", "part_ab"))


def test_a_corpus_is_unpacked_and_its_lines_are_counted(tmp_path, hub):
    (hub.store / "wiki.jsonl.gz").write_bytes(gzip.compress(LINES))
    [path] = _fetch(hub, tmp_path / "out", _table("gzip", 2, "wiki.jsonl.gz"))
    assert path.read_bytes() == LINES
    assert list((tmp_path / "out").iterdir()) == [path]
    assert _fetch(hub, tmp_path / "out", _table("gzip", 2, "wiki.jsonl.gz")) == [path]
    with pytest.raises(ValueError, match=r"must have 3 lines, got 2"):
        _fetch(hub, tmp_path / "other", _table("gzip", 3, "wiki.jsonl.gz"))
    assert not (tmp_path / "other" / "whole.gzip").exists()


def test_a_damaged_or_absent_file_is_told(tmp_path, hub):
    (hub.store / "wiki.jsonl.gz").write_bytes(gzip.compress(LINES * 100)[:-20])
    with pytest.raises(ValueError, match=r"wiki\.jsonl\.gz must be a whole gzip file, got an error"):
        _fetch(hub, tmp_path / "out", _table("gzip", 200, "wiki.jsonl.gz"))
    with pytest.raises(FileNotFoundError, match="hub file must be in the cache or reachable"):
        _fetch(hub, tmp_path / "out", _table("gzip", 2, "nowhere.gz"))


def test_rows_of_parquet_files_are_counted(tmp_path, hub):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"id": ["0", "1", "2"]}), hub.store / "whole.parquet")
    [path] = _fetch(hub, tmp_path / "out", _table("parquet", 3, "whole.parquet"))
    assert path == tmp_path / "out" / "whole.parquet"
    with pytest.raises(ValueError, match=r"whole\.parquet must have 4 rows, got 3"):
        _fetch(hub, tmp_path / "out", _table("parquet", 4, "whole.parquet"))
    path.write_bytes(b"none")
    with pytest.raises(ValueError, match=r"whole\.parquet must be a parquet file, got an error"):
        _fetch(hub, tmp_path / "out", _table("parquet", 3, "whole.parquet"))


def test_too_little_room_and_a_folder_that_cannot_be_made_are_told_before_anything_is_fetched(tmp_path, hub):
    from igrpo_train.errors import DiskError

    with pytest.raises(DiskError, match=r"folder must have about 1000000000 GB free for whole\.gzip, got \d+: name"):
        _fetch(hub, tmp_path / "out", _table("gzip", 2, "wiki.jsonl.gz", room=10**18))
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"folder must be writable, got '.*file' \(File exists\)"):
        _fetch(hub, tmp_path / "file", _table("gzip", 2, "wiki.jsonl.gz"))
    assert hub.calls == []


def test_the_table_holds_what_is_known_of_the_published_files():
    from igrpo_train.hub import PUBLISHED

    [index] = PUBLISHED["index"]
    assert index.size == 64_559_075_328
    assert [file.size for file in PUBLISHED["data"]] == [169_615, 51_713]
    assert [file.size for file in PUBLISHED["corpus"]] == [21_015_324]


def test_the_command_names_what_there_is_and_stops_offline(tmp_path, capsys, monkeypatch):
    from igrpo_train.__main__ import main

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for arguments in (["fetch", "index"], ["fetch", "weights", "x"], ["fetch"], ["fetch", "corpus", "--help"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "igrpo-train fetch data|corpus|index FOLDER" in " ".join(
            capsys.readouterr().err.replace("│", " ").split()
        )
    with pytest.raises(SystemExit) as stopped:
        main(["fetch", "data", str(tmp_path / "data")])
    assert stopped.value.code == 2
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "hub file must be in the cache or reachable, got 'hf://datasets/PeterJinGo/nq_hotpotqa_train/train" in shown
