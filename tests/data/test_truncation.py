import pytest

from hone.data.truncation import check_truncation, cut
from hone.errors import UserError


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("length", range(10))
def test_each_side_keeps_the_tokens_it_names(length, limit):
    ids = list(range(length))
    if length <= limit:
        assert all(cut(ids, limit, side) == ids for side in ("left", "right", "middle"))
        return
    assert cut(ids, limit, "left") == [i for i in ids if i >= length - limit]
    assert cut(ids, limit, "right") == [i for i in ids if i < limit]
    head, tail = limit // 2, limit - limit // 2
    assert cut(ids, limit, "middle") == [i for i in ids if i < head or i >= length - tail]


def test_an_unknown_truncation_lists_the_known_ones():
    with pytest.raises(UserError, match=r"data\.truncation=centre.*error, left, right, middle"):
        check_truncation("centre")
