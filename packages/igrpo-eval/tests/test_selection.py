"""The limit picks a fixed subset."""

from hypothesis import given
from hypothesis import strategies as st


def _questions(ids):
    from igrpo_train.question import Question

    return [Question(id=id_, text="?", answers=("x",)) for id_ in ids]


@given(ids=st.lists(st.text(min_size=1), unique=True, min_size=1), small=st.integers(1, 20), data=st.data())
def test_a_subset_ignores_the_order_of_the_file_and_grows_with_the_limit(ids, small, data):
    from igrpo_eval.selection import limit_questions

    shuffled = data.draw(st.permutations(ids))
    chosen = [question.id for question in limit_questions(_questions(ids), small)]
    assert len(chosen) == min(small, len(ids))
    assert chosen == [id_ for id_ in ids if id_ in chosen]
    assert {question.id for question in limit_questions(_questions(shuffled), small)} == set(chosen)
    larger = {question.id for question in limit_questions(_questions(ids), small + 3)}
    assert set(chosen) <= larger


def test_a_question_stays_chosen_when_others_leave_the_file():
    from igrpo_eval.selection import limit_questions

    ids = [f"q{i}" for i in range(100)]
    chosen = [question.id for question in limit_questions(_questions(ids), 10)]
    fewer = [id_ for id_ in ids if id_ in chosen or id_ < "q5"]
    assert [question.id for question in limit_questions(_questions(fewer), 10)] == chosen


def test_the_subset_is_the_same_on_every_machine_and_in_every_version():
    from igrpo_eval.selection import limit_questions

    chosen = limit_questions(_questions([f"q{i}" for i in range(20)]), 3)
    assert [question.id for question in chosen] == ["q0", "q5", "q17"]


def test_no_limit_keeps_all():
    from igrpo_eval.selection import limit_questions

    questions = _questions("abc")
    assert limit_questions(questions, None) == questions
    assert limit_questions(questions, 3) == questions
