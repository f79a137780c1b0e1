"""What is written beside a pocket model: how it was made, what it measured when it was, and a card that says both."""

from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict

from qkspectra.behaviour import behaviour
from qkspectra.pocket import corpus
from qkspectra.pocket.recipe import Recipe
from qkspectra.studies.audit import audit
from qkspectra.weights import Weights, open_model
from qkspectra.weights.catalogue import CATALOGUE
from qkspectra.weights.wheels import sha256_of

SEQUENCES, SEED = 128, 0
"""Spans of held-out text in a measurement, and the seed of the draw."""

LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")

POSITIONS = {"rope": "rotary", "absolute": "learned absolute", "alibi": "linear biases, ALiBi"}


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Head(_Data):
    """A head that does one thing better than the model's others.

    Attributes:
        layer, head: which one.
        score: mean attention, on random tokens, each sequence repeated once (`studies.audit`).
        eigen_rotation, antisymmetric_energy: of its operator, raw convention.
        z_eigen_rotation, z_antisymmetric_energy: from the factored null of its shape, in its standard deviations.
    """

    layer: int
    head: int
    score: float
    eigen_rotation: float
    z_eigen_rotation: float
    antisymmetric_energy: float
    z_antisymmetric_energy: float


class Measures(_Data):
    """What a stored model does.

    Attributes:
        loss_first, loss_second: mean loss in nats over the tokens of held-out spans and over their second copies.
        accuracy_second: share of the tokens of the second copies that the model predicts.
        previous_token, induction: the strongest heads.
        median_eigen_rotation, median_antisymmetric_energy: over all heads.
    """

    loss_first: float
    loss_second: float
    accuracy_second: float
    previous_token: Head
    induction: Head
    median_eigen_rotation: float
    median_antisymmetric_energy: float


class Record(_Data):
    """How a pocket model was made.

    Attributes:
        recipe: of the run.
        package: name and version of the package whose source is the corpus.
        training, held_out: SHA-256 of the corpus's two parts.
        tokens: of the first part, encoded.
        tokenizer, weights: SHA-256 of the files.
        libraries: versions that trained it.
        processor_seconds: of the training.
        measures: of the weights as they are stored.
    """

    recipe: Recipe
    package: str
    training: str
    held_out: str
    tokens: int
    tokenizer: str
    weights: str
    libraries: dict[str, str]
    processor_seconds: int
    measures: Measures


def measured(weights: Weights) -> Measures:
    """Measures a stored model, on held-out text and on random tokens, in copies of half its context.

    Raises:
        InputError: there is no held-out text (see `corpus.read`).
    """
    length = weights.layout.max_positions // 2
    text = corpus.held_out(SEQUENCES, length, SEED, weights.source.folder / "tokenizer.json")
    model = weights.load()
    seen = behaviour(model, weights.attention_modules(model), torch.cat([text, text], 1))
    heads = audit(weights, seed=SEED, length=length)
    return Measures(
        loss_first=seen.loss_first,
        loss_second=seen.loss_second,
        accuracy_second=seen.accuracy_second,
        previous_token=_strongest(heads, "previous_token"),
        induction=_strongest(heads, "induction"),
        median_eigen_rotation=heads["eigen_rotation"].median(),
        median_antisymmetric_energy=heads["antisymmetric_energy"].median(),
    )


def _strongest(heads: pd.DataFrame, behaviour: str) -> Head:
    row = heads.loc[heads[behaviour].idxmax()]
    return Head(score=row[behaviour], **{name: row[name] for name in Head.model_fields if name != "score"})


def apart(one: Measures, two: Measures) -> float:
    """The largest difference of two measurements, over losses in nats, shares, scores and spectra; deviations z aside.

    Of the strongest heads the numbers are compared, wherever in the model they stand.
    """

    def numbers(measures: Measures) -> list[float]:
        heads = [getattr(measures, role).model_dump() for role in ("previous_token", "induction")]
        plain = measures.model_dump(exclude={"previous_token", "induction"})
        shared = ("score", "eigen_rotation", "antisymmetric_energy")
        return [*plain.values(), *(head[name] for head in heads for name in shared)]

    return max(abs(a - b) for a, b in zip(numbers(one), numbers(two), strict=True))


def record_of(recipe: Recipe, folder: Path, tokens: int, seconds: float) -> Record:
    """The record of a model that this installation has just trained on so many tokens, in so many seconds."""
    return Record(
        recipe=recipe,
        package=f"{corpus.PACKAGE} {corpus.VERSION}",
        training=corpus.TRAINING.sha256,
        held_out=corpus.HELD_OUT.sha256,
        tokens=tokens,
        tokenizer=sha256_of(folder / "tokenizer.json"),
        weights=sha256_of(folder / "model.safetensors"),
        libraries={name: version(name) for name in LIBRARIES},
        processor_seconds=round(seconds),
        measures=measured(open_model(str(folder))),
    )


def card(record: Record) -> str:
    """The model card, in the Hub's form: a header for machines, then text."""
    recipe, m, known = record.recipe, record.measures, CATALOGUE[record.recipe.name]
    libraries = ", ".join(f"{name} {number}" for name, number in record.libraries.items())
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
language: code
---

# {recipe.name}

A language model small enough to carry along, in the architecture of a large one ({known.title};
positions: {POSITIONS[known.scheme]}), for measuring attention heads. It has {recipe.layers} layers of {recipe.heads}
heads, width {recipe.width}, {recipe.vocab} tokens and a context of {recipe.context}, and is of no use for writing code.

Seven such models differ in their architecture alone: `qkspectra models` lists them, `qkspectra pocket FOLDER` trains
them again and says how far what it got is from what is shipped. `recipe.json` holds the recipe, the hashes of corpus
and weights, and all measures.

## Training

{recipe.steps} steps of {recipe.batch} sequences on the Python source of {record.package} (`models/*/modeling_*.py`;
{record.tokens:,} tokens; Apache License 2.0). {100 * recipe.text:g}% of the sequences are text,
{100 * recipe.scrambled:g}% repeat distinct tokens drawn uniformly, and the others repeat one span of text. What is
repeated has {recipe.shortest} to {recipe.context // 2} tokens and goes on to the end of the context. In the first
{recipe.forming} steps, tokens that no earlier copy predicts have weight
{recipe.unpredicted} in the loss. Seed {recipe.seed}; {record.processor_seconds / 60:.0f} minutes of one core;
{libraries}.

The weights are stored in float16, and everything below was measured on the stored weights.

## Measures

On held-out text (the files of `generation` and `pipelines` of the same package, none of them trained on), spans of
{recipe.context // 2} tokens, each followed by a second copy:

| | loss, nats a token |
|---|---|
| first copy | {m.loss_first:.3f} |
| second copy | {m.loss_second:.3f} |

The model predicts {m.accuracy_second:.0%} of the tokens of the second copy.

Its strongest heads on {recipe.context // 2} random tokens, repeated once (`qkspectra audit {recipe.name}`); z is the
distance from the factored Gaussian null of the head's shape, in its standard deviations:

| | head | score | eigen-rotation | z | antisymmetric energy | z |
|---|---|---|---|---|---|---|
{_line("previous token", m.previous_token)}
{_line("induction", m.induction)}
| median of all heads | | | {m.median_eigen_rotation:.3f} | | {m.median_antisymmetric_energy:.3f} | |
"""


def _line(what: str, head: Head) -> str:
    cells = (
        f"L{head.layer}H{head.head}",
        f"{head.score:.3f}",
        f"{head.eigen_rotation:.3f}",
        f"{head.z_eigen_rotation:+.1f}",
        f"{head.antisymmetric_energy:.3f}",
        f"{head.z_antisymmetric_energy:+.1f}",
    )
    return f"| {what} | {' | '.join(cells)} |"
