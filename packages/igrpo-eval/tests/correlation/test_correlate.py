"""The command: its files, its tables, and errors that end with code 2."""

import builtins
import json

import numpy as np
import pytest


@pytest.fixture
def folder(make_record, write_chains):
    """A folder of 40 questions with 5 chains each, whose score tells the outcome a little."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(40):
        for sample in range(5):
            success = bool(rng.random() < 0.5)
            score = float(rng.beta(2 + 2 * success, 3))
            records.append(make_record(f"q{number}", sample, success, [score, None], source="nq" if number % 2 else ""))
    return write_chains(records)


def _correlate(*words):
    from igrpo_eval.__main__ import main

    main(["correlate", *map(str, words), "--resamples=50"])


def _shown(capsys):
    return " ".join(capsys.readouterr().err.replace("│", "").split())


def test_the_command_writes_numbers_and_curves_and_shows_the_length_first(folder, capsys):
    _correlate(folder)
    shown = capsys.readouterr().out
    titles = ("V against R by path length", "V and s against R", "V against R by group", "does V tell R")
    assert [shown.index(title) for title in titles] == sorted(shown.index(title) for title in titles)
    assert "chains of models/a, temperature 1" in shown
    numbers = json.loads((folder / "correlate.json").read_text())
    assert numbers["settings"]["resamples"] == 50
    assert {verdict["source"] for verdict in numbers["studies"][0]["verdicts"]} == {"nq", "unnamed"}
    curves = (folder / "correlate.csv").read_text().splitlines()
    assert curves[0] == "kind,model,steps,outcome,turn,paths,gain,low,high"
    assert curves[1].startswith("chain,models/a,step unknown,failure,1,")


def test_equal_seeds_write_equal_files_and_json_goes_to_the_terminal(folder, tmp_path, capsys):
    _correlate(folder, "--out", tmp_path / "a" / "one.json", "--json")
    shown = capsys.readouterr().out
    _correlate(folder, "--out", tmp_path / "a" / "two.json")
    first, second = ((tmp_path / "a" / name).read_bytes() for name in ("one.json", "two.json"))
    assert first == second == shown.encode()
    _correlate(folder, "--out", tmp_path / "a" / "two.json", "--seed=1")
    assert (tmp_path / "a" / "two.json").read_bytes() != first


def test_figure_3_is_drawn_the_same_every_time(folder, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        _correlate(folder, "--figure", tmp_path / name)
    drawn = (tmp_path / "a.svg").read_text()
    assert "cumulative information gain" in drawn
    assert drawn == (tmp_path / "b.svg").read_text()


def test_a_figure_without_matplotlib_says_what_to_install(folder, tmp_path, monkeypatch, capsys):
    load = builtins.__import__

    def without(name, *args, **settings):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return load(name, *args, **settings)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit) as stopped:
        _correlate(folder, "--figure", tmp_path / "a.svg")
    assert stopped.value.code == 2
    assert "matplotlib is needed to draw a figure: pip install 'igrpo-eval[figures]'" in _shown(capsys)
    assert not (folder / "correlate.json").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "folders must be at least one folder, got (): usage: igrpo-eval correlate FOLDER"),
        (("nowhere",), "folder must be one of an evaluation or a run, got 'nowhere'"),
        (("a", "--resamples=0"), "resamples must be at least 1, got 0"),
        (("a", "--seed=-1"), "seed must be between 0 and 2**64 - 1, got -1"),
        (("a", "--out=b"), "out must be a path that ends in .json, got 'b'"),
        (("a", "--figure=b.png"), "figure must be a path that ends in .svg, got 'b.png'"),
    ],
)
def test_wrong_settings_are_named(words, reason, capsys):
    from igrpo_eval.__main__ import main

    with pytest.raises(SystemExit) as stopped:
        main(["correlate", *words])
    assert stopped.value.code == 2
    assert reason in _shown(capsys)
