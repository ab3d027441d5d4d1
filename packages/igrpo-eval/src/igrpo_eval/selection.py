"""selection: questions and a limit -> the fixed subset that is evaluated.

Example:
    >>> questions = [Question(id=str(i), text="?", answers=("x",)) for i in range(9)]
    >>> small, large = ({q.id for q in limit_questions(questions, limit)} for limit in (3, 5))
    >>> small < large
    True
"""

import heapq
from collections.abc import Sequence

from igrpo_theory.randomness import text_key
from igrpo_train.question import Question


def limit_questions(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """The questions whose ids have the smallest hashes, in the order of their file.

    The choice depends on the ids alone: it is the same for every seed and order of the file, and a smaller limit picks
    a part of what a larger one picks, so that a later, larger evaluation can go on from a small one.

    Args:
        questions: of one file; their ids are unique.
        limit: how many to keep; None, or more than there are, keeps all.
    """
    if limit is None or limit >= len(questions):
        return list(questions)
    chosen = {question.id for question in heapq.nsmallest(limit, questions, key=lambda q: (text_key(q.id), q.id))}
    return [question for question in questions if question.id in chosen]
