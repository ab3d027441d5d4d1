"""shares: the rows of a step -> those that one process trains on.

In: all rows, the same on every process. Out: whole questions, dealt within each minibatch so that all processes have
about as many tokens in every optimiser step, wherever the trees were grown.
Source: ours; greedy, largest question first.
"""

from collections.abc import Sequence

from igrpo_train.learn.packing import TurnRow, count_rows, cut_questions
from igrpo_train.processes import Processes


def own_rows(rows: Sequence[TurnRow], update_rows: int, key: int, processes: Processes) -> list[TurnRow]:
    """Rows of this process; each row belongs to exactly one.

    Args:
        rows: of all questions of the step.
        update_rows: rows of a minibatch, as the updater cuts them.
        key: counter-based random key of the step, as the updater gets it.
        processes: those that train.

    Example:
        >>> ids = dict(turn=0, context_ids=(5,), response_ids=(6,), old_logprobs=(-1.0,), advantage=1.0)
        >>> rows = [TurnRow(question=slot, path=slot, **ids) for slot in range(3)]
        >>> [[row.question for row in own_rows(rows, 3, 1, Processes(rank, 2))] for rank in range(2)]
        [[0, 2], [1]]
    """
    tokens: dict[int, int] = {}
    for row in rows:
        tokens[row.question] = tokens.get(row.question, 0) + row.num_tokens
    own: set[int] = set()
    for group in cut_questions(count_rows(rows), update_rows, key):
        loads = [0] * processes.size
        for question in sorted(group, key=lambda slot: (-tokens[slot], slot)):
            lightest = loads.index(min(loads))
            loads[lightest] += tokens[question]
            if lightest == processes.rank:
                own.add(question)
    return [row for row in rows if row.question in own]
