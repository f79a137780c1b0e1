"""Where models run and toys train: on the CPU, or on what `QKSPECTRA_DEVICE` names as torch does, such as `cuda`.

That is a machine's own affair, as its number of cores is: each worker of a cluster goes by its own variable, and no
result's address depends on it. What is computed from weights alone, spectra first of all, is computed on the CPU in
double precision, whatever the device.
"""

import os

import torch

from qkspectra.errors import InputError

VARIABLE = "QKSPECTRA_DEVICE"
CPU = "cpu"


def chosen(name: str | None = None) -> str:
    """The device of that name, by default the one of this process.

    Raises:
        InputError: this machine has no such device.
    """
    name = name or os.environ.get(VARIABLE) or CPU
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise InputError(f"this machine has no device {name!r}: use {CPU} (--device, or {VARIABLE})") from None
    return name


def described(name: str) -> str:
    """A device as provenance states it: a GPU with its model."""
    return f"{name} ({torch.cuda.get_device_name(name)})" if torch.device(name).type == "cuda" else name
