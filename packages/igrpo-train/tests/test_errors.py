"""What a person sees of an error, and what stays a traceback."""

import pytest


def _raise(error):
    raise error


@pytest.mark.parametrize("kind", ["ValueError", "FileNotFoundError", "DiskError"])
def test_an_error_for_people_is_a_panel_with_code_2(kind, capsys):
    from igrpo_train import errors

    error = {"ValueError": ValueError, "FileNotFoundError": FileNotFoundError, "DiskError": errors.DiskError}[kind]
    with pytest.raises(SystemExit) as stopped:
        errors.run_command(lambda: _raise(error("tree.cap must be [at least] 1, got 0")))
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert "tree.cap must be [at least] 1, got 0" in shown
    assert "Traceback" not in shown


def test_an_error_of_another_process_is_shown_there_and_ends_this_one_quietly(capsys):
    from igrpo_train.errors import RetrieverError, run_command

    error = RetrieverError("the server is down")
    error.peer = 0
    with pytest.raises(SystemExit) as stopped:
        run_command(lambda: _raise(error))
    assert stopped.value.code == 2
    assert capsys.readouterr().err == ""


def test_a_bug_keeps_its_traceback():
    from igrpo_train.errors import run_command

    with pytest.raises(ZeroDivisionError):
        run_command(lambda: _raise(ZeroDivisionError()))


def test_an_interrupt_ends_quietly_with_code_130(capsys):
    from igrpo_train.errors import run_command

    with pytest.raises(SystemExit) as stopped:
        run_command(lambda: _raise(KeyboardInterrupt()))
    assert stopped.value.code == 130
    assert capsys.readouterr().err == ""
