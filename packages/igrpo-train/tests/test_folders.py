"""A folder is there whole or not at all."""

import stat

import pytest


def test_a_failed_block_leaves_nothing_behind(tmp_path):
    from igrpo_train.folders import new_folder

    with pytest.raises(RuntimeError, match="disk on fire"), new_folder(tmp_path / "deep" / "model") as partial:
        (partial / "half").write_text("x")
        raise RuntimeError("disk on fire")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_finished_folder_can_be_read_by_others(tmp_path):
    from igrpo_train.folders import new_folder

    with new_folder(tmp_path / "model") as partial:
        assert not (tmp_path / "model").exists()
        (partial / "file").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (tmp_path / "plain").mkdir()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("model", "plain")]
    assert modes[0] == modes[1]


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    from igrpo_train.errors import DiskError
    from igrpo_train.folders import new_folder

    (tmp_path / "file").touch()
    with (
        pytest.raises(
            DiskError, match=r"folder must be one that can be made, got '.*file/model' \(File exists\): name"
        ),
        new_folder(tmp_path / "file" / "model"),
    ):
        pass


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path):
    from igrpo_train.folders import new_folder

    (tmp_path / "model").mkdir()
    with new_folder(tmp_path / "model") as partial:
        (partial / "file").write_text("x")
    with (
        pytest.raises(FileExistsError, match=r"folder must be new or empty, got '.*model': name another one or remove"),
        new_folder(tmp_path / "model"),
    ):
        pass
    assert (tmp_path / "model" / "file").read_text() == "x"


def test_a_file_is_there_whole_or_as_it_was_before(tmp_path):
    from igrpo_train.errors import DiskError
    from igrpo_train.folders import new_file

    with new_file(tmp_path / "a") as file:
        file.write(b"one")
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "a") as file:
        file.write(b"two")
        raise ZeroDivisionError
    assert (tmp_path / "a").read_bytes() == b"one"
    message = r"b must be writable, got 'No such file or directory': free space or mend"
    with pytest.raises(DiskError, match=message), new_file(tmp_path / "nowhere" / "b"):
        pass
