"""Reports of finished evaluations: averages, paired differences, and what is not compared unasked."""

import json

import pytest

SETTINGS = {
    "model.path": "a",
    "model.weights": "1f",
    "step": None,
    "benchmark": ["nq/test"],
    "agent.top_k": 3,
    "agent.max_turns": 4,
    "prompt.hash": "aa",
    "corpus.hash": "cc",
    "normaliser": "squad",
    "temperature": 0.0,
    "samples": 1,
    "seed": 0,
}


@pytest.fixture
def finished(tmp_path, make_record):
    """Write a finished evaluation; returns its folder's name."""

    def build(name, grades, source="nq", settings=(), **fields):
        from igrpo_eval.records import record_to_line

        folder = tmp_path / name
        folder.mkdir()
        sources = source if isinstance(source, list) else [source] * len(grades)
        records = [
            make_record(
                **{"id": f"{own}/{k}", "source": own, "exact_match": float(grade), "f1": float(grade), **fields}
            )
            for k, (grade, own) in enumerate(zip(grades, sources, strict=True))
        ]
        (folder / "records.jsonl").write_text("".join(record_to_line(r) + "\n" for r in records), encoding="utf-8")
        (folder / "settings.json").write_text(json.dumps(SETTINGS | dict(settings)))
        (folder / "summary.json").write_text(json.dumps({"groups": [{"num_records": len(records)}]}))
        return str(folder)

    return build


def _report(capsys, *args):
    from igrpo_eval.__main__ import main

    main(["report", *args])
    return capsys.readouterr().out


def _json(capsys, *args):
    return json.loads(_report(capsys, "--json", *args))


def _refused(capsys, *args):
    with pytest.raises(SystemExit) as stopped:
        _report(capsys, *args)
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.replace("│", "").split())


def test_both_averages_are_named_and_the_weights_are_those_of_the_whole_sets(finished, capsys):
    folder = finished("a", [1, 1, 0, 0, 0, 1], source=["nq", "nq", "nq", "nq", "bamboogle", "bamboogle"])
    groups = {group["group"]: group for group in _json(capsys, folder)["runs"][0]["groups"]}
    assert list(groups) == ["nq", "bamboogle", "macro average", "size-weighted average"]
    nq, bamboogle = (groups[name]["exact_match"]["mean"] for name in ("nq", "bamboogle"))
    assert (nq, bamboogle) == (0.5, 0.5)
    assert groups["macro average"]["num_questions"] == 6
    folder = finished("b", [1, 1, 0], source=["nq", "nq", "bamboogle"])
    groups = {group["group"]: group for group in _json(capsys, folder)["runs"][0]["groups"]}
    assert groups["macro average"]["exact_match"]["mean"] == 0.5
    assert groups["size-weighted average"]["exact_match"]["mean"] == pytest.approx(3610 / 3735)


def test_one_set_has_no_averages(finished, capsys):
    assert [group["group"] for group in _json(capsys, finished("a", [1, 0]))["runs"][0]["groups"]] == ["nq"]


def test_the_tables_show_every_metric(finished, capsys):
    shown = _report(capsys, finished("a", [1, 0]), "--pass_k", "1")
    for name in ("exact match", "F1", "pass@1", "search", "official", "seen", "invalid", "cut", "prompt", "response"):
        assert name in shown
    assert "temperature 0.0" in shown


def test_two_runs_are_compared_on_their_questions(finished, capsys):
    first = finished("a", [0] * 10 + [1] * 10)
    second = finished("b", [1] * 5 + [0] * 5 + [1] * 10, settings={"model.path": "b", "step": 40, "seed": 7})
    comparison = _json(capsys, first, second)["comparisons"][0]
    assert comparison["differing"] == {}
    line = comparison["lines"][0]
    assert (line["group"], line["metric"], line["method"], line["num_differing"]) == ("nq", "exact_match", "exact", 5)
    assert line["difference"]["mean"] == 0.25
    assert line["p_value"] == 2 / 2**5
    assert _json(capsys, second, first)["comparisons"][0]["lines"][0]["difference"]["mean"] == -0.25
    shown = _report(capsys, first, second)
    assert "0.062" in shown
    assert "exact" in shown


def test_runs_alike_have_a_certain_p_value_of_one(finished, capsys):
    line = _json(capsys, finished("a", [1, 0]), finished("b", [1, 0]))["comparisons"][0]["lines"][0]
    assert (line["p_value"], line["difference"]["mean"]) == (1.0, 0.0)


def test_many_differing_questions_are_compared_by_drawn_patterns_with_a_seed(finished, capsys):
    first, second = finished("a", [0] * 40), finished("b", [1] * 20 + [0] * 20)
    line, again = (_json(capsys, first, second)["comparisons"][0]["lines"][0] for _ in range(2))
    assert line == again
    assert line["method"] == "monte carlo"


def test_sets_are_compared_apart_and_by_both_averages(finished, capsys):
    sources = ["nq"] * 4 + ["bamboogle"] * 2
    first, second = finished("a", [0] * 6, source=sources), finished("b", [1, 1, 0, 0, 1, 1], source=sources)
    lines = [x for x in _json(capsys, first, second)["comparisons"][0]["lines"] if x["metric"] == "exact_match"]
    found = {line["group"]: line["difference"]["mean"] for line in lines}
    assert found["nq"] == 0.5
    assert found["bamboogle"] == 1.0
    assert found["macro average"] == 0.75
    assert found["size-weighted average"] == pytest.approx((3610 * 0.5 + 125) / 3735)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt.hash", "bb"),
        ("agent.top_k", 5),
        ("corpus.hash", None),
        ("normaliser", "own"),
        ("benchmark", ["nq/dev"]),
        ("agent.max_turns", 3),
        ("temperature", 1.0),
    ],
)
def test_runs_that_differ_in_more_than_the_policy_are_not_compared_unless_forced(finished, capsys, name, value):
    first, second = finished("a", [0, 1]), finished("b", [1, 1], settings={name: value})
    refusal = _refused(capsys, first, second)
    assert f"{name} is {json.dumps(SETTINGS[name])} there, {json.dumps(value)} here" in refusal
    assert "add --force to see the difference all the same" in refusal
    shown = _report(capsys, "--force", first, second)
    assert shown.index(f"{name}: {json.dumps(SETTINGS[name])} | {json.dumps(value)}") < shown.index("metric")
    assert name in _json(capsys, "--force", first, second)["comparisons"][0]["differing"]


def test_other_questions_are_refused_and_forced_on_the_common_ones(finished, capsys):
    first, second = finished("a", [0, 1, 1]), finished("b", [1, 1])
    assert "questions is 3 (2 of them in both, word for word) there, 2 here" in _refused(capsys, first, second)
    line = _json(capsys, "--force", first, second)["comparisons"][0]["lines"][0]
    assert (line["num_questions"], line["difference"]["mean"]) == (2, 0.5)
    third = finished("c", [0, 1, 1], golds=("Oslo",))
    assert "questions is 3 (0 of them in both" in _refused(capsys, first, third)
    other = finished("d", [1], source="mine")
    assert "must have a question in common" in _refused(capsys, "--force", first, other)


def test_an_evaluation_that_was_stopped_is_no_result(finished, capsys, tmp_path):
    folder = finished("a", [1, 0])
    (tmp_path / "a" / "summary.json").unlink()
    assert "must hold a finished evaluation, got" in _refused(capsys, folder)
    assert "must hold an evaluation, got" in _refused(capsys, str(tmp_path / "none"))


def test_damaged_folders_are_named(finished, capsys, tmp_path):
    folder, path = finished("a", [1, 0]), tmp_path / "a" / "records.jsonl"
    lines = path.read_text(encoding="utf-8")
    path.write_text(lines[:-20], encoding="utf-8")
    assert "must hold the 2 records of summary.json, got 1: the file was cut" in _refused(capsys, folder)
    path.write_text(lines + lines.partition("\n")[0] + "\n", encoding="utf-8")
    assert "got sample 0 of question 'nq/0' twice" in _refused(capsys, folder)
    path.write_text(lines, encoding="utf-8")
    for name, text in (("settings.json", "{"), ("summary.json", "[]"), ("summary.json", "{}")):
        before = (tmp_path / "a" / name).read_text()
        (tmp_path / "a" / name).write_text(text)
        # A panel breaks long paths.
        assert f"{name}must" in _refused(capsys, folder).replace(" ", "")
        (tmp_path / "a" / name).write_text(before)


def test_pass_at_k_of_more_samples_than_there_are_names_the_folder(finished, capsys):
    assert "a: k must be between 1 and the samples of every question" in _refused(
        capsys, finished("a", [1]), "--pass_k", "2"
    )


def test_wrong_flags_are_explained(capsys, finished):
    folder = finished("a", [1])
    for flags, shown in (((folder, "--forse"), "--force"), ((folder, folder), "folders must be different ones")):
        assert shown in _refused(capsys, *flags)


def test_a_real_run_can_be_reported(command, capsys):
    folder = command("--samples=2", "--pass_k", "1", "2")
    capsys.readouterr()
    shown = _report(capsys, str(folder), "--pass_k", "2")
    assert "pass@2" in shown
    assert json.loads((folder / "summary.json").read_text())["groups"][0]["pass_at"]["2"]["mean"] >= 0
