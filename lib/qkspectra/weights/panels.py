"""Panels of seven models, three with rotary positions and four without, over which schemes are compared.

The paper compares seven pretrained models and its abstract names none of them. The panel `paper` is our choice, made
before any of its members was measured: the licence allows it, nothing is gated, the weights are safetensors, and each
scheme comes from more than one training run. The panel `pocket` is no choice: it is every pocket model there is.
"""

from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Member(BaseModel):
    """One model of a panel.

    Attributes:
        name: what `open_model` opens: a model that ships with the library, or a Hub id.
        title: what figures and tables call it.
        scheme: where position enters; checked against the configuration when the model is opened.
        licence: SPDX identifier of the weights' licence, or its name where there is none.
        revision: branch, tag or commit of a Hub id. `None` for the default branch: the commit that it stands for is
            resolved when the model is opened, and recorded in the column `commit` of every result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    title: str = Field(min_length=1)
    scheme: Literal["rope", "absolute", "alibi"]
    licence: str = Field(min_length=1)
    revision: str | None = None


class Panel(BaseModel):
    """Seven models, so that 35 assignments to the two groups are possible and no p-value lies below 1/35.

    Attributes:
        name: what a profile calls it.
        about: who they are, in words that end a sentence which names them.
        members: the rotary ones first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    about: str
    members: tuple[Member, ...]

    @model_validator(mode="after")
    def _split(self) -> "Panel":
        schemes = Counter(member.scheme for member in self.members)
        if (schemes["rope"], len(self.members)) != (3, 7):
            raise ValueError(f"a panel has three rotary models and four others, not {dict(schemes)}")
        if not (schemes["absolute"] and schemes["alibi"]):
            raise ValueError("the four others come from both schemes, learned-absolute and ALiBi")
        for field in ("name", "title"):
            if repeated := [value for value, n in Counter(getattr(m, field) for m in self.members).items() if n > 1]:
                raise ValueError(f"{field} {repeated[0]!r} appears more than once")
        return self


PANELS: dict[str, Panel] = {
    panel.name: panel
    for panel in (
        Panel(
            name="pocket",
            about="small models, trained for this book by one recipe on one text: only the architecture differs",
            members=(
                Member(name="pocket-gpt-neox", title="GPT-NeoX", scheme="rope", licence="Apache-2.0"),
                Member(name="pocket-llama", title="Llama", scheme="rope", licence="Apache-2.0"),
                Member(name="pocket-gptj", title="GPT-J", scheme="rope", licence="Apache-2.0"),
                Member(name="pocket-gpt2", title="GPT-2", scheme="absolute", licence="Apache-2.0"),
                Member(name="pocket-opt", title="OPT", scheme="absolute", licence="Apache-2.0"),
                Member(name="pocket-bloom", title="BLOOM", scheme="alibi", licence="Apache-2.0"),
                Member(name="pocket-mpt", title="MPT", scheme="alibi", licence="Apache-2.0"),
            ),
        ),
        Panel(
            name="paper",
            about="public models of four makers, which differ in data, size and training as well",
            members=(
                Member(name="EleutherAI/pythia-160m", title="Pythia 160M", scheme="rope", licence="Apache-2.0"),
                Member(name="EleutherAI/pythia-410m", title="Pythia 410M", scheme="rope", licence="Apache-2.0"),
                Member(name="Qwen/Qwen2.5-0.5B", title="Qwen2.5 0.5B", scheme="rope", licence="Apache-2.0"),
                Member(name="openai-community/gpt2", title="GPT-2", scheme="absolute", licence="MIT"),
                Member(name="openai-community/gpt2-medium", title="GPT-2 medium", scheme="absolute", licence="MIT"),
                Member(name="bigscience/bloom-560m", title="BLOOM 560M", scheme="alibi", licence="BigScience RAIL 1.0"),
                Member(name="bigscience/bloom-1b1", title="BLOOM 1.1B", scheme="alibi", licence="BigScience RAIL 1.0"),
            ),
        ),
    )
}
"""By name."""
