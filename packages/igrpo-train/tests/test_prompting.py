"""Segments of a context: what is written where, and what gives way when room is short."""

import pytest


@pytest.fixture
def make(toy_tokenizer):
    from igrpo_train.config import Agent, Scoring
    from igrpo_train.search.prompting import Prompting

    def build(context_limit=None, preamble="<answer>", tokenizer=toy_tokenizer, **agent):
        return Prompting(tokenizer, Agent(**agent), Scoring(preamble=preamble), context_limit)

    return build


def _question(text="who founded {Ghent}?"):
    from igrpo_train.question import Question

    return Question(id="q1", text=text, answers=("Paris",))


@pytest.mark.parametrize("history", ["documents", "everything"])
def test_head_and_tail_spell_the_chat_with_the_history_last(make, history):
    prompting = make(history=history)
    prompt = prompting.prompt(_question())
    head = prompting.tokenizer.decode(prompt.head_ids)
    tail = prompting.tokenizer.decode(prompt.tail_ids)
    assert "who founded {Ghent}?" in head
    assert (head + tail).endswith("<|im_start|>assistant\n")
    assert tail == ("<|im_end|>\n<|im_start|>assistant\n" if history == "documents" else "")


def test_a_question_that_does_not_fit_is_refused_and_named(make):
    with pytest.raises(ValueError, match=r"question 'q1' must fit agent\.max_prompt_tokens = 20 .* raise the limit"):
        make(max_prompt_tokens=20).prompt(_question())


def test_an_answer_that_does_not_fit_the_model_is_refused_before_the_run(make):
    from igrpo_train.question import Question
    from igrpo_train.setup import check_answers

    prompting = make(context_limit=512, max_prompt_tokens=400, max_response_tokens=100)
    fine = [Question(id="q1", text="?", answers=("Paris", "word " * 200)), Question(id="q2", text="?", answers=("…",))]
    check_answers(prompting, fine)
    message = r"question 'q3' must have an answer that fits the 112 positions .* of the model's 512, got \d+ tokens"
    with pytest.raises(ValueError, match=message):
        check_answers(prompting, [*fine, Question(id="q3", text="?", answers=("word " * 200,))])


def test_overlong_questions_are_left_out_and_counted(make, caplog):
    from igrpo_train.question import Question
    from igrpo_train.setup import fitting_questions

    prompting = make(template="{question} {history}", max_prompt_tokens=60)
    texts = ["Who?", "word " * 200, "Where?", "w" * 61]
    questions = [Question(id=str(k), text=text, answers=("a",)) for k, text in enumerate(texts)]
    kept = fitting_questions(prompting, questions, "data.train")
    assert [question.id for question in kept] == ["0", "2"]
    assert "2 of 4 questions of data.train are left out: question '1' must fit agent.max_prompt_tokens" in caplog.text
    caplog.clear()
    assert fitting_questions(prompting, kept, "data.train") == kept
    assert caplog.text == ""
    with pytest.raises(
        ValueError, match=r"data\.train must hold a question that fits the prompt, got 1 too long: question"
    ):
        fitting_questions(prompting, questions[1:2], "data.train")


def test_limits_beyond_the_model_are_refused(make):
    with pytest.raises(ValueError, match=r"must be at most the model's 512 positions, got 4608"):
        make(context_limit=512)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].content", r"that takes one user message, got .* \(unexpected end of template"),
        (
            "{{ raise_exception('a system message, please') }}",
            r"takes one user message, .* \(a system message, please\)",
        ),
        (
            "hello",
            r"a chat template that repeats the user message, got .*: mend the template, or set agent\.chat = false",
        ),
    ],
)
def test_a_chat_template_that_fails_is_refused(make, toy_tokenizer, template, message):
    import copy

    broken = copy.deepcopy(toy_tokenizer)
    broken.chat_template = template
    with pytest.raises(ValueError, match=message):
        make(tokenizer=broken).prompt(_question("who?"))


def test_a_missing_chat_template_is_refused_with_the_way_out(make, toy_tokenizer):
    import copy

    plain = copy.deepcopy(toy_tokenizer)
    plain.chat_template = None
    with pytest.raises(ValueError, match=r"tokenizer with a chat template, .* agent\.chat = false"):
        make(tokenizer=plain)
    prompt = make(tokenizer=plain, chat=False).prompt(_question())
    assert "im_start" not in plain.decode(prompt.head_ids + prompt.tail_ids)


def _passages():
    from igrpo_train.question import Passage

    return [Passage(id=str(i), title=f"T{i}", text="Ghent is a city in Belgium. " * 3) for i in range(3)]


def test_documents_are_cut_and_the_closing_tag_stays(make):
    prompting = make(max_observation_tokens=30)
    seen = prompting.observe(_passages(), room=1000)
    assert seen.cut
    assert prompting.decode(seen.ids) == seen.text
    assert seen.text.startswith("\n\n<information>Doc 1(Title: T0) Ghent")
    assert seen.text.endswith("</information>\n\n")
    whole = make().observe(_passages(), room=1000)
    assert not whole.cut
    assert "Doc 3(Title: T2)" in whole.text


@pytest.mark.parametrize("room", [0, 10, 40, 80])
def test_an_observation_never_takes_more_than_its_room(make, room):
    seen = make().observe(_passages(), room=room)
    assert len(seen.ids) <= room
    assert seen.cut


def test_a_search_without_results_says_so(make):
    assert "Nothing found." in make().observe([], room=100).text


@pytest.mark.parametrize("answer", ["Paris", "Émile Zola", "1871.", "東京"])
@pytest.mark.parametrize("preamble", ["<answer>", "<think>\nenough\n</think>\n<answer>\n", ""])
def test_the_gold_span_is_exactly_the_answer(make, answer, preamble):
    prompting = make(preamble=preamble)
    forced = prompting.forced_answer(answer)
    gold = [token for token, is_gold in zip(forced.token_ids, forced.gold, strict=True) if is_gold]
    assert prompting.tokenizer.decode(forced.token_ids) == preamble + answer
    assert answer in prompting.tokenizer.decode(gold)
    assert not forced.gold[: len(forced.gold) - len(gold)].any()


@pytest.mark.parametrize(
    "text", ["<think>é</think> <search>mayor of Ghent</search>", "x<answer>Émile</answer>.", "<search>東京</search>"]
)
def test_action_ids_are_the_sampled_ids_that_cover_the_action(make, text):
    from igrpo_train.search.agent import parse_action

    prompting = make()
    ids = prompting.tokenizer(text, add_special_tokens=False)["input_ids"]
    action = parse_action(text)
    covered = prompting.action_ids(ids, action)
    spelled = prompting.decode(covered)
    assert text[action.start : action.end] in spelled
    assert len(spelled) <= action.end - action.start + 8
    assert any(tuple(ids[i : i + len(covered)]) == covered for i in range(len(ids)))


@pytest.mark.parametrize("text", ["what does {history} mean?", "what does {question} mean?", "what is \u241e?"])
@pytest.mark.parametrize("history", ["documents", "everything"])
def test_a_question_may_hold_the_words_of_the_template(make, text, history):
    prompting = make(history=history)
    prompt = prompting.prompt(_question(text))
    assert f"Question: {text}\n" in prompting.tokenizer.decode(prompt.head_ids)
    plain = prompting.prompt(_question("?"))
    assert prompt.tail_ids == plain.tail_ids


def test_an_answer_of_which_the_tokenizer_keeps_nothing_is_refused(make, toy_tokenizer):
    import copy

    from tokenizers import normalizers

    deaf = copy.deepcopy(toy_tokenizer)
    deaf.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    with pytest.raises(ValueError, match=r"got '\\u200b', of which the tokenizer keeps nothing"):
        make(tokenizer=deaf).forced_answer("\u200b")
