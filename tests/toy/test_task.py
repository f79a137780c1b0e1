"""The task is what it says, and ideal heads score exactly one."""

import torch

from qkspectra.toy.task import Batch, head_scores, repeats


def draw(*seeds: int, batch: int = 20, length: int = 24, vocab: int = 16) -> Batch:
    return repeats([torch.Generator().manual_seed(seed) for seed in seeds], batch, length, vocab)


def test_sequences_repeat_a_block_of_unique_tokens() -> None:
    batch = draw(0, 1, batch=200)
    assert set(batch.period.flatten().tolist()) == set(range(6, 13))
    for tokens, period in zip(batch.tokens.flatten(0, 1), batch.period.flatten().tolist(), strict=True):
        assert tokens[:period].unique().numel() == period
        assert torch.equal(tokens[period:], tokens[:-period])


def test_targets_are_the_predictable_next_tokens() -> None:
    batch = draw(3)
    targets = batch.targets[0]
    for tokens, period, wanted in zip(batch.tokens[0], batch.period[0].tolist(), targets, strict=True):
        for i in range(24):
            assert wanted[i] == (tokens[i + 1] if period <= i < 23 else -100)


def test_a_seeds_data_do_not_depend_on_its_neighbours() -> None:
    alone, together = draw(5), draw(4, 5, 6)
    assert torch.equal(alone.tokens[0], together.tokens[1])
    assert not torch.equal(together.tokens[0], together.tokens[2])
    assert torch.equal(together.only(torch.tensor([False, True, False])).period, alone.period)


def test_ideal_heads_score_one_and_a_sink_scores_nothing() -> None:
    """Head 0 attends to the previous token, 1 to the token after the last occurrence, 2 to that occurrence,
    3 to the token after the occurrence before the last where there is one, 4 to itself."""
    batch = draw(7, 8)
    pattern = torch.zeros(2, 20, 5, 24, 24)
    for s in range(2):
        for b in range(20):
            period = int(batch.period[s, b])
            for i in range(24):
                copies = i // period
                pattern[s, b, 0, i, max(i - 1, 0)] = 1
                pattern[s, b, 1, i, i - period + 1 if copies else i] = 1
                pattern[s, b, 2, i, i - period if copies else i] = 1
                pattern[s, b, 3, i, i - copies * period + 1 if copies else i] = 1
                pattern[s, b, 4, i, i] = 1
    scores = head_scores(pattern, batch.period)
    assert scores["previous_token"].tolist() == [[1, 0, 0, 0, 0]] * 2
    assert scores["induction"].tolist() == [[0, 1, 0, 1, 0]] * 2
    assert scores["duplicate_token"].tolist() == [[0, 0, 1, 0, 0]] * 2


def test_uniform_attention_scores_what_its_definition_says() -> None:
    batch = draw(9)
    pattern = torch.tril(torch.ones(24, 24)).div(torch.arange(1, 25)[:, None]).expand(1, 20, 1, 24, 24)
    scores = head_scores(pattern, batch.period)
    duplicate, rows = 0.0, 0
    for period in batch.period[0].tolist():
        for i in range(period, 24):
            duplicate += (i // period) / (i + 1)
            rows += 1
    torch.testing.assert_close(scores["duplicate_token"].item(), duplicate / rows)
    torch.testing.assert_close(scores["previous_token"].item(), sum(1 / (i + 1) for i in range(1, 24)) / 23)
