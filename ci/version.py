"""What exactly is being built: version, commit and machine, as every page will say."""

import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path


@dataclass(frozen=True)
class Build:
    """Identity of one build: text as printed, and the time of the commit in seconds, which dates the pages."""

    version: str
    commit: str
    epoch: int
    profile: str
    device: str

    @property
    def stamp(self) -> str:
        """The line under every title."""
        return f"Version {self.version} · commit {self.commit} · profile {self.profile} · computed on {self.device}"

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
    """The build of the tree at `root`: version from the nearest tag; `+changes` where tracked files differ."""

    def git(*arguments: str) -> str:
        finished = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return finished.stdout.strip() if finished.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    if git("status", "--porcelain", "--untracked-files=no"):
        commit += "+changes"
    version = git("describe", "--tags", "--abbrev=0").removeprefix("v")
    if not version:
        version = f"{installed('qkspectra')}.dev{git('rev-list', '--count', 'HEAD') or 0}"
    elif ahead := int(git("rev-list", "--count", f"v{version}..HEAD") or 0):
        version += f".post{ahead}"
    return Build(version, commit, int(git("log", "-1", "--format=%ct") or time.time()), profile, device())


def device() -> str:
    """The processor that computes: the GPU's name, or the processor's architecture and the number of cores granted."""
    if shutil.which("nvidia-smi"):  # torch takes seconds to import; a machine without a driver need not wait for it
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU ({platform.machine()}, {cores} {'core' if cores == 1 else 'cores'})"
