"""What is remembered takes no more than its room, and what was used least lately is forgotten first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from context_compiler.cache import Memo


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    memo: Memo[str, int] = Memo(2)
    memo.keep("a", 1)
    memo.keep("b", 2)
    assert memo.get("a") == 1
    memo.keep("c", 3)
    assert (memo.get("a"), memo.get("b"), memo.get("c")) == (1, None, 3)


def test_a_value_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    memo: Memo[str, str] = Memo(4, len)
    memo.keep("a", "aa")
    memo.keep("b", "bbbbb")
    assert (memo.get("a"), memo.get("b"), len(memo)) == ("aa", None, 1)


def test_a_replaced_value_is_weighed_alone() -> None:
    memo: Memo[str, str] = Memo(4, len)
    for _ in range(3):
        memo.keep("a", "aaa")
    memo.keep("b", "b")
    assert (memo.get("a"), memo.get("b")) == ("aaa", "b")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.text(max_size=6))))
def test_the_cache_never_exceeds_its_size(entries: list[tuple[str, str]]) -> None:
    memo: Memo[str, str] = Memo(8, len)
    for key, value in entries:
        memo.keep(key, value)
        assert memo.get(key) == value, "what was kept last is there"
        assert sum(len(memo.get(letter) or "") for letter in "abcd") <= 8


def test_taking_a_value_frees_its_size() -> None:
    memo: Memo[str, str] = Memo(4, len)
    memo.keep("a", "123")
    assert memo.take("a") == "123" and memo.take("a") is None
    memo.keep("b", "1234")
    memo.keep("c", "")
    assert (memo.get("b"), memo.get("c")) == ("1234", "")
