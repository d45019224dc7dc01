"""Tracing: finds the slot of the raw row that each token of the features was copied from.

The objective needs no changes: it corrupts the same row with the same ids as in training. Each
array has a second array of marks. The mark of an element is 0, or 1 plus the slot that the element
was copied from. An operation that moves elements, such as a gather or a sort, moves their marks
too; other operations drop them. Marks therefore distinguish a token from an equal token in the row,
and a random token from a copy, for any objective.

Marks are moved while the operations are traced one by one, as described in
https://docs.jax.dev/en/latest/notebooks/Writing_custom_interpreters_in_Jax.html
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

_MARK_BITS = 32  # a traced token has its id in the lower bits, and its mark above them


def join(tokens, marks) -> np.ndarray:
    """Returns i64[...]: traced tokens, from tokens and their marks."""
    return np.asarray(tokens, np.int64) + (np.asarray(marks, np.int64) << _MARK_BITS)


def read(traced) -> tuple[np.ndarray, np.ndarray]:
    """Returns (tokens, slots) of traced tokens, with `picture.NOWHERE` for a token without a mark.

    >>> [x.tolist() for x in read(join([7, 7, 9], [1, 4, 0]))]
    [[7, 7, 9], [0, 3, -1]]
    """
    traced = np.asarray(traced, np.int64)
    marks = traced >> _MARK_BITS
    return (traced - (marks << _MARK_BITS)).astype(np.int32), marks.astype(np.int32) - 1


def follow(function: Callable, *arguments: Any, marks: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the outputs of a function of arrays, and the marks of its outputs.

    >>> tokens, marks = follow(lambda x: x[::-1], jnp.array([7, 7]), marks=[jnp.array([1, 2])])
    >>> tokens.tolist(), marks.tolist()
    ([7, 7], [2, 1])

    Args:
      marks: marks of each argument, i32 arrays in the structure and shapes of the argument; None
        for an argument without marks.
    """
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    flat_marks = [
        leaf
        for argument, mark in zip(arguments, marks, strict=True)
        for leaf in (
            jax.tree.leaves(mark) if mark is not None else [None] * len(jax.tree.leaves(argument))
        )
    ]
    outputs, output_marks = _run(jaxpr, jax.tree.leaves(arguments), flat_marks)
    tree = jax.tree.structure(shapes)
    output_marks = [_marks_or_zeros(x, mark) for x, mark in zip(outputs, output_marks)]
    return jax.tree.unflatten(tree, outputs), jax.tree.unflatten(tree, output_marks)


_Values = Sequence[Any]
_Marks = Sequence[Any]  # i32 arrays; None for an array without marks


def _run(closed: Any, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    """Returns the outputs of a closed jaxpr and their marks."""
    jaxpr = closed.jaxpr
    values: dict = dict(zip(jaxpr.constvars, closed.consts))
    values |= dict(zip(jaxpr.invars, arguments))
    marks_of: dict = dict(zip(jaxpr.invars, marks))

    def value_of(x):
        return x.val if isinstance(x, core.Literal) else values[x]

    def mark_of(x):
        return None if isinstance(x, core.Literal) else marks_of.get(x)

    for equation in jaxpr.eqns:
        inputs = [value_of(x) for x in equation.invars]
        input_marks = [mark_of(x) for x in equation.invars]
        rule = _CONTROL.get(equation.primitive.name)
        rule = rule or (_unmarked if all(m is None for m in input_marks) else _marked)
        outputs, output_marks = rule(equation, inputs, input_marks)
        values |= dict(zip(equation.outvars, outputs))
        marks_of |= dict(zip(equation.outvars, output_marks))
    return [value_of(x) for x in jaxpr.outvars], [mark_of(x) for x in jaxpr.outvars]


def _marks_or_zeros(x, mark):
    return jnp.zeros(jnp.shape(x), jnp.int32) if mark is None else mark


# --- operations on arrays -------------------------------------------------------------------------

# Operations that move elements -> the arguments that hold the elements; () means all arguments.
# A sum moves an element too if all other elements are 0. `_marked` handles other operations.
_MOVES: Mapping[str, tuple[int, ...]] = {
    "broadcast_in_dim": (0,),
    "concatenate": (),
    "copy": (0,),
    "cumsum": (0,),
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "expand_dims": (0,),
    "gather": (0,),
    "pad": (0, 1),
    "reduce_max": (0,),
    "reduce_sum": (0,),
    "reshape": (0,),
    "rev": (0,),
    "scatter": (0, 2),
    "scatter-add": (0, 2),
    "slice": (0,),
    "split": (0,),
    "squeeze": (0,),
    "stack": (),
    "transpose": (0,),
    "unstack": (0,),
}
# Elementwise operations whose result may equal one of their arguments: x * 1, x + 0, max(x, 0).
_ELEMENTWISE = {"add", "clamp", "convert_element_type", "max", "min", "mul", "or", "sub"}


def _bind(equation, arguments: _Values) -> list:
    outputs = equation.primitive.bind(*arguments, **equation.params)
    return list(outputs) if equation.primitive.multiple_results else [outputs]


def _unmarked(equation, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    outputs = _bind(equation, arguments)
    return outputs, [None] * len(outputs)


def _marked(equation, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    """Applies an operation on arrays to the values and, if it moves elements, to the marks."""
    name = equation.primitive.name
    if name == "sort":
        marks = [_marks_or_zeros(x, mark) for x, mark in zip(arguments, marks)]
        both = _bind(equation, [*arguments, *marks])
        return both[: len(arguments)], both[len(arguments) :]
    outputs = _bind(equation, arguments)
    if name in _ELEMENTWISE:
        return outputs, [_kept(outputs[0], arguments, marks)]
    moved: Sequence[int]
    if name == "select_n":
        moved = range(1, len(arguments))
    elif name in _MOVES:
        moved = _MOVES[name] or range(len(arguments))
    else:
        return outputs, [None] * len(outputs)
    if all(marks[i] is None for i in moved) or arguments[moved[0]].dtype != jnp.int32:
        return outputs, [None] * len(outputs)
    moves = [_marks_or_zeros(x, marks[i]) if i in moved else x for i, x in enumerate(arguments)]
    return outputs, _bind(equation, moves)


def _kept(output, arguments: _Values, marks: _Marks):
    """Returns the marks of the argument elements that equal the elements of the output."""
    kept = jnp.zeros(output.shape, jnp.int32)
    for x, mark in zip(arguments, marks):
        if mark is not None:
            kept = jnp.where((output == x) & (kept == 0), mark, kept)
    return kept


# --- functions, loops and branches ----------------------------------------------------------------


def _call(equation, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    settings = equation.params
    inner = settings["call_jaxpr"] if "call_jaxpr" in settings else settings["jaxpr"]
    closed = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
    return _run(closed, arguments, marks)


def _all_marks(arguments: _Values, marks: _Marks) -> list:
    return [_marks_or_zeros(x, mark) for x, mark in zip(arguments, marks)]


def _run_with_all_marks(closed, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    outputs, output_marks = _run(closed, arguments, marks)
    return outputs, _all_marks(outputs, output_marks)


def _scan(equation, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    settings = equation.params
    first = settings["num_consts"]
    end = settings["num_consts"] + settings["num_carry"]
    count = settings["num_carry"]
    marks = _all_marks(arguments, marks)

    def step(carry, x):
        (state, state_marks), (xs, xs_marks) = carry, x
        outputs, output_marks = _run_with_all_marks(
            settings["jaxpr"],
            [*arguments[:first], *state, *xs],
            [*marks[:first], *state_marks, *xs_marks],
        )
        return (outputs[:count], output_marks[:count]), (outputs[count:], output_marks[count:])

    carry = list(arguments[first:end]), marks[first:end]
    xs = list(arguments[end:]), marks[end:]
    ended, stacked = lax.scan(step, carry, xs, settings["length"], settings["reverse"])
    return [*ended[0], *stacked[0]], [*ended[1], *stacked[1]]


def _while(equation, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    settings = equation.params
    first = settings["cond_nconsts"]
    begin = first + settings["body_nconsts"]
    marks = _all_marks(arguments, marks)

    def condition(carry):
        state, state_marks = carry
        constants = arguments[:first]
        outputs, _ = _run(
            settings["cond_jaxpr"], [*constants, *state], [*marks[:first], *state_marks]
        )
        return outputs[0]

    def step(carry):
        state, state_marks = carry
        return _run_with_all_marks(
            settings["body_jaxpr"],
            [*arguments[first:begin], *state],
            [*marks[first:begin], *state_marks],
        )

    return lax.while_loop(condition, step, (list(arguments[begin:]), marks[begin:]))


def _branches(equation, arguments: _Values, marks: _Marks) -> tuple[list, list]:
    branches = [
        lambda arguments, own, closed=closed: _run_with_all_marks(closed, arguments, own)
        for closed in equation.params["branches"]
    ]
    return lax.switch(arguments[0], branches, list(arguments[1:]), _all_marks(arguments, marks)[1:])


_CONTROL: Mapping[str, Callable] = {
    **dict.fromkeys(("jit", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call"), _call),
    "cond": _branches,
    "scan": _scan,
    "while": _while,
}
