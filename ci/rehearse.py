"""Rehearse the publication of the profile paper on this machine: `python -m ci.rehearse`.

The commands are those of `.github/workflows/paper.yml`, for the profile `rehearsal`. It names the models, schedule and
panel that `paper` names, at small sizes, and reads the shipped tables of the toy laboratory, where `paper` makes its
own. The Hub is one of this process and holds pocket models under those names (`ci.standins`): no number told of them is
a result. Every page says so, and that publishing refuses the book is part of the rehearsal.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ci import browse, hub, standins
from ci.build import ROOT
from ci.failure import BuildError, told
from ci.version import REHEARSAL
from qkspectra import book
from qkspectra.weights.schedules import schedule

OUTPUT = ROOT / "_build" / REHEARSAL
PUBLISH = "ci.publish"


def commands(profile: str, output: Path) -> list[list[str]]:
    """What the workflow runs, one program of `ci` a line with its arguments: execute, render, publish, look."""
    place = ["--output", str(output)]
    return [
        ["ci.build", "--profile", profile, "--step", "execute", *place],
        ["ci.build", "--profile", profile, "--pdf", "required", "--step", "render", *place],
        [PUBLISH, "--built", str(output), "--site", str(output / "site")],
        ["ci.browse", str(output / "html")],
    ]


@contextmanager
def standing_in(runs: Iterable[str], steps: Iterable[int]) -> Iterator[dict[str, str]]:
    """An environment in which the Hub is one of stand-ins, with a cache of its own, for the time of the context.

    Args:
        runs, steps: see `standins.fill`.
    """
    named = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with hub.serving() as server, tempfile.TemporaryDirectory(prefix="rehearsal-") as cache:
        standins.fill(server, runs, steps)
        yield named | {"HF_ENDPOINT": server.url, "HF_HOME": cache, "NO_PROXY": "127.0.0.1,localhost"}


def rehearse(output: Path) -> None:
    """Run everything.

    Raises:
        BuildError: a command that fails, or a publication that does not.
    """
    wanted = book.profile(REHEARSAL, ROOT / "book" / "profiles").dynamics
    with standing_in(wanted.models, schedule(wanted.schedule).steps) as environment:
        for command in commands(REHEARSAL, output):
            if command[0] == "ci.browse" and browse.chromium() is None:
                print("no Chromium: the pages are not opened", file=sys.stderr)
                continue
            started = time.monotonic()
            publishes = command[0] == PUBLISH
            told_here = subprocess.PIPE if publishes else None
            words = [sys.executable, "-m", *command]
            finished = subprocess.run(words, cwd=ROOT, env=environment, stderr=told_here, text=True, check=False)
            if publishes and (finished.returncode != 1 or "is a rehearsal" not in finished.stderr):
                raise BuildError(f"publishing was to refuse the rehearsal, and said: {finished.stderr}")
            if not publishes and finished.returncode:
                raise BuildError(f"the rehearsal ends at {' '.join(command)}")
            what = "refused, as it must be" if publishes else "done"
            print(f"{' '.join(command[:5])}: {what}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


@told
def main(words: list[str] | None = None) -> None:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Rehearse the profile paper with stand-ins for its models.")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the book goes")
    arguments = parser.parse_args(words)
    started = time.monotonic()
    rehearse(arguments.output.resolve())
    print(f"rehearsed in {(time.monotonic() - started) / 60:.0f} minutes: {arguments.output / 'html' / 'index.html'}")


if __name__ == "__main__":
    sys.exit(main())
