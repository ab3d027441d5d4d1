"""Demonstrations keep to the protocol that the run has, token for token."""

from itertools import pairwise
from pathlib import Path

import pytest

_PREAMBLE = "<think> I know enough. </think>\n<answer>\n"
_SHARED = Path(__file__).parents[4] / "shared" / "data"


def _passage(title, text=None):
    from igrpo_train.question import Passage

    return Passage(id=f"p-{title}", title=title, text=text or f"{title} is a town.")


_GHENT = ("Ghent", "Ghent is a city whose mayor is Ann Peters.")
_ANN = ("Ann Peters", "Ann Peters was born in Paris.")


def _question(number=0, answer="Paris", gold=(_GHENT, _ANN), text="where was the mayor of Ghent born?"):
    from igrpo_train.question import Question

    passages = tuple(_passage(*page) for page in gold)
    return Question(id=f"q{number}", text=text, answers=(answer, "another"), contexts=passages)


@pytest.fixture
def show(toy_tokenizer):
    """Demonstrate questions over a small corpus with the toy tokenizer."""
    from igrpo_train.config import Agent, Scoring
    from igrpo_train.demonstrations import Manner, demonstrate
    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.retrieval import BM25Retriever

    def build(questions, *, seed=0, preamble=_PREAMBLE, history="documents", manner=None, **agent):
        settings = {"template": "Q: {question}\n{history}", "max_turns": 3, "top_k": 1} | agent
        scoring = Scoring(preamble=preamble)
        prompting = Prompting(toy_tokenizer, Agent(history=history, **settings), scoring)
        retriever = BM25Retriever([_passage(*_GHENT), _passage(*_ANN), _passage("Oslo"), _passage("Lima")])
        return demonstrate(questions, prompting, retriever, Manner(**(manner or {})), seed)

    return build


_PLAIN = {"question_share": 0.0, "preamble_share": 0.0, "early_share": 0.0}


@pytest.mark.parametrize("history", ["documents", "everything"])
def test_contexts_extend_each_other_by_real_search_results(show, toy_tokenizer, history):
    rows = show([_question()], manner=_PLAIN, history=history).rows
    contexts = [toy_tokenizer.decode(row.context_ids) for row in rows]
    responses = [toy_tokenizer.decode(row.response_ids) for row in rows]
    assert responses == [
        "<think> I look up Ghent. </think>\n<search>Ghent</search>",
        "<think> I look up Ann Peters. </think>\n<search>Ann Peters</search>",
        "<think> I have read about Ghent and Ann Peters. </think>\n<answer>Paris</answer>",
    ]
    tail = "<|im_end|>\n<|im_start|>assistant\n"
    assert contexts[0].endswith("Q: where was the mayor of Ghent born?\n" + tail)
    assert "<information>Doc 1(Title: Ghent) Ghent is a city whose mayor is Ann Peters.\n</information>" in contexts[1]
    assert "<information>Doc 1(Title: Ann Peters) Ann Peters was born in Paris.\n</information>" in contexts[2]
    assert ("I look up Ghent" in contexts[2]) == (history == "everything")
    num_tail = len(toy_tokenizer(tail, add_special_tokens=False)["input_ids"]) if history == "documents" else 0
    for before, after in pairwise(rows):
        kept = len(before.context_ids) - num_tail
        assert after.context_ids[:kept] == before.context_ids[:kept]
        assert after.context_ids[len(after.context_ids) - num_tail :] == before.context_ids[kept:]


def test_every_turn_is_a_valid_action_and_the_preamble_is_kept_word_for_word(show, toy_tokenizer):
    from igrpo_train.search.agent import parse_action

    rows = show([_question()], manner=_PLAIN | {"preamble_share": 1.0}).rows
    for row in rows:
        assert parse_action(toy_tokenizer.decode(row.response_ids)).valid
        assert row.weights == (1.0,) * len(row.response_ids)
    assert toy_tokenizer.decode(rows[-1].response_ids) == _PREAMBLE + "Paris\n</answer>"


def test_early_answers_have_a_loss_on_the_answer_only(show, toy_tokenizer):
    plain = show([_question()], manner=_PLAIN).rows
    rows = show([_question()], manner=_PLAIN | {"early_share": 1.0}).rows
    assert rows[: len(plain)] == plain
    (early,) = rows[len(plain) :]
    assert early.context_ids == plain[1].context_ids
    assert toy_tokenizer.decode(early.response_ids) == _PREAMBLE + "Paris"
    counted = [token for token, weight in zip(early.response_ids, early.weights, strict=True) if weight]
    assert toy_tokenizer.decode(counted) == "Paris"


def test_a_demonstration_depends_on_seed_and_id_alone(show):
    questions = [_question(number) for number in range(12)]
    alone = [show([question]).rows for question in questions]
    together = show(questions)
    assert together.used == 12
    assert sorted(together.rows) == sorted(row for rows in alone for row in rows)
    assert show(questions).rows == together.rows
    assert show(questions[::-1]).skipped == {}
    assert sorted(show(questions[::-1]).rows) == sorted(together.rows)
    assert show(questions, seed=1).rows != together.rows


def test_shares_are_shares(show, toy_tokenizer):
    """400 questions, share 1/2: a count outside 200 +- 60 has a chance below 2e-9 (six standard deviations of 10)."""
    questions = [_question(number) for number in range(400)]
    rows = show(questions, manner={"question_share": 0.5, "preamble_share": 0.5, "early_share": 0.5}).rows
    texts = [toy_tokenizer.decode(row.response_ids) for row in rows]
    counts = [
        sum(text.startswith("<think> I search for the question itself") for text in texts),
        sum(text.startswith(_PREAMBLE) and text.endswith("</answer>") for text in texts),
        sum(0.0 in row.weights for row in rows),
    ]
    assert all(140 <= count <= 260 for count in counts), counts


def test_titles_come_in_the_order_in_which_they_can_be_known():
    from igrpo_train.demonstrations import gold_titles

    asked = "Are Lima (or Oslo) and Ghent towns?"
    gold = [("Ghent (city)", "x"), ("Oslo", "x"), ("Limassol", "x"), ("Lima", "x"), ("Oslo", "again")]
    assert gold_titles(_question(gold=gold, text=asked)) == (("Lima", "Oslo", "Ghent (city)", "Limassol"), True)
    linked = [_ANN, _GHENT]
    assert gold_titles(_question(gold=linked, text="where was the mayor born?")) == (("Ghent", "Ann Peters"), False)
    assert gold_titles(_question(gold=())) == ((), False)


def test_a_question_that_names_no_page_is_searched_for_itself(show, toy_tokenizer):
    rows = show([_question(text="where was the mayor born?")], manner=_PLAIN).rows
    first, second, _ = (toy_tokenizer.decode(row.response_ids) for row in rows)
    assert first.endswith("<search>where was the mayor born?</search>")
    assert second.endswith("<search>Ann Peters</search>")


def test_questions_that_cannot_be_demonstrated_are_counted_by_reason(show):
    questions = [
        _question(0),
        _question(1, gold=()),
        _question(2, gold=()),
        _question(3, gold=(_GHENT, _ANN, ("Oslo",))),
        _question(4, answer="word " * 200),
        _question(5, gold=(_GHENT, ("A <search>", "x"))),
    ]
    shown = show(questions, max_response_tokens=200)
    assert shown.used == 1
    assert shown.skipped == {
        "no gold passages": 2,
        "more gold passages than searches in agent.max_turns": 1,
        "a turn longer than agent.max_response_tokens": 1,
        "tags of the protocol in its own text": 1,
    }


def test_a_history_that_does_not_fit_is_counted(show):
    questions = [_question(0), _question(1, gold=(_GHENT, ("Ann Peters " * 6, "x")))]
    assert show(questions).skipped == {}
    shown = show(questions, max_prompt_tokens=110, max_observation_tokens=60)
    assert shown.skipped == {"a history beyond agent.max_prompt_tokens": 1}
    assert all(len(row.context_ids) <= 110 for row in shown.rows)


def test_a_tokenizer_that_loses_the_tags_is_told():
    from igrpo_train.config import Agent, Scoring
    from igrpo_train.demonstrations import Manner, demonstrate
    from igrpo_train.miniature.tokenizer import build_tokenizer
    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.retrieval import BM25Retriever

    # Words are cut at spaces: a tag that touches a word is unknown.
    prompting = Prompting(build_tokenizer(), Agent(template="{question} {history}"), Scoring(preamble="<answer>"))
    with pytest.raises(ValueError, match="1 with tags of the protocol that the tokenizer does not keep"):
        demonstrate([_question()], prompting, BM25Retriever([_passage("Oslo")]), Manner(), 0)


def test_nothing_to_demonstrate_is_an_error_with_the_reasons(show):
    with pytest.raises(
        ValueError, match=r"data\.train must hold .* got 1 questions, 1 with no gold passages: use a file with contexts"
    ):
        show([_question(gold=())])


@pytest.mark.parametrize("preamble", ["", "<think> enough </think>", "<search>x</search><answer>"])
def test_a_preamble_that_leads_to_no_answer_is_refused(show, preamble):
    with pytest.raises(ValueError, match=r"scoring\.preamble must end in <answer>"):
        show([_question()], preamble=preamble)


def test_shares_outside_their_range_are_refused():
    from igrpo_train.demonstrations import Manner

    with pytest.raises(ValueError, match=r"manner\.early_share must be between 0 and 1, got 1\.5"):
        Manner(early_share=1.5)


@pytest.mark.skipif(not _SHARED.is_dir(), reason="needs HotpotQA's training sample beside the repository")
def test_real_questions_can_nearly_all_be_demonstrated(smollm2):
    from transformers import AutoTokenizer

    from igrpo_train.demonstrations import Manner, demonstrate
    from igrpo_train.question import read_passages, read_questions
    from igrpo_train.recipes import load_recipe
    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.retrieval import BM25Retriever

    recipe = load_recipe([str(Path(__file__).parents[3] / "recipes" / "smollm2" / "hotpotqa.toml")])
    prompting = Prompting(AutoTokenizer.from_pretrained(smollm2), recipe.agent, recipe.scoring)
    questions = read_questions(str(_SHARED / "hotpotqa_train.jsonl"))
    retriever = BM25Retriever(read_passages(str(_SHARED / "corpus_train.jsonl")))
    shown = demonstrate(questions, prompting, retriever, Manner(), seed=0)
    assert shown.used >= 0.95 * len(questions)
    limit = recipe.agent.max_prompt_tokens + recipe.agent.max_response_tokens
    assert max(row.num_tokens for row in shown.rows) <= limit
