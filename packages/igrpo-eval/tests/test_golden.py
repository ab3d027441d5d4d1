"""Whole episodes, from scripted responses over a real search to records, against records that are committed.

To change them on purpose, delete the file, run this test once, and read what it wrote.
"""

import json
from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("golden") / "records.jsonl"
FOUND = {
    "which river meets the Scheldt at Ghent?": ("Lys", "the Leie"),
    "what is the capital of Norway?": ("Oslo",),
    "how many people live in Norway?": ("5550000",),
    "who wrote on the gate?": ("The",),
    "what lies in Ghent?": ("Scheldt",),
}
SCRIPT = {
    # Two searches, then an answer that needs normalising.
    "which river meets the Scheldt at Ghent?": [
        "<think>look it up</think><search>capital Norway</search>",
        "<think>not it</think><search>river Ghent</search>",
        "<answer>The lys.</answer>",
    ],
    # The document holds an answer in tags; the policy never gives one.
    "what is the capital of Norway?": ["<search>Oslo gate</search>"] * 4,
    # An unclosed answer, an empty search, then a nested answer.
    "how many people live in Norway?": [
        "<answer>5,550,000",
        "<search> </search>",
        "<answer>5 <answer>5,550,000</answer>",
    ],
    # A search without a find, and an accepted answer that normalises to nothing.
    "who wrote on the gate?": ["<search>zzz</search>", "<answer>?</answer>"],
    # Cut by the length limit, then an answer that shares a word with the accepted one.
    "what lies in Ghent?": ["<think>" + "and on " * 40, "<answer>the river Scheldt</answer>"],
}


def _plain(record):
    from igrpo_eval.records import record_to_line

    row = json.loads(record_to_line(record))
    del row["seconds"]
    return row


def test_episodes_leave_the_committed_records(play):
    rows = [_plain(record) for record in play(SCRIPT, FOUND, scores=True)]
    if not GOLDEN.exists():
        GOLDEN.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        pytest.fail(f"{GOLDEN.name} was written: read it")
    assert rows == [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").split("\n") if line]


def test_answer_tags_of_a_document_are_never_graded(play):
    record = play(SCRIPT, FOUND)[1]
    assert "<answer>Oslo</answer>" in record.transcript[0]["observation"]
    assert (record.prediction, record.exact_match, record.answer_seen[-1]) == (None, 0.0, True)
