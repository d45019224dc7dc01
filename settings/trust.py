"""Checks the modules and functions that the config.gin of a run directory names.

A run directory may come from anybody, and opening it calls the functions in its config.gin.
Therefore only the modules and functions of `OWN` are allowed, and modules that the user trusts,
with `--trust=MODULE` or by giving them on the same command line.
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..constraints import import_name, selector_of
from . import run_directory
from .partial import as_partial, functions_in

# Module -> its functions that describe a run. An empty tuple allows everything that the module
# exports. Except for the setting `MODULE`, no setting of these functions names code to run. None
# of the functions writes outside the run directory.
OWN: Mapping[str, tuple[str, ...]] = {
    "jax.numpy": ("bfloat16", "float16", "float32"),  # data types of models
    # Schedules, used as rates of a mixture. They only compute with numbers and other schedules.
    # The rest of optax is not allowed: some functions there call any function with any arguments.
    "optax": tuple(
        """
        constant_schedule linear_schedule polynomial_schedule join_schedules
        cosine_decay_schedule exponential_decay piecewise_constant_schedule
        warmup_constant_schedule warmup_cosine_decay_schedule warmup_exponential_decay_schedule
        """.split()
    ),
    "pretrax.models": (),
    "pretrax.objectives": (),
    "pretrax.corpora": (),
    "pretrax.inference.evaluation.labeled_evaluation": ("heldout_labels",),
    "pretrax.tasks.seqio.seqio_corpora": ("seqio_mixture", "seqio_objectives", "seqio_pairs"),
    "pretrax.tasks.seqio.seqio_objectives": ("mixture_objective",),
    "pretrax.tasks.seqio.seqio_tasks": ("SeqioTasks",),
    "pretrax.tasks.seqio_evaluation": ("evaluation_tasks",),
    "pretrax.tasks.seqio.seqio_vocabularies": ("from_task",),
    "pretrax.corpora.vocabularies": ("trained", "utf8_bytes", "letters", "from_file", "from_run"),
    "pretrax.corpora.synthetic_tasks": (),
    "pretrax.training": ("Run",),
    "pretrax.training.devices.mesh": ("make_mesh",),
    "pretrax.training.optimizers": (),
    "pretrax.training.reporting.trackers": ("weights_and_biases",),  # see `OUTSIDE`
}
# Fields of `Run` that act outside the run's directory, and what they do there. A config.gin is
# untrusted, so users have to give these fields themselves. Reading elsewhere is allowed, since a
# run's text and initial parameters are usually elsewhere.
OUTSIDE: Mapping[str, str] = {
    "checkpoint_dir": "writes and deletes checkpoints in another folder",
    "local_checkpoint_dir": "writes and deletes local copies in another folder",
    "trackers": "sends the run's settings and metrics elsewhere",
    "tpu_compiler_options": "gives options to the compiler",
}
MODULE = "module"  # setting of the SeqIO functions: a module to import, which registers tasks


def check_import(module: str, trusted: Collection[str], at: str) -> None:
    """Raises ValueError for a module that is neither in `OWN` nor trusted."""
    if module in OWN or _is_trusted(module, trusted):
        return
    if module.startswith("pretrax."):
        raise ValueError(
            f"{at} imports {module}, which this version of pretrax does not have in run "
            "directories: open the directory with the version that wrote it, or train it again."
        )
    raise _refusal(f"{at} imports {module}", module)


def check_function(function: Callable, trusted: Collection[str], at: str) -> None:
    """Raises ValueError for a function that is not in `OWN` and whose module is not trusted.

    The module that defines the function counts, whatever name the file uses for it.
    """
    defined = getattr(function, "__module__", None) or "builtins"
    if _is_trusted(defined, trusted):
        return
    module, name = import_name(function) or ("", "")
    if module not in OWN or (OWN[module] and name not in OWN[module]):
        named = getattr(function, "__name__", function)
        raise _refusal(f"{at} names {named!r} of {defined}", defined)


def check_module(value: Any, trusted: Collection[str], at: str) -> None:
    """Raises ValueError for a value of the setting `MODULE` that is not trusted.

    The value names modules or Python files. A file is trusted only under exactly that path.
    """
    for module in _modules_in(value):
        named = isinstance(module, str) and all(part.isidentifier() for part in module.split("."))
        if module not in (None, *trusted) and not (named and _is_trusted(module, trusted)):
            raise _refusal(f"{at} imports {module}", str(module))


def check_outside(name: str, value: Any, off: Any, at: str, selector: str) -> None:
    """Raises ValueError for a value of a field in `OUTSIDE`; `off` switches the field off."""
    if value != off and value != []:
        raise ValueError(
            f"{at} sets {selector} = {value!r}, which {OUTSIDE[name]}. The author of the directory "
            "would do that on this machine. If that is what you want, give "
            f"--gin.{selector}={shlex.quote(_in_gin(value))} yourself. If not, give "
            f"--gin.{selector}={shlex.quote(str(off))}."
        )


def _in_gin(value: Any) -> str:
    """Returns a value of a field in `OUTSIDE` in the syntax of the command line."""
    if not isinstance(value, (list, tuple)):
        return str(value)
    return f"[{', '.join(f'@{selector_of(as_partial(function).function)}' for function in value)}]"


def check_include(file: str, at: str) -> None:
    raise ValueError(
        f"{at} includes {file!r}, expected no include in the {run_directory.CONFIG} of a run "
        "directory: name that file with --gin_file, if it is yours."
    )


def modules_of(values: Mapping[str, Any]) -> set[str]:
    """Returns the modules that these fields of a run name."""
    functions = functions_in(values)
    named = {
        module
        for partial in functions
        for module in _modules_in(partial.settings.get(MODULE))
        if module
    }
    defined = {getattr(partial.function, "__module__", None) or "" for partial in functions}
    return named | {module for module in defined if module and not module.startswith("pretrax.")}


def modules_to_trust(values: Mapping[str, Any]) -> list[str]:
    """Returns the modules that a user must trust to open a run with these fields again."""
    return sorted(name for name in modules_of(values) if not _is_trusted(name, OWN))


def _modules_in(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _is_trusted(module: str, trusted: Collection[str]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in trusted)


def _refusal(reason: str, module: str) -> ValueError:
    return ValueError(
        f"{reason}, which is not a part of pretrax that a run directory may name. The author of "
        f"the directory would run code on this machine. If you know that code, add --trust={module}"
    )
