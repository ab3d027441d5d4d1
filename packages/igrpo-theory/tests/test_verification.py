import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import false_alarms
import numpy as np
import pytest

from igrpo_theory import PolicyTree, expansion, gap, random_policy_tree
from igrpo_theory.__main__ import main
from igrpo_theory.claims import Case, Row, exact_claims
from igrpo_theory.growth_claims import FALSE_ALARM_RATE, LEVEL, answer_claims, finite_claims, growth_claims
from igrpo_theory.verification import default_cases, verify

SMALL = Case("small", random_policy_tree(np.random.default_rng(1), turns=3, branching=2), 1.0, 0)
TREE = {
    "levels": [
        {"parent": [0, 0], "prob": [0.4, 0.6], "value": [0.3, -0.2], "answer": [False, False]},
        {"parent": [0, 0, 1], "prob": [0.5, 0.5, 1.0], "value": [0.0, 0.0, 0.0], "answer": [False] * 3},
    ]
}


def test_a_row_compares_as_its_relation_says() -> None:
    assert Row("c", "t", 1.0, "=", 1.1, 0.2).holds
    assert not Row("c", "t", 1.0, "=", 0.7, 0.2).holds
    assert Row("c", "t", 1.0, "<=", 0.1, 0.0).holds
    assert not Row("c", "t", 1.0, "<=", 1.3, 0.2).holds
    assert not Row("c", "t", 1.0, "=", float("nan"), 0.2).holds


def test_default_cases_follow_the_seed() -> None:
    first, again, other = default_cases(3), default_cases(3), default_cases(4)
    for case, same, different in zip(first, again, other, strict=True):
        assert case.policy.value.tolist() == same.policy.value.tolist()
        assert case.policy.value.tolist() != different.policy.value.tolist()


@pytest.mark.parametrize(
    ("power", "claim"),
    [(1.3, "theorem 1: largest |z| of a share"), (0.0, "theorem 1: largest |z| of a share")],
    ids=["a tilt that is too strong", "no tilt"],
)
def test_a_wrong_sampler_fails_the_claims(monkeypatch: pytest.MonkeyPatch, power: float, claim: str) -> None:
    right = expansion.draw_expansions

    def wrong(probabilities: np.ndarray, *others: Any) -> np.ndarray:
        return right(probabilities**power, *others)

    monkeypatch.setattr(expansion, "draw_expansions", wrong)
    assert claim in [row.claim for row in growth_claims(SMALL) if not row.holds]


def test_a_wrong_law_fails_the_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("igrpo_theory.claims.log_partition", lambda policy, gamma: 0.5)
    assert "theorem 1: log Z by recursion" in [row.claim for row in exact_claims(SMALL) if not row.holds]


# The command


def test_the_command_prints_a_table_writes_json_and_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, report = tmp_path / "mine.json", tmp_path / "out.json"
    tree.write_text(json.dumps(TREE))
    assert main(["verify", "--tree", str(tree), "--seed", "1", "--json", str(report)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == ["claim", "tree", "predicted", "measured", "error", "bar", "verdict"]
    assert said.out.endswith("16 of 16 claims hold\n")
    assert "mine" in said.err
    rows = json.loads(report.read_text())["rows"]
    assert len(rows) == 16
    assert all(row["holds"] for row in rows)


def test_the_command_exits_1_when_a_claim_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row("one is one", "none", 1.0, "=", 1.0, 0.0), Row("one is two", "none", 1.0, "=", 2.0, 0.5)]
    monkeypatch.setattr("igrpo_theory.__main__.verify", lambda cases, hard_worlds: iter(rows))
    assert main(["verify"]) == 1
    said = capsys.readouterr().out
    assert "FAILS" in said
    assert said.endswith("1 of 2 claims hold\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "must be a file, got"), ("{", "must be JSON, got"), ('{"levels": []}', "levels must list the states")],
)
def test_the_command_says_what_is_wrong_with_a_file_and_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    tree = tmp_path / "tree.json"
    if content is not None:
        tree.write_text(content)
    assert main(["verify", "--tree", str(tree)]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_the_gap_command_prints_and_writes_distances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "gap.json"
    words = ["gap", "--budget", "5", "--cap", "2", "--gamma", "1", "--replicates", "500", "--method", "sampled"]
    assert main([*words, "--json", str(report)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "4 turns of 2: budget 5, cap 2, gamma 1, full, capped (500 trees)"
    assert "total variation to the teacher law" in said
    measured = json.loads(report.read_text())
    assert measured["cap"] == 2
    assert abs(measured["gap"]["tv_teacher"]["value"] - 0.06) < 7 * measured["gap"]["tv_teacher"]["error"] < 0.2
    assert len(measured["gap"]["distinct_parents"]) == 3
    assert sum(measured["gap"]["law"]) == pytest.approx(1)


def test_the_gap_command_sums_exactly_where_that_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gap", "--budget", "3"]) == 0
    said = capsys.readouterr()
    assert said.err == "summing over all ways to grow on 4 turns of 2\n"
    assert said.out.splitlines()[0] == "4 turns of 2: budget 3, cap 2, gamma 1, full, capped (exact sums)"
    assert said.out.splitlines()[1].endswith("+- 0.0000")


def test_equal_seeds_give_equal_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for seed in ("1", "1", "2"):
        assert main(["gap", "--seed", seed, "--replicates", "50", "--method", "sampled"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cap", "0"], "cap must be at least 1, got 0"),
        (["--budget", "0"], "budget must be at least 1, got 0"),
        (["--gamma", "nan"], "gamma must be finite and at least 0, got nan"),
        (["--gamma", "inf"], "gamma must be finite and at least 0, got inf"),
        (["--gamma", "-1"], "gamma must be finite and at least 0, got -1.0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1: choose another"),
        (["--json", "nowhere/gap.json"], "--json must be in a folder that exists, got nowhere/gap.json: make nowhere"),
        (["--json", "."], "--json must be a file that can be written, got .: choose another"),
        (["--figure", "nowhere/gap.png"], "--figure must be in a folder that exists, got nowhere/gap.png"),
        (["--scheme", "systematic", "--cap", "2"], "systematic resampling takes no cap below the budget, got cap 2"),
        (["--scheme", "systematic"], "systematic resampling takes no cap below the budget, got cap 2 and budget 5"),
        (["--tree", "nowhere.json"], "the policy tree must be a file, got nowhere.json"),
    ],
)
def test_the_gap_command_says_what_is_wrong_and_exits_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["gap", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"igrpo-theory: {message}")
    assert said.err.count("\n") == 1  # before anything is grown
    assert said.out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--tree", "{tree}", "--gamma", "0"],
            "gamma must be above 0, got 0.0: theorem 2 divides by it",
        ),
        (["--tree", "{tree}", "--gamma", "nan"], "gamma must be finite and at least 0, got nan"),
        (
            ["--gamma", "2"],
            "--gamma must come with --tree, got 2.0: the random trees have gammas of their own; leave it",
        ),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--json", "nowhere/verify.json"], "--json must be in a folder that exists, got nowhere/verify.json"),
    ],
)
def test_the_verify_command_says_what_is_wrong_and_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    tree = tmp_path / "mine.json"
    tree.write_text(json.dumps(TREE))
    assert main(["verify", *(word.format(tree=tree) for word in words)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"igrpo-theory: {message}")
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.parametrize("words", [["--budget", str(10**12)], ["--replicates", str(10**12), "--method", "sampled"]])
def test_more_nodes_than_memory_holds_are_refused(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["gap", *words]) == 2
    said = capsys.readouterr()
    message = (
        r"igrpo-theory: replicates must be few enough for 1e\+08 nodes, got \d+ trees of budget \d+ and 4 turns: lower"
    )
    assert re.search(message, said.err)
    assert said.out == ""


# Two states whose numbers are at the edge of what a policy may hold.
EDGES = {
    "nearly impossible": ([5e-324, 1.0], [1.0, 0.0]),
    "impossible": ([0.0, 1.0], [1.0, 0.0]),
    "huge values, all alike": ([0.5, 0.5], [1e100, 1e100]),
}


@pytest.mark.parametrize("name", EDGES)
def test_exact_claims_and_gaps_hold_at_the_edge_of_what_is_legal(name: str) -> None:
    probability, value = EDGES[name]
    policy = PolicyTree(
        parent=np.array([-1, 0, 0, 1, 2]),
        probability=np.array([1.0, *probability, 1.0, 1.0]),
        value=np.array([0.0, *value, 0.0, 0.0]),
        answer=np.zeros(5, dtype=bool),
        reward=np.zeros(5),
    )
    assert [row.claim for row in exact_claims(Case(name, policy, 1.0, 0)) if not row.holds] == []
    assert gap(policy).tv_teacher.value == pytest.approx(0.0, abs=1e-12)


def test_without_a_tree_the_command_verifies_the_default_cases_and_the_hard_worlds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def one_row(cases: list[Case], *, hard_worlds: bool) -> Iterator[Row]:
        asked.append(([case.name for case in cases], hard_worlds))
        yield Row("one is one", "none", 1.0, "=", 1.0, 0.0)

    monkeypatch.setattr("igrpo_theory.__main__.verify", one_row)
    assert main(["verify"]) == 0
    assert asked == [([case.name for case in default_cases(0)], True)]
    assert capsys.readouterr().out.endswith("1 of 1 claims hold\n")


def test_trees_that_end_early_are_also_grown_without_pads(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = []
    monkeypatch.setattr("igrpo_theory.verification.growth_claims", lambda case: [])
    monkeypatch.setattr("igrpo_theory.verification.answer_claims", lambda case: grown.append(case.name) or [])
    assert len(list(verify(default_cases(0), hard_worlds=False))) == 4 * 7
    assert grown == ["4 turns with answers"]


def test_the_default_tree_with_answers_has_paths_of_several_lengths_at_every_seed() -> None:
    for seed in range(20):
        policy = default_cases(seed)[3].policy
        assert policy.turns == 4
        assert len(np.unique(policy.depth[policy.ends])) > 1


def test_the_level_of_a_row_covers_a_default_run() -> None:
    answers = Case("answers", default_cases(0)[3].policy, 1.0, 0)
    # The command's own test counts 16 rows of a padded tree, the exact ones among them.
    grown = 16 - len(exact_claims(SMALL))
    rows = 4 * grown + len(answer_claims(answers, 20, 50)) + len(finite_claims(SMALL, 100))
    assert rows == 42
    assert rows * LEVEL < FALSE_ALARM_RATE / 20
    assert LEVEL == false_alarms.LEVEL


def test_a_figure_without_matplotlib_is_refused_with_the_pip_line_before_growing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["gap", "--figure", str(tmp_path / "gap.png")]) == 2
    said = capsys.readouterr()
    assert "a figure needs matplotlib: pip install 'igrpo-theory[plot]'" in said.err
    assert "growing" not in said.err
    assert said.out == ""


def test_a_figure_is_drawn_where_matplotlib_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["gap", "--figure", str(tmp_path / "gap.xyz")]) == 2
    assert capsys.readouterr().err.startswith("igrpo-theory: --figure must end in one of ")
    figure = tmp_path / "gap.svg"
    assert main(["gap", "--budget", "3", "--figure", str(figure)]) == 0
    assert figure.read_text().startswith("<?xml")


def test_unknown_commands_and_options_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["prove"], ["verify", "--sed", "1"], ["verify", "--seed", "one"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
    assert "usage: igrpo-theory" in capsys.readouterr().err
