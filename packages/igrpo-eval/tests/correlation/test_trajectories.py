"""Reading folders: what becomes of records and trees, and what is refused, by file, line and remedy."""

import json
import re
from pathlib import Path

import numpy as np
import pytest


def _read(*folders):
    from igrpo_eval.trajectories import read_trajectories

    return read_trajectories(list(folders))


def _question(make_record, id_, num=5, **fields):
    return [make_record(id_, sample, sample == 0, **fields) for sample in range(num)]


def test_records_become_rows_without_the_score_of_the_last_turn(make_record, write_chains):
    records = _question(make_record, "q", scores=[0.5, 0.25, None], answer_seen=[False, True, True])
    records[1] |= {"scores": [0.75], "turns": 1, "answer_seen": [False]}
    paths = _read(write_chains(records, step=40))
    assert paths.success.tolist() == [True, False, False, False, False]
    assert paths.length.tolist() == [3, 1, 3, 3, 3]
    np.testing.assert_array_equal(paths.score[0], [0.5, 0.25, np.nan])
    assert np.isnan(paths.score[1]).all()
    assert paths.seen[0].tolist() == [False, True, True]
    assert (paths.root == 0.1).all()
    assert (paths.step == 40).all()
    assert paths.complete.all()
    assert paths.sources == ("nq",)
    assert paths.policies[0][:3] == ("models/a", None, 40)


def test_a_question_is_one_under_every_policy_but_a_unit_of_its_own(make_record, write_chains):
    records = _question(make_record, "q") + _question(make_record, "r")
    paths = _read(write_chains(records), write_chains(records, "later", step=40, **{"model.path": "models/b"}))
    assert len(paths.policies) == 2
    assert len(set(paths.question)) == 2
    assert len(set(paths.unit)) == 4
    again = _read(write_chains(records, "seed 0"), write_chains(records, "seed 1", seed=1))
    assert len(again.policies) == 1
    assert len(set(again.unit)) == 2
    assert len(again.unit) == 20


def test_questions_with_few_chains_are_left_out_and_counted(make_record, write_chains):
    paths = _read(write_chains([*_question(make_record, "q"), *_question(make_record, "r", num=4)]))
    assert len(paths.unit) == 5
    assert paths.policies[0].dropped == 1


def _grown(seed):
    """Trees of the real growing loop, with random scores, ends and answers."""
    from igrpo_theory.growth import GrowthRule, Proposal, grow
    from igrpo_theory.randomness import uniforms

    class World:
        def propose(self, tree, parents, keys):
            draws = uniforms(np.asarray(keys), np.zeros(len(parents), dtype=np.int64))
            return Proposal([float(draw) for draw in draws], draws < 0.3)

        def score(self, tree, nodes):
            return np.random.default_rng(nodes).random(len(nodes))

    keys = np.arange(4, dtype=np.uint64) + np.uint64(seed)
    return grow(World(), [0.0] * 4, keys, GrowthRule()).tree


def _lines(tree):
    from igrpo_train.search.session import turn_record

    records = tree.to_records(lambda draw: turn_record(_payload(draw)))
    return [{"step": step, **record} for step, record in enumerate(records, start=1)]


def _payload(draw):
    """The root's question; right and wrong answers for small draws, otherwise searches, which large ones find it by."""
    from igrpo_train.question import Question
    from igrpo_train.search.agent import Action, ActionKind
    from igrpo_train.search.session import Prompt, Turn

    if draw == 0.0:
        question = Question(id="q", text="who?", answers=("Ghent",), source="nq", hops=2)
        return Prompt(question=question, head_ids=(), tail_ids=())
    kind = ActionKind.ANSWER if draw < 0.3 else ActionKind.SEARCH
    found = draw > 0.8
    return Turn(
        response_ids=(),
        response_logprobs=(),
        text="",
        action=Action(kind, "the Ghent!" if draw < 0.15 else "Oslo", True, -1, -1),
        history_ids=(),
        observation="<information>The Port of Ghent.</information>" if found else "",
        documents=("1",) if found else (),
        finish="stop",
    )


@pytest.mark.parametrize("seed", range(3))
def test_v_of_written_trees_is_that_of_the_theory(seed, write_trees):
    from igrpo_eval.correlation import path_values
    from igrpo_theory.paths import path_values as theory_values
    from igrpo_theory.paths import root_to_leaf_paths
    from igrpo_theory.tree import NodeStatus

    tree = _grown(seed)
    rows = root_to_leaf_paths(tree)
    paths = _read(write_trees(_lines(tree)))
    np.testing.assert_allclose(np.nansum(path_values(paths), axis=1), theory_values(tree, rows), atol=1e-12)
    np.testing.assert_array_equal(paths.length, rows.length)
    np.testing.assert_array_equal(paths.step, rows.question + 1)
    status = tree.status[rows.leaf]
    np.testing.assert_array_equal(paths.complete, status != NodeStatus.TRUNCATED)
    assert (status == NodeStatus.TRUNCATED).any()
    answers = np.array([tree.payload[leaf] for leaf in rows.leaf])
    np.testing.assert_array_equal(paths.success, answers < 0.15)
    shown = np.array([[node >= 0 and tree.payload[node] > 0.8 for node in row] for row in rows.nodes])
    inside = rows.nodes >= 0
    np.testing.assert_array_equal(paths.seen[inside], np.logical_or.accumulate(shown, axis=1)[inside])
    assert paths.policies[0].guided


def _spoil(folder, change, name="records.jsonl"):
    path = folder / name
    lines = path.read_text().splitlines()
    lines[2] = change(lines[2])
    path.write_text("\n".join(lines) + "\n")
    return folder


def _with(**fields):
    return lambda line: json.dumps(json.loads(line) | fields)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: line[:20], "records.jsonl, line 3: must be JSON, got .*: restore the file or remove the line"),
        (lambda line: "3", "line 3: a record must be an object, got 3: the file was changed"),
        (_with(scores=[0.1, 0.2, None]), "one entry a turn, got 3 and 2 for 2 turns"),
        (_with(turns=0, scores=[], answer_seen=[]), "one entry a turn, got 0 and 0 for 0 turns"),
        (_with(scores=[1.5, None]), r"line 3: a score must be null or between 0 and 1, got 1\.5"),
        (_with(scores=[float("nan"), None]), "a score must be null or between 0 and 1, got nan"),
        (_with(root_score=-1), "a score must be null or between 0 and 1, got -1"),
        (_with(exact_match=0.5), r"line 3: exact_match must be 0 or 1, got 0\.5"),
        (_with(hops=None), "line 3: a record must hold hops, got"),
        (_with(sample=1), "line 3: sample 1 of question 'q' must occur once, got it again .*: name each folder once"),
    ],
)
def test_a_damaged_record_is_named_by_its_line(change, reason, make_record, write_chains):
    folder = _spoil(write_chains(_question(make_record, "q")), change)
    with pytest.raises(ValueError, match=reason):
        _read(folder)


def test_records_without_scores_ask_for_another_evaluation(make_record, write_chains):
    records = _question(make_record, "q", scores=[None, None], root_score=None)
    with pytest.raises(ValueError, match="must hold scores, got none in 5 records: evaluate again with igrpo-eval run"):
        _read(write_chains(records))
    for record in records:
        del record["scores"]
    with pytest.raises(ValueError, match="line 1: a record must hold scores, got none: evaluate again with .*--scores"):
        _read(write_chains(records, "old"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"temperature": 0.0}, r"temperature must be above 0, got 0\.0 in .*settings\.json: greedy chains are all"),
        ({"scores": False}, r"scores must be true, got false in .*settings\.json: evaluate again with .* --scores"),
        ({"samples": 4}, r"samples must be at least 5, got 4 in .*settings\.json: .*--samples 8 --temperature 1"),
    ],
)
def test_unscored_greedy_and_few_chains_are_refused(settings, reason, make_record, write_chains):
    with pytest.raises(ValueError, match=reason):
        _read(write_chains(_question(make_record, "q"), **settings))


def test_an_evaluation_that_was_stopped_early_is_to_be_finished(make_record, write_chains):
    with pytest.raises(ValueError, match="must hold 5 chains of a question, got at most 3: finish the evaluation with"):
        _read(write_chains(_question(make_record, "q", num=3)))


def test_a_line_that_was_cut_off_and_an_empty_file_are_named(make_record, write_chains, write_trees):
    folder = write_chains(_question(make_record, "q"))
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"id": "torn')
    with pytest.raises(ValueError, match=r"records\.jsonl, line 6: must be a whole line, got one that was cut off"):
        _read(folder)
    with pytest.raises(ValueError, match=r"records\.jsonl must hold at least one line, got an empty file"):
        _read(write_chains([], "empty"))
    with pytest.raises(ValueError, match=r"trees\.jsonl must hold at least one line, got an empty file"):
        _read(write_trees([], "empty run"))


def test_folders_that_do_not_fit_are_refused(make_record, write_chains, write_trees, tmp_path):
    first, tree = write_chains(_question(make_record, "q")), write_trees(_lines(_grown(0)))
    other = write_chains(_question(make_record, "q"), "other", **{"agent.max_turns": 6})
    with pytest.raises(ValueError, match=r"agent\.max_turns must be the same in all folders, got 4 in .* and 6 in"):
        _read(first, other)
    with pytest.raises(ValueError, match="folder must be named once, got .* again: leave one out"):
        _read(first, first.parent / "." / first.name)
    copy = write_chains(_question(make_record, "q"), "copy")
    with pytest.raises(ValueError, match="sample 0 of question 'q' must occur once"):
        _read(first, copy)
    assert len(_read(first, tree).policies) == 2
    (tree / "records.jsonl").write_text("")
    with pytest.raises(ValueError, match="must hold chains or trees, got .*: they are never pooled, move one away"):
        _read(tree)
    with pytest.raises(FileNotFoundError, match="folder must be one of an evaluation or a run, got 'nowhere'"):
        _read(Path("nowhere"))
    with pytest.raises(FileNotFoundError, match=re.escape("must hold records.jsonl or trees.jsonl, got ")):
        _read(tmp_path)
    (first / "settings.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"settings\.json must be there, got no such file"):
        _read(first)


def test_damaged_trees_and_trees_without_scores_are_refused(write_trees):
    lines = _lines(_grown(0))
    folder = _spoil(write_trees(lines), lambda line: '{"step": 3}', "trees.jsonl")
    with pytest.raises(ValueError, match=r"trees\.jsonl, line 3: must be a tree of a run, got .*restore it"):
        _read(folder)
    for line in lines:
        for node in line["nodes"]:
            node["score"] = None
    with pytest.raises(ValueError, match=r"must hold scores, got none in \d+ paths: train with tree\.cap above 1"):
        _read(write_trees(lines, "unscored"))
