import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from igrpo_theory import expansion, random_policy_tree
from igrpo_theory.__main__ import main
from igrpo_theory.claims import Case, Row, exact_claims
from igrpo_theory.growth_claims import growth_claims
from igrpo_theory.verification import default_cases, table, verify

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


def test_every_claim_holds_on_a_small_tree() -> None:
    rows = list(verify([SMALL], hard_worlds=False))
    assert len(rows) == 16
    assert [row for row in rows if not row.holds] == []
    assert table(rows).count("holds") == len(rows)


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("igrpo_theory.claims.log_partition", lambda policy, gamma: 0.5)
    tree = tmp_path / "mine.json"
    tree.write_text(json.dumps(TREE))
    assert main(["verify", "--tree", str(tree)]) == 1
    assert "FAILS" in capsys.readouterr().out


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
    words = ["gap", "--budget", "5", "--cap", "2", "--gamma", "1", "--replicates", "500", "--json", str(report)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "4 turns of 2: budget 5, cap 2, gamma 1, full, capped"
    assert "total variation to the teacher law" in said
    measured = json.loads(report.read_text())
    assert measured["cap"] == 2
    assert 0 < measured["gap"]["tv_teacher"]["value"] < 0.3
    assert len(measured["gap"]["distinct_parents"]) == 3
    assert sum(measured["gap"]["law"]) == pytest.approx(1)


def test_equal_seeds_give_equal_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for seed in ("1", "1", "2"):
        assert main(["gap", "--seed", seed, "--replicates", "50"]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cap", "0"], "cap must be at least 1, got 0"),
        (["--budget", "0"], "budget must be at least 1, got 0"),
        (["--gamma", "nan"], "gamma must be finite and at least 0, got nan"),
        (["--scheme", "systematic"], "systematic resampling takes no cap below the budget, got cap 2 and budget 5"),
        (["--tree", "nowhere.json"], "the policy tree must be a file, got nowhere.json"),
    ],
)
def test_the_gap_command_says_what_is_wrong_and_exits_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["gap", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_figure_without_matplotlib_is_refused_with_the_pip_line_before_growing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["gap", "--figure", str(tmp_path / "gap.png")]) == 2
    said = capsys.readouterr()
    assert "a figure needs matplotlib: pip install 'igrpo-theory[plot]'" in said.err
    assert "growing" not in said.err
    assert said.out == ""


def test_a_figure_is_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = tmp_path / "gap.svg"
    assert main(["gap", "--replicates", "50", "--figure", str(figure)]) == 0
    assert figure.read_text().startswith("<?xml")


def test_unknown_commands_and_options_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["prove"], ["verify", "--sed", "1"], ["verify", "--seed", "one"]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
    assert "usage: igrpo-theory" in capsys.readouterr().err
