"""Pictures of attention patterns, compared with the dense mask."""

import numpy as np
import pytest

from pretrax.visualization.picture import AttentionPattern
from pretrax.visualization.picture_page import rectangles
from pretrax.visualization.terminal import half_blocks, pixels

CAUSAL = AttentionPattern(
    "decoder", "", 4, starts=[0, 0, 0, 0], ends=[1, 2, 3, 4], documents=[1] * 4
)
PACKED = AttentionPattern(
    "encoder", "", 4, starts=[0, 0, 2, 2], ends=[2, 2, 4, 4], documents=[1, 1, 2, 2]
)
CROSS = AttentionPattern("cross", "", 7, starts=[0, 0, 3], ends=[3, 3, 7], documents=[1, 1, 2])
BACKWARDS = AttentionPattern("decoder", "", 4, starts=[2, 0], ends=[4, 2], documents=[1, 1])
ALL = (CAUSAL, PACKED, CROSS, BACKWARDS)


def dense(attention):
    key = np.arange(attention.keys)
    return (key >= np.c_[attention.starts]) & (key < np.c_[attention.ends])


@pytest.mark.parametrize("attention", ALL, ids=("causal", "packed", "cross", "backwards"))
def test_large_picture_equals_the_mask(attention):
    share, documents = pixels(attention, 16)
    np.testing.assert_array_equal(share, dense(attention))
    np.testing.assert_array_equal(documents, attention.documents)


@pytest.mark.parametrize("attention", ALL, ids=("causal", "packed", "cross", "backwards"))
def test_rectangles_cover_each_attended_pair_once(attention):
    painted = np.zeros(dense(attention).shape, int)
    for x, y, width, height, _ in rectangles(attention):
        painted[y : y + height, x : x + width] += 1
    np.testing.assert_array_equal(painted, dense(attention))
    assert len(rectangles(PACKED)) == 2


def test_small_picture_keeps_the_share_of_attended_pairs():
    n = 100
    attention = AttentionPattern("decoder", "", n, [0] * n, list(range(1, n + 1)), [1] * n)
    share, _ = pixels(attention, 10)
    assert share.shape == (10, 10)
    assert share.mean() == pytest.approx(dense(attention).mean())
    assert share[3, 2] == 1 and share[3, 4] == 0 and 0 < share[3, 3] < 1


def test_both_directions_have_the_same_scale():
    share, _ = pixels(CROSS, 4)
    assert share.shape == (2, 4)


def test_half_blocks_draw_two_rows_per_line():
    drawn = half_blocks(*pixels(CAUSAL, 8))
    assert drawn.plain == "█▄  \n███▄"
    assert half_blocks(*pixels(CROSS, 8)).plain == "███    \n   ▀▀▀▀"
