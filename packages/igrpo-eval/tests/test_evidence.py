"""Answer-in-retrieved: what the policy could read, normalised as exact match does, in whole words."""

import pytest


def _turn(observation, documents=("d",)):
    from igrpo_train.search.agent import NO_ACTION
    from igrpo_train.search.session import Turn

    said = {"response_ids": (1,), "response_logprobs": (0.0,), "text": "", "action": NO_ACTION, "history_ids": ()}
    return Turn(**said, observation=observation, documents=documents, finish="stop")


def _seen(golds, *turns, **settings):
    from igrpo_eval.evidence import answer_seen
    from igrpo_train.config import Agent

    return answer_seen(turns, golds, Agent(**settings))


@pytest.mark.parametrize(
    ("gold", "text", "seen"),
    [
        ("Ghent", "Doc 1(Title: Belgium) It lies in Ghent.\n", True),
        ("The Hague", "a visit to Hague, in May", True),
        ("U.S.A.", "made in the USA", True),
        ("Gent", "Ghent and Gentle", False),
        ("New York", "New; York", True),
        ("York New", "New York", False),
        ("The", "The end", False),
        ("?", "?", False),
        ("information", "nothing of the kind", False),
    ],
)
def test_an_answer_is_seen_in_whole_normalised_words(gold, text, seen):
    tags = {"observation_open": "<information>", "observation_close": "</information>"}
    assert _seen((gold,), _turn(f"<information>{text}</information>"), **tags) == (seen,)


def test_any_accepted_answer_counts_from_its_turn_on():
    turns = (_turn("one"), _turn("two"), _turn("three"), _turn("", ()))
    assert _seen(("Three", "two"), *turns) == (False, True, True, True)


def test_a_text_that_stands_for_no_documents_is_no_document():
    assert _seen(("nothing",), _turn("Nothing found.", ())) == (False,)
