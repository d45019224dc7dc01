"""Peak FLOP/s and memory of each kind of accelerator, from the makers' data sheets."""

from typing import NamedTuple


class Accelerator(NamedTuple):
    """One device as JAX counts devices. On a TPU v3 or v7x, each half of a chip is a device."""

    flops: float  # peak FLOP/s, dense, in bfloat16
    gib: int  # GiB of memory
    also: tuple[str, ...] = ()  # other names, which JAX uses
    on_chip: int = 1  # number of devices on a chip


ACCELERATORS = {
    "TPU v3": Accelerator(61.5e12, 16, on_chip=2),
    "TPU v4": Accelerator(275e12, 32),
    "TPU v5e": Accelerator(197e12, 16, ("TPU v5 lite",)),
    "TPU v5p": Accelerator(459e12, 95, ("TPU v5",)),
    "TPU v6e": Accelerator(918e12, 32, ("TPU v6 lite",)),
    "TPU v7x": Accelerator(1153.5e12, 96, ("TPU7x",), on_chip=2),
    "NVIDIA A100": Accelerator(312e12, 80),
    "NVIDIA H100": Accelerator(989e12, 80),
    "NVIDIA H200": Accelerator(989e12, 141),
    "NVIDIA B200": Accelerator(2250e12, 180),
}


def kind_of_name(name: str) -> str:
    """Returns the kind of accelerator with a short name.

    >>> [kind_of_name(name) for name in ("v5p", "V5P", "TPU v5p", "h100")]
    ['TPU v5p', 'TPU v5p', 'TPU v5p', 'NVIDIA H100']

    Raises ValueError for an unknown name.
    """
    for kind in ACCELERATORS:
        if name.lower() in (kind.lower(), kind.lower().split()[-1]):
            return kind
    raise ValueError(f"There is no chip {name!r}; expected one of {', '.join(short_names())}.")


def kind_of_device(device_kind: str) -> str | None:
    """Returns the kind of a JAX device by its `device_kind`; None if it is unknown, as for a CPU.

    >>> kind_of_device("TPU v5 lite"), kind_of_device("NVIDIA H100 80GB HBM3")
    ('TPU v5e', 'NVIDIA H100')
    >>> kind_of_device("cpu")
    """
    names = {name: kind for kind, x in ACCELERATORS.items() for name in (kind, *x.also)}
    matching = [name for name in names if device_kind.startswith(name)]
    return names[max(matching, key=len)] if matching else None


def short_names() -> list[str]:
    """Returns the short names that `kind_of_name` accepts: ['v3', 'v4', 'v5e', …]."""
    return [kind.split()[-1] for kind in ACCELERATORS]
