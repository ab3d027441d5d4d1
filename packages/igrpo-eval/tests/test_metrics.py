"""Summaries, and the table and JSON that show them."""

import io
import json

import pytest


@pytest.fixture
def records(make_record):
    """Three questions of two samples."""
    return [
        make_record(id="a", sample=0, hops=2, source="nq"),
        make_record(id="a", sample=1, hops=2, source="nq", exact_match=0.0, f1=0.5, turns=4, searches=3),
        make_record(
            id="b", sample=0, hops=3, source="[hotpot]", exact_match=0.0, f1=0.0, prediction=None, answered=False
        ),
        make_record(id="b", sample=1, hops=3, source="[hotpot]", invalid_turns=2),
        make_record(id="c", sample=0, hops=3, source="[hotpot]"),
        make_record(id="c", sample=1, hops=3, source="[hotpot]"),
    ]


def test_groups_are_all_then_hops_then_sources(records):
    from igrpo_eval.metrics import summarise

    groups = {s.group: (s.num_questions, s.num_records) for s in summarise(records)}
    assert groups == {"all": (3, 6), "hops=2": (1, 2), "hops=3": (2, 4), "source=[hotpot]": (2, 4), "source=nq": (1, 2)}
    assert [summary.group for summary in summarise(records[:2])] == ["all"]


def test_means_are_over_records_and_invalid_turns_over_turns(records):
    from igrpo_eval.metrics import summarise

    summary = summarise(records)[0]
    assert summary.exact_match.mean == pytest.approx(4 / 6)
    assert summary.f1.mean == pytest.approx(4.5 / 6)
    assert summary.turns == pytest.approx(14 / 6)
    assert summary.searches == pytest.approx(8 / 6)
    assert summary.answered_share == pytest.approx(5 / 6)
    assert summary.invalid_share == pytest.approx(2 / 14)
    assert summary.exact_match.low < summary.exact_match.mean < summary.exact_match.high


def test_intervals_resample_the_samples_of_a_question_together(records):
    from igrpo_eval.metrics import summarise

    # Question a has mean 0.5 and is alone in its group: no other question could have been drawn.
    assert summarise(records)[1].exact_match == (0.5, 0.5, 0.5)


def test_no_record_is_an_error():
    from igrpo_eval.metrics import summarise

    with pytest.raises(ValueError, match="records must hold at least one, got none"):
        summarise([])


def test_the_table_shows_percentages_with_their_intervals(records):
    from rich.console import Console

    from igrpo_eval.metrics import summarise
    from igrpo_eval.report import summary_table

    out = io.StringIO()
    Console(file=out, width=120).print(summary_table(summarise(records)))
    shown = out.getvalue()
    assert "66.7 [50.0,100.0]" in shown
    assert "source=[hotpot]" in shown
    assert "…" not in shown


def test_the_json_report_reads_back(records):
    from igrpo_eval.metrics import summarise
    from igrpo_eval.report import report_json

    report = report_json(summarise(records), {"seed": 0}, {"time/generation_s": 1.5})
    read = json.loads(json.dumps(report, allow_nan=False))
    assert read["settings"] == {"seed": 0}
    assert read["groups"][0]["exact_match"]["mean"] == pytest.approx(4 / 6)
    assert set(read["groups"][0]["f1"]) == {"mean", "low", "high"}
