"""What exactly is being built: version, commit and machine, as every page will say."""

import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path

REHEARSAL = "rehearsal"
"""The profile in which pocket models stand in for the public ones that are named; `ci.rehearse` builds it."""


@dataclass(frozen=True)
class Build:
    """Identity of one build: text as printed, and the time of the commit in seconds, which dates the pages."""

    version: str
    commit: str
    epoch: int
    profile: str
    device: str
    python: str = platform.python_version()

    @property
    def machine(self) -> str:
        """What results may depend on besides code and data."""
        return f"{self.device}, Python {self.python}"

    @property
    def stamp(self) -> str:
        """The line under every title."""
        profile = f"profile {self.profile}" + (" (stand-in models, no results)" if self.rehearsal else "")
        return f"Version {self.version} · commit {self.commit} · {profile} · computed on {self.device}"

    @property
    def rehearsal(self) -> bool:
        """Whether the models of the book are others than it names."""
        return self.profile == REHEARSAL

    @property
    def about(self) -> dict[str, str]:
        """What the provenance of every figure and table begins with."""
        return {"version": self.version, "commit": self.commit, "device": self.device}

    @property
    def facts(self) -> dict[str, str]:
        """What files of numbers say of themselves."""
        return self.about | {"profile": self.profile}

    @property
    def values(self) -> dict[str, str]:
        """What chapters may use in their prose."""
        return {
            "build_version": self.version,
            "build_commit": self.commit,
            "build_profile": self.profile,
            "build_device": self.device,
        }


def identify(root: Path, profile: str) -> Build:
    """The build of the tree at `root`: version from the nearest tag; `+changes` where files differ or are new.

    The time is SOURCE_DATE_EPOCH where that is set, or else the commit's; without a commit, today's.
    """

    def git(*arguments: str) -> str:
        finished = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return finished.stdout.strip() if finished.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    if git("status", "--porcelain"):
        commit += "+changes"
    version = git("describe", "--tags", "--abbrev=0").removeprefix("v")
    if not version:
        version = f"{installed('qkspectra')}.dev{git('rev-list', '--count', 'HEAD') or 0}"
    elif ahead := int(git("rev-list", "--count", f"v{version}..HEAD") or 0):
        version += f".post{ahead}"
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or time.time() // 86400 * 86400
    return Build(version, commit, int(epoch), profile, device())


def device() -> str:
    """What computes: the processor, as its architecture and the number of cores granted, and before it the accelerator.

    An accelerator computes where the library is told to use it (`qkspectra.device`); one that is merely there does not.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor = f"CPU ({platform.machine()}, {cores} {'core' if cores == 1 else 'cores'})"
    return f"{_model(accelerator())} and {processor}" if accelerator() else processor


def accelerator() -> str:
    """The device on which chapters run models, as torch names it; empty where that is the processor."""
    name = os.environ.get("QKSPECTRA_DEVICE", "")
    return "" if name == "cpu" else name


def _model(name: str) -> str:
    """A GPU as its maker calls it, anything else as it is."""
    index = name.removeprefix("cuda").removeprefix(":") or "0"
    tool = shutil.which("nvidia-smi") if name.startswith("cuda") else None
    if tool is None:
        return name
    asked = [tool, "--query-gpu=name", "--format=csv,noheader", f"--id={index}"]
    return f"GPU ({subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()})"
