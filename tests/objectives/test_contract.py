"""Special ids must not be ids of text, and the package depends on no other package."""

import pathlib
import subprocess
import sys

import pytest

from pretrax import objectives
from pretrax.objectives import TokenIds, check_token_ids
from tests.refusals import refuses

ROOT = pathlib.Path(objectives.__path__[0]).parent
GOOD = TokenIds(
    size=20,
    text=(2, 10),
    mask=10,
    cls=11,
    sep=12,
    sentinels=(19, 18),
    modes=(("R", 13),),
    fim=(14,),
)


def test_distinct_ids_outside_the_text_are_accepted():
    assert check_token_ids(GOOD) is GOOD
    assert check_token_ids(GOOD._replace(bos=15)).bos == 15


def test_bos_may_equal_pad():
    assert check_token_ids(GOOD._replace(pad=0, bos=0)).bos == 0


@pytest.mark.parametrize(
    "change, values",
    [
        ({"mask": 0}, ["pad", "mask", 0]),
        ({"sentinels": (19, 19)}, ["sentinel 0", "sentinel 1", 19]),
        ({"modes": (("R", 19),)}, ["sentinel 0", "mode R", 19]),
        ({"fim": (11,)}, ["cls", "fim 0", 11]),
        ({"sentinels": (1,)}, ["eos", "sentinel 0", 1]),
        ({"mask": 5}, ["mask", 5, "[2, 10)"]),
        ({"sentinels": (2,)}, ["sentinel 0", 2, "[2, 10)"]),
        ({"sep": 20}, ["sep", 20, "0…19"]),
        ({"pad": -1}, ["pad", -1, "0…19"]),
        ({"text": (2, 21)}, ["0…20", "[2, 21)"]),
        ({"text": (5, 5)}, ["0…20", "[5, 5)"]),
    ],
)
def test_overlapping_or_out_of_range_ids_raise(change, values):
    with refuses(ValueError, *values):
        check_token_ids(GOOD._replace(**change))


@pytest.mark.slow
def test_importing_objectives_loads_no_data_or_config_library():
    program = (
        "import sys, pretrax.objectives\n"
        "own = {'pretrax.models', 'pretrax.tasks', 'pretrax.training'}\n"
        "print(sorted((own | {'tensorflow', 'seqio', 'flax', 'gin'}) & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
