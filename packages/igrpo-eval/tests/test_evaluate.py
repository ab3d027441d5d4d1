"""Evaluation: the training loop at width one, independent of batches, graded by the one exact match."""

import dataclasses

import numpy as np
import pytest


def _evaluate(agent, questions, **settings):
    from igrpo_eval.evaluate import evaluate

    return evaluate(agent, questions, **{"turn_limit": 4, "temperature": 1.0, "seed": 3, **settings})


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_records_do_not_depend_on_batches_order_or_limit(make_agent, questions, samples, temperature):
    settings = {"samples": samples, "temperature": temperature}
    whole = _evaluate(make_agent(), questions, **settings)
    assert _evaluate(make_agent(), questions, batch_questions=1, **settings) == whole
    assert _evaluate(make_agent(), questions, batch_questions=5, **settings) == whole
    backwards = _evaluate(make_agent(), questions[::-1], **settings)
    assert {(r.id, r.sample): r for r in backwards} == {(r.id, r.sample): r for r in whole}
    assert _evaluate(make_agent(), questions[7:9], **settings) == whole[7 * samples : 9 * samples]


def test_records_come_by_question_then_by_sample(make_agent, questions):
    records = _evaluate(make_agent(), questions, samples=3)
    assert [(r.id, r.sample) for r in records] == [(q.id, s) for q in questions for s in range(3)]


def test_a_sample_is_a_chain_whose_later_turns_are_its_own(make_agent, questions):
    agent = make_agent()
    records = _evaluate(agent, questions, samples=3, batch_questions=len(questions))
    turns = [record.turns for record in records]
    assert max(turns) == 4
    assert min(turns) == 1
    assert agent.sampler.generated == [sum(count > depth for count in turns) for depth in range(4)]


def test_seed_and_sample_change_what_is_drawn(make_agent, questions):
    records = _evaluate(make_agent(), questions, samples=2)
    other = _evaluate(make_agent(), questions, samples=2, seed=4)
    assert [r.transcript for r in records] != [r.transcript for r in other]
    assert [r.transcript for r in records if r.sample == 0] != [r.transcript for r in records if r.sample == 1]


def test_the_first_turn_does_not_depend_on_the_number_of_samples(make_agent, questions):
    one = _evaluate(make_agent(), questions)
    many = [record for record in _evaluate(make_agent(), questions, samples=4) if record.sample == 0]
    assert [record.transcript[0] for record in one] == [record.transcript[0] for record in many]


def test_grades_are_those_of_training_on_the_same_predictions(make_agent, questions):
    from igrpo_train.rewards import exact_match, f1

    records = _evaluate(make_agent(), questions, samples=4)
    assert {record.exact_match for record in records} == {0.0, 1.0}
    assert any(0 < record.f1 < 1 for record in records)
    for record in records:
        assert record.exact_match == exact_match(record.prediction, record.golds)
        assert record.f1 == f1(record.prediction, record.golds)
        assert record.answered == (record.prediction is not None)


def test_there_is_one_exact_match_in_training_and_evaluation(make_agent, questions, monkeypatch):
    from igrpo_train import rewards, rollout

    assert rollout.exact_match is rewards.exact_match
    monkeypatch.setattr(rollout, "exact_match", lambda prediction, answers: 0.25)
    assert {record.exact_match for record in _evaluate(make_agent(), questions)} == {0.25}


def test_a_search_in_the_last_turn_is_not_counted_as_carried_out(make_agent, questions):
    always = make_agent("<search> ba ko founder </search>")
    record = _evaluate(always, questions[:1], turn_limit=3)[0]
    assert (record.turns, record.searches, record.prediction) == (3, 2, None)
    assert [bool(turn["observation"]) for turn in record.transcript] == [True, True, False]


def test_turns_without_an_action_are_counted_as_invalid(make_agent, questions):
    record = _evaluate(make_agent("<think> done </think>"), questions[:1], turn_limit=2)[0]
    assert (record.turns, record.invalid_turns, record.searches, record.response_tokens) == (2, 2, 0, 6)
    assert not record.answered


def test_the_transcript_holds_what_was_written_and_what_came_back(make_agent, questions):
    agent = make_agent()
    records = _evaluate(agent, questions)
    searched = next(record for record in records if record.searches and record.answered)
    first, last = searched.transcript[0], searched.transcript[-1]
    assert first["action"] == "search"
    assert "<information>" in first["observation"]
    assert (last["action"], last["action_text"]) == ("answer", searched.prediction)
    assert sum(turn["tokens"] for turn in searched.transcript) == searched.response_tokens


def test_progress_gets_each_batch_once_and_may_stop_the_evaluation(make_agent, questions):
    seen = []

    def stop_after_two(batch):
        seen.append(len(batch))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _evaluate(make_agent(), questions, batch_questions=4, samples=2, on_progress=stop_after_two)
    assert seen == [8, 8]


def test_a_question_that_does_not_fit_is_refused_before_the_first_is_answered(make_agent, questions):
    agent = make_agent(max_prompt_tokens=60)
    long = dataclasses.replace(questions[0], id="long", text="ba " * 80 + "?")
    with pytest.raises(ValueError, match=r"question 'long' must fit agent\.max_prompt_tokens = 60"):
        _evaluate(agent, [*questions, long])
    assert agent.sampler.generated == []


def test_seconds_are_shared_among_the_records_of_a_batch_and_phases_are_filled(make_agent, questions):
    from igrpo_train.tracking import Phases

    phases = Phases()
    records = _evaluate(make_agent(), questions, phases=phases)
    assert len({record.seconds for record in records}) == 1
    assert records[0].seconds > 0
    assert phases.take()["tokens/generation"] == sum(record.response_tokens for record in records)


def test_scores_are_those_of_training_and_change_nothing_else(make_agent, questions):
    from igrpo_train.search.sampling import Sampler

    agent = make_agent()
    assert isinstance(agent.sampler, Sampler)
    agent.sampler.scores = True
    plain = _evaluate(make_agent(), questions, samples=2)
    scored = _evaluate(agent, questions, samples=2, scores=True)
    assert [dataclasses.replace(r, root_score=None, scores=(None,) * r.turns) for r in scored] == plain
    for record in scored:
        assert record.root_score is not None
        assert 0 < record.root_score < 1
        *goes_on, last = record.scores
        assert last is None
        assert all(score is not None for score in goes_on)
    assert len({record.root_score for record in scored}) == len(questions)
    assert _evaluate(agent, questions, samples=2, scores=True, batch_questions=5) == scored


def test_scores_are_written_where_the_scorer_was_asked_for_that_state(make_agent, questions):
    agent = make_agent("<search> ba ko founder </search>")
    agent.sampler.scores = True
    record = _evaluate(agent, questions[:1], turn_limit=3, scores=True)[0]
    prompt = agent.prompting.prompt(questions[0])
    histories = [_history(agent, turn) for turn in record.transcript]
    states = [(), histories[0], (*histories[0], *histories[1])]
    contexts = [((*prompt.head_ids, *state), prompt.tail_ids) for state in states]
    golds = [questions[0].answers] * 3
    expected = agent.scorer.score(contexts, np.arange(3), golds).score.tolist()
    assert [record.root_score, *record.scores] == [*expected, None]
    lengths = [len(head) + len(tail) for head, tail in contexts]
    assert record.prompt_tokens == sum(lengths)


def _history(agent, turn):
    """Ids that later turns see of a search turn: the words of this tokenizer are whole, so texts may be joined."""
    return tuple(agent.prompting.tokenizer(turn["text"] + turn["observation"], add_special_tokens=False)["input_ids"])


def test_official_tool_calls_count_every_turn_but_the_last(make_agent, questions):
    idle = _evaluate(make_agent("<think> done </think>"), questions[:1], turn_limit=3)[0]
    assert (idle.searches, idle.tool_calls_official, idle.answer_seen) == (0, 2, (False,) * 3)
    once = _evaluate(make_agent("<answer> ba </answer>"), questions[:1])[0]
    assert (once.turns, once.tool_calls_official, once.scores) == (1, 0, (None,))


def test_a_response_cut_by_the_length_limit_is_counted(make_agent, questions, monkeypatch):
    agent = make_agent("<think> done </think>")
    generate = agent.sampler.generate

    def cut(*args, **settings):
        return [completion._replace(finish="length") for completion in generate(*args, **settings)]

    monkeypatch.setattr(agent.sampler, "generate", cut)
    assert _evaluate(agent, questions[:1], turn_limit=2)[0].truncated_turns == 2
    assert _evaluate(make_agent(), questions[:1])[0].truncated_turns == 0


def test_the_answer_is_seen_from_the_search_that_brings_it(make_agent, questions):
    records = _evaluate(make_agent(), questions, samples=4)
    for record in records:
        found = False
        for turn, seen in zip(record.transcript, record.answer_seen, strict=True):
            found = found or record.golds[0] in turn["observation"]
            assert seen == found
    assert {record.answer_seen[-1] for record in records} == {False, True}
