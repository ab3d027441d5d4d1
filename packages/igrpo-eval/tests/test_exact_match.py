"""The one exact match on what answers really look like: values as SQuAD's rule gives them, beside a slow twin."""

import string
from collections import Counter

import pytest

CASES = [
    # prediction, accepted answers, exact match, F1
    # Articles
    ("the Lys", ("Lys",), 1.0, 1.0),
    ("A Lys an", ("the lys",), 1.0, 1.0),
    ("the-Lys", ("Lys",), 0.0, 0.0),  # punctuation first: "thelys"
    ("thé", ("th",), 0.0, 0.0),
    ("Les Misérables", ("Misérables",), 0.0, 2 / 3),  # articles of other languages stay
    # Punctuation
    ("Ghent, Belgium.", ("ghent belgium",), 1.0, 1.0),
    ("Ghent/Bruges", ("Ghent Bruges",), 0.0, 0.0),  # deleted, not replaced by a space
    ("Jean-Paul", ("Jean Paul",), 0.0, 0.0),
    ("Jean-Paul", ("jeanpaul",), 1.0, 1.0),
    ("O’Brien", ("O'Brien",), 0.0, 0.0),  # only ASCII punctuation goes
    ("“Lys”", ("Lys",), 0.0, 0.0),
    # Unicode: nothing is composed, folded or stripped of accents
    ("Liège", ("Lie\u0300ge",), 0.0, 0.0),  # composed and decomposed
    ("Lie\u0300ge", ("Lie\u0300ge",), 1.0, 1.0),
    ("Liège", ("Liege",), 0.0, 0.0),
    ("LIÈGE", ("liège",), 1.0, 1.0),
    ("Ｌｙｓ", ("Lys",), 0.0, 0.0),  # full-width letters
    ("１９９９", ("1999",), 0.0, 0.0),
    ("1914–1918", ("1914-1918",), 0.0, 0.0),  # an en dash is no hyphen
    ("1914—1918", ("1914–1918",), 0.0, 0.0),
    ("1914-1918", ("19141918",), 1.0, 1.0),
    ("Gent\u00a0Zuid", ("gent zuid",), 1.0, 1.0),  # white space of any kind
    ("Gent\u200bZuid", ("gentzuid",), 0.0, 0.0),  # a zero-width space is none
    # Numbers
    ("1,000", ("1000",), 1.0, 1.0),
    ("1.5", ("15",), 1.0, 1.0),
    ("1 000", ("1000",), 0.0, 0.0),
    ("one thousand", ("1000",), 0.0, 0.0),
    ("$1", ("1",), 1.0, 1.0),
    ("€1", ("1",), 0.0, 0.0),
    ("07", ("7",), 0.0, 0.0),
    # Several accepted answers: the best counts
    ("Lys", ("Scheldt", "River Lys", "lys"), 1.0, 1.0),
    ("river Lys", ("Scheldt", "Lys"), 0.0, 2 / 3),
    ("Scheldt Lys", ("Scheldt", "Lys"), 0.0, 2 / 3),  # not one answer made of two
    ("Lys Lys", ("Lys",), 0.0, 2 / 3),  # words are counted
    # Nothing
    ("", ("Lys",), 0.0, 0.0),
    (None, ("Lys",), 0.0, 0.0),
    (None, ("The",), 0.0, 0.0),
    ("", ("The",), 1.0, 1.0),  # both empty after normalisation
    ("?", ("The",), 1.0, 1.0),
    ("an", ("?",), 1.0, 1.0),
    ("The Who", ("The",), 0.0, 0.0),
    ("Who", ("The", "who"), 1.0, 1.0),
    ("yes", ("no",), 0.0, 0.0),
    ("Yes.", ("yes",), 1.0, 1.0),
    ("yes, it is", ("yes",), 0.0, 1 / 2),
]


def _words(text):
    """SQuAD's rule, a character at a time."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def _overlap(guess, gold):
    common = sum((Counter(guess) & Counter(gold)).values())
    return float(guess == gold) if not guess or not gold else 2 * common / (len(guess) + len(gold))


@pytest.mark.parametrize(("prediction", "golds", "exact", "overlap"), CASES)
def test_an_answer_is_graded_by_the_rule_of_squad(prediction, golds, exact, overlap):
    from igrpo_train.rewards import exact_match, f1

    assert exact_match(prediction, golds) == exact
    assert f1(prediction, golds) == pytest.approx(overlap)
    if prediction is not None:
        guess = _words(prediction)
        assert exact == float(any(guess == _words(gold) for gold in golds))
        assert overlap == pytest.approx(max(_overlap(guess, _words(gold)) for gold in golds))


TAGS = [
    # response of the one allowed turn, prediction, whether it keeps to the protocol
    ("<answer>Lys</answer>", "Lys", True),
    ("<ANSWER> Lys\n</Answer>", "Lys", True),
    ("<answer></answer>", "", True),
    ("<answer>one</answer><answer>Lys</answer>", "one", True),  # read up to the first end
    ("<answer>one <answer>Lys</answer>", "Lys", False),  # nested: the inner one
    ("<answer>Lys", None, False),  # unclosed
    ("Lys</answer>", None, False),
    ("<answer>Lys</search>", None, False),
    ("<search>one</search><answer>Lys</answer>", None, True),  # a search in the last turn
    ("<answer>one <search>Lys</search></answer>", None, False),
    ("<search></search><answer>Lys</answer>", None, False),
    ("<think><answer>no</answer></think><answer>Lys</answer>", "no", True),
    ("<answer><information>Lys</information></answer>", "<information>Lys</information>", True),
    ("the answer is Lys", None, False),
]


@pytest.mark.parametrize(("response", "prediction", "valid"), TAGS)
def test_what_stands_between_tags_is_the_prediction(response, prediction, valid, play):
    [record] = play({"which river?": [response]}, {"which river?": ("Lys",)}, turn_limit=1)
    assert record.prediction == prediction
    assert record.answered == (prediction is not None)
    assert record.invalid_turns == (0 if valid else 1)
    assert record.exact_match == float(prediction == "Lys")
