"""The one action of a turn, case by case."""

import pytest

from igrpo_train.search.agent import ActionKind, parse_action


@pytest.mark.parametrize(
    ("text", "kind", "content", "valid"),
    [
        ("<search>a b</search>", "search", "a b", True),
        ("<think>x</think><answer> Paris </answer>", "answer", "Paris", True),
        ("<SEARCH>Ghent</SEARCH>", "search", "Ghent", True),
        ("<answer>one</answer> <search>two</search>", "answer", "one", True),
        ("<search>one</search> <search>two</search>", "search", "one", True),
        ("<search>open <answer>one</answer>", "answer", "one", False),
        ("<answer>open <search>two</search>", "search", "two", False),
        ("<search>one <search>two</search>", "search", "two", False),
        ("<answer></answer>", "answer", "", True),
        ("<search>  </search>", "none", "", False),
        ("<search>never closed", "none", "", False),
        ("</search> stray", "none", "", False),
        ("plain words", "none", "", False),
        ("", "none", "", False),
    ],
)
def test_the_first_complete_action_counts_and_breaches_are_marked(text, kind, content, valid):
    action = parse_action(text)
    assert (action.kind, action.text, action.valid) == (ActionKind(kind), content, valid)


def test_the_span_covers_the_action_with_its_tags():
    text = "<think>é</think> <search>Ghent</search> tail"
    action = parse_action(text)
    assert text[action.start : action.end] == "<search>Ghent</search>"


def test_a_missing_thought_is_allowed():
    assert parse_action("<answer>x</answer>").valid
