"""Every benchmark runs at its smallest size and prints a table; what it measures is not looked at."""

from pathlib import Path

import pytest

RECIPE = Path("recipes/miniature/igrpo.toml")
SMALL = ("questions_per_step=2", "run.threads=1")


@pytest.mark.slow
def test_step():
    from benchmarks import step

    figures = step.measure(step.Arguments(recipe=RECIPE, set=SMALL, steps=1, skip=0))
    assert "| whole step |" in step.table(figures)


@pytest.mark.slow
def test_scoring():
    from benchmarks import scoring

    figures = scoring.measure(scoring.Arguments(recipe=RECIPE, set=SMALL, steps=1, skip=0))
    assert "| forced answers with their preamble |" in scoring.table(figures)


@pytest.mark.slow
def test_rollout():
    from benchmarks import rollout

    figures = rollout.measure(rollout.Arguments(recipe=RECIPE, set=SMALL, repeats=1, skip=0, chains=2))
    assert figures["figures"]["same_turns"] == 1.0
    assert "2 chains a question" in rollout.table(figures)


@pytest.mark.slow
def test_tree_vs_path(tmp_path):
    from benchmarks import tree_vs_path

    arguments = tree_vs_path.Arguments(recipe=RECIPE, num_questions=2, repeats=0)
    recipe = tree_vs_path.resolve(arguments, str(tmp_path))
    rollout, hidden_size = tree_vs_path.grow(arguments, recipe)
    rows = tree_vs_path.rows_of(rollout)
    counts = tree_vs_path.count_tokens(rollout, rows, 10_000, hidden_size)
    assert counts["unique"] == counts["tree"] < counts["append"] < counts["official"]
    assert counts["official"] == sum(row.num_tokens for row in rows)


@pytest.mark.slow
def test_trl_step_without_trl(monkeypatch):
    from benchmarks import trl_step

    monkeypatch.setattr(trl_step, "MODELS", {"tiny": (16, 1)})
    rows = trl_step.compare(trl_step.Arguments(steps=1, rounds=1, kl=(0.04,)), sides=("ours",))
    rows[0]["trl"] = [1.0]
    assert "| tiny | 0.04 |" in trl_step.table({"rows": rows})


def test_report_writes_what_it_was_given(tmp_path, capsys):
    from benchmarks.reporting import machine, report

    report("a table", {"machine": machine()}, tmp_path / "new" / "figures.json")
    assert capsys.readouterr().out == "a table\n"
    assert '"cpus"' in (tmp_path / "new" / "figures.json").read_text()


def test_a_measurement_of_nothing_is_refused():
    from benchmarks.reporting import check_counts

    with pytest.raises(SystemExit, match="--num-questions must be at least 1, got 0: medians need a measurement"):
        check_counts(steps=1, num_questions=0)
