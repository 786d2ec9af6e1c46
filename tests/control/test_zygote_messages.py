import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.control.zygote_messages import (
    Decoder,
    End,
    Exited,
    Failed,
    Fork,
    Order,
    Ready,
    Refused,
    Report,
    Signal,
    Started,
    encode,
)

MESSAGES: list[Order | Report] = [
    Fork({"id": 2**32, "env": {"A": "not utf-8: \udcff"}, "sys_path": ["/x"]}),
    Signal(1, 9),
    End(),
    Ready(1, 0.5),
    Failed("no ✓"),
    Started(3, 4),
    Refused(3, ""),
    Exited(3, 4, 9),
]


@given(st.lists(st.sampled_from(MESSAGES)), st.data())
def test_any_split_of_the_bytes_gives_the_messages(
    messages: list[Order | Report], data: st.DataObject
) -> None:
    stream = b"".join(map(encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = Decoder()
    got = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:stop])
    assert got == messages


@pytest.mark.parametrize("message", MESSAGES)
def test_each_message_survives(message: Order | Report) -> None:
    assert Decoder().feed(encode(message)) == [message]
