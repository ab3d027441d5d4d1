"""setup: a recipe and a policy -> the search agent that training and evaluation share."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator

from igrpo_train.config import Recipe
from igrpo_train.data import load_questions, load_retriever, validation_questions
from igrpo_train.learn.adapters import add_adapters
from igrpo_train.learn.update import Updater
from igrpo_train.policy import Policy, load_policy
from igrpo_train.question import Question
from igrpo_train.search.memory import check_cache_tokens
from igrpo_train.search.prompting import Prompting
from igrpo_train.search.retrieval import Retriever
from igrpo_train.search.sampling import Sampler
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.search.transformers_sampler import TransformersSampler
from igrpo_train.search.vllm_requests import engine_limit
from igrpo_train.search.world import SearchAgent

logger = logging.getLogger(__name__)


def build_agent(policy: Policy, retriever: Retriever, recipe: Recipe) -> SearchAgent:
    """Engine, prompts, retriever and scorer for one policy.

    Raises:
        ValueError: the tokenizer has no chat template, the limits do not fit the model, or the engine cannot run it.
        MissingExtra: the engine is not installed.
    """
    limit = policy.context_limit
    if recipe.sampling.engine == "vllm":
        limit = engine_limit(recipe.agent, limit)
    prompting = Prompting(policy.tokenizer, recipe.agent, recipe.scoring, limit)
    sampler = build_sampler(policy, recipe)
    return SearchAgent(sampler, prompting, retriever, AnswerScorer(sampler, prompting, recipe.scoring))


def build_sampler(policy: Policy, recipe: Recipe) -> Sampler:
    """The engine that `sampling.engine` names."""
    if recipe.sampling.engine == "transformers":
        check_cache_tokens(recipe.sampling.cache_tokens, policy.model)
        return TransformersSampler(policy.model, policy.tokenizer, cache_tokens=recipe.sampling.cache_tokens)
    # Late: it looks for vllm, which is an extra.
    from igrpo_train.search.vllm_sampler import VllmSampler

    return VllmSampler(policy, recipe.model, recipe.sampling, recipe.agent)


class Loaded(NamedTuple):
    """What a run is made of."""

    policy: Policy
    questions: list[Question]
    held_out: list[Question]
    """Empty where nothing is validated."""
    retriever: Retriever


def load_run(recipe: Recipe, checkpoint: Path | None) -> Loaded:
    """Read data and policy, data first: what is wrong with it shows before a model loads.

    Args:
        recipe: what to do.
        checkpoint: folder to go on from; None at the start of a run.

    Raises:
        ValueError, FileNotFoundError, RetrieverError, MissingExtra: see `igrpo_train.data` and `load_trained`.
    """
    questions = load_questions(recipe.data.train, recipe.data.hops)
    held_out: list[Question] = []
    if recipe.validation.every:
        held_out = validation_questions(load_questions(recipe.data.validation, recipe.data.hops), recipe)
    retriever = load_retriever(recipe.data.corpus, recipe.retrieval, top_k=recipe.agent.top_k)
    return Loaded(load_trained(recipe, checkpoint), questions, held_out, retriever)


def load_trained(recipe: Recipe, checkpoint: Path | None) -> Policy:
    """The policy as a run starts or goes on with it.

    Args:
        recipe: its model, with or without adapters.
        checkpoint: folder to go on from; None at the start of a run.

    Raises:
        ValueError, FileNotFoundError, MissingExtra: see `load_policy` and `add_adapters`.
    """
    if not recipe.model.lora_rank:
        return load_policy(recipe.model, folder=checkpoint)
    policy = load_policy(recipe.model)
    add_adapters(policy.model, recipe.model, recipe.seed, folder=checkpoint)
    return policy


def build_updater(accelerator: Accelerator, policy: Policy, recipe: Recipe) -> Updater:
    """Optimiser and loss around a policy, and the reference where the loss needs one of its own."""
    needs_reference = recipe.loss.kl_coefficient > 0 and not recipe.model.lora_rank
    return Updater(
        accelerator,
        policy.model,
        load_policy(recipe.model).model if needs_reference else None,
        recipe.optimiser,
        recipe.loss,
        recipe.steps,
        recipe.sampling.temperature,
        policy.pad_id,
        exact_sampler=recipe.sampling.engine == "transformers",
    )


def usable_questions(loaded: Loaded, prompting: Prompting, recipe: Recipe) -> list[Question]:
    """Training questions that fit the prompt.

    Raises:
        ValueError: none fits, a held-out one does not, or an answer cannot be scored.
    """
    questions = fitting_questions(prompting, loaded.questions, "data.train")
    check_prompts(prompting, loaded.held_out)
    if recipe.growth_rule(step=0).needs_scores:
        check_answers(prompting, questions)
    return questions


def check_prompts(prompting: Prompting, questions: Sequence[Question]) -> None:
    """Refuse a question that cannot fit the prompt, before anything is spent.

    A question has at most as many tokens as bytes, so only the long ones need to be tokenised.

    Raises:
        ValueError: names the first question that does not fit.
    """
    room = _room(prompting)
    for question in questions:
        if len(question.text.encode()) > room:
            prompting.prompt(question)


def _room(prompting: Prompting) -> int:
    """Tokens that the instructions leave for a question."""
    bare = prompting.prompt(Question(id="", text="?", answers=("",)))
    return prompting.agent.max_prompt_tokens - len(bare.head_ids) - len(bare.tail_ids)


def fitting_questions(prompting: Prompting, questions: Sequence[Question], setting: str) -> list[Question]:
    """The questions that fit the prompt; how many do not is logged.

    Args:
        prompting: knows the limit.
        questions: to train on; a held-out set is checked instead, since leaving some out would change what is measured.
        setting: names the file in messages, such as `data.train`.

    Raises:
        ValueError: none fits.
    """
    kept: list[Question] = []
    room, reason = _room(prompting), ""
    for question in questions:
        try:
            if len(question.text.encode()) > room:
                prompting.prompt(question)
        except ValueError as error:
            reason = reason or str(error)
        else:
            kept.append(question)
    if not kept:
        raise ValueError(
            f"{setting} must hold a question that fits the prompt, got {len(questions)} too long: {reason}"
        )
    if reason:
        dropped = len(questions) - len(kept)
        logger.warning("%d of %d questions of %s are left out: %s", dropped, len(questions), setting, reason)
    return kept


def check_answers(prompting: Prompting, questions: Sequence[Question]) -> None:
    """Refuse an answer that cannot be scored, before anything is spent.

    An answer has at most as many tokens as bytes, and one with a letter or a digit has some: few need to be tokenised.

    Raises:
        ValueError: the tokenizer keeps nothing of an answer, or it does not fit the model behind a full prompt.
    """
    limit, prompt = prompting.context_limit, prompting.agent.max_prompt_tokens
    space = None if limit is None else limit - prompt
    scored = 1 if prompting.scoring.aliases == "first" else None
    for question in questions:
        for answer in question.answers[:scored]:
            length = len((prompting.scoring.preamble + answer).encode())
            if any(map(str.isalnum, answer)) and (space is None or length <= space):
                continue
            length = len(prompting.forced_answer(answer).token_ids)
            if space is not None and length > space:
                raise ValueError(
                    f"question {question.id!r} must have an answer that fits the {space} positions which "
                    f"agent.max_prompt_tokens = {prompt} leaves of the model's {limit}, got {length} tokens together "
                    "with scoring.preamble: lower the limit, shorten the preamble or drop the question"
                )


def set_threads(recipe: Recipe) -> None:
    """Apply `run.threads`; 0 leaves torch's default."""
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
