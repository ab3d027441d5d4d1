"""Which questions a step trains on: a function of recipe, seed and step."""

import json
import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 40), st.integers(1, 15), st.integers(0, 3))
def test_every_pass_visits_every_question_once(num_questions, batch, seed):
    from igrpo_train.data import batch_indices

    steps = -(-2 * num_questions // batch)
    order = np.concatenate([batch_indices(num_questions, batch, seed=seed, step=step) for step in range(steps)])
    for number in range(2):
        window = order[number * num_questions : (number + 1) * num_questions]
        assert sorted(window.tolist()) == list(range(num_questions))


def test_the_order_changes_with_seed_and_pass():
    from igrpo_train.data import batch_indices

    first, second = (batch_indices(50, 50, seed=0, step=step).tolist() for step in (0, 1))
    assert first != second
    assert first != batch_indices(50, 50, seed=1, step=0).tolist()
    assert first == batch_indices(50, 50, seed=0, step=0).tolist()


def test_a_step_s_questions_need_no_steps_before_it_and_no_one_process():
    from igrpo_train.data import batch_indices

    code = "from igrpo_train.data import batch_indices; print(batch_indices(1000, 24, seed=3, step=90).tolist())"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(other.stdout) == batch_indices(1000, 24, seed=3, step=90).tolist()
    # Shares of a batch are windows of the same order.
    halves = [batch_indices(1000, 12, seed=3, step=step).tolist() for step in (180, 181)]
    assert halves[0] + halves[1] == json.loads(other.stdout)


def test_validation_uses_the_same_questions_every_time():
    from igrpo_train.config import Recipe, Validation
    from igrpo_train.data import validation_questions
    from igrpo_train.question import Question

    questions = [Question(id=str(i), text="?", answers=("x",)) for i in range(30)]
    recipe = Recipe(validation=Validation(questions=7))
    chosen = validation_questions(questions, recipe)
    assert len(chosen) == 7
    assert chosen == validation_questions(questions, recipe)
    other = Recipe(seed=5, validation=Validation(questions=7))
    assert chosen == validation_questions(questions, other)
