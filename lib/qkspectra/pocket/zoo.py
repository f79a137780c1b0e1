"""Every pocket model by one command: corpus, training, and the finished folders as they are shipped.

FOLDER/tokenizer.json, FOLDER/tokens.npy     the encoded corpus
FOLDER/trajectory/NAME/stepN                 checkpoints in float32
FOLDER/models/NAME                           weights in float16, tokenizer, model card, record
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_model
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from qkspectra.compute import workers
from qkspectra.errors import InputError
from qkspectra.pocket import corpus
from qkspectra.pocket.cards import Record, card, record_of
from qkspectra.pocket.recipe import ZOO, Recipe
from qkspectra.pocket.train import STATE, staged, train
from qkspectra.store import replacing
from qkspectra.threads import threads
from qkspectra.weights import open_model
from qkspectra.weights.catalogue import POCKET

RECORD = "recipe.json"
TOKENIZER, TOKENS = "tokenizer.json", "tokens.npy"


def recipes(names: Sequence[str]) -> list[Recipe]:
    """The recipes of some of the zoo's models, or of all where no name is given.

    Raises:
        InputError: a name that is not in the zoo.
    """
    for name in names:
        if name not in ZOO:
            raise InputError(f"there is no pocket model {name!r}: choose from {', '.join(ZOO)}")
    return [ZOO[name] for name in dict.fromkeys(names or ZOO)]


def make(
    wanted: Sequence[Recipe], folder: Path, count: int = 1, say: Callable[[str], None] = lambda _: None
) -> list[Record]:
    """Train what is not finished yet; returns the records of all that was wanted.

    Args:
        wanted: recipes of different names and one size of vocabulary.
        folder: where everything goes; a run that was killed is taken up again there.
        count: processes, of one thread each.
        say: told how far each run is.

    Raises:
        InputError: fewer than one process, no corpus (see `corpus.read`), or a folder that holds runs by other recipes.
    """
    with workers(count) as executor:
        prepare(folder, wanted[0].vocab, say)
        if executor is None:
            for recipe in wanted:
                finish(recipe, folder, say)
        else:
            left = {executor.submit(finish, recipe, folder) for recipe in wanted}
            try:
                while left:
                    done, left = wait(left, timeout=2, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    say(", ".join(filter(None, (_progress(recipe, folder) for recipe in wanted))))
            except BaseException:
                for future in left:
                    future.cancel()
                raise
    return [record(folder / "models" / recipe.name) for recipe in wanted]


def _progress(recipe: Recipe, folder: Path) -> str:
    if (folder / "models" / recipe.name).is_dir():
        return f"{recipe.name} done"
    steps = [int(path.name[4:]) for path in (folder / "trajectory" / recipe.name).glob("step*")]
    return f"{recipe.name} {max(steps)}/{recipe.steps}" if steps else ""


def prepare(folder: Path, vocab: int, say: Callable[[str], None]) -> None:
    """Put the encoded corpus and its tokenizer into `folder`, unless they are there.

    Raises:
        InputError: see `corpus.read`.
    """
    texts = corpus.read(corpus.TRAINING)
    if (folder / TOKENS).exists() and Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab_size() == vocab:
        return
    folder.mkdir(parents=True, exist_ok=True)
    say("training the tokenizer")
    tokenizer = corpus.train_tokenizer(texts, vocab)
    tokenizer.save(str(folder / TOKENIZER))
    say("encoding the corpus")
    tokens = corpus.encode(tokenizer, texts)
    with replacing(folder / TOKENS) as part, part.open("wb") as stream:
        np.save(stream, tokens)


def finish(recipe: Recipe, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
    """Train one model to its end and put it into the form it is shipped in, unless that has been done.

    Raises:
        InputError: the folder holds a run or a model by another recipe.
    """
    final = folder / "models" / recipe.name
    if final.is_dir():
        if record(final).recipe != recipe:
            raise InputError(f"{final} was made by another recipe: give another folder, or delete that one")
        return
    trajectory = folder / "trajectory" / recipe.name
    tokens = np.load(folder / TOKENS, mmap_mode="r")
    with threads(1):  # with more, sums would depend on their number, and a run taken up elsewhere would be another run
        seconds = train(recipe, tokens, trajectory, say)
    say(f"{recipe.name}: measuring")
    ship(recipe, trajectory, folder / TOKENIZER, final, len(tokens), seconds)
    (trajectory / STATE).unlink()


def ship(recipe: Recipe, trajectory: Path, tokenizer: Path, final: Path, tokens: int, seconds: float) -> None:
    """The model at its last checkpoint, in the form it is shipped in: float16, and measured as it is stored.

    Args:
        tokens, seconds: what it was trained on, and for how long, for its record.
    """
    model = open_model(str(trajectory), f"step{recipe.steps}").load(device="cpu")
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer),
        bos_token=corpus.BOUNDARY,
        eos_token=corpus.BOUNDARY,
        model_max_length=recipe.context,
    )
    with staged(final) as part:
        model.half()
        model.config.dtype = torch.float16
        model.config.save_pretrained(part)
        save_model(model, str(part / "model.safetensors"), metadata={"format": "pt"})
        fast.save_pretrained(part)
        made = record_of(recipe, part, tokens, seconds)
        (part / RECORD).write_text(made.model_dump_json(indent=2) + "\n")
        (part / "README.md").write_text(card(made))


def shipped(name: str) -> Record:
    """The record of the model of that name which comes with the library."""
    return record(POCKET / name)


def record(folder: Path) -> Record:
    """How a pocket model was made, and what it measured then.

    Raises:
        InputError: the file that says so is damaged, or by another version of the library.
    """
    try:
        return Record.model_validate_json((folder / RECORD).read_text())
    except ValueError:
        raise InputError(
            f"{folder / RECORD} is not a pocket model's record: delete {folder} to make it again"
        ) from None
