import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.control.log_lines import LineFold, LineSplitter

TEXT = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", "é€😀".encode(), b"\xff\x80", b"x" * 9])
).map(b"".join)


def split(data: bytes, max_line: int = 64 << 10, *, at: tuple[int, ...] = ()) -> list[bytes]:
    splitter = LineSplitter(max_line)
    lines = []
    for start, stop in zip((0, *at), (*at, len(data)), strict=True):
        lines += splitter.feed(data[start:stop])
    return lines + splitter.close()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\n\nthree", [b"one", b"", b"three"]),
        (b"dos\r\n\r\nline\r\n", [b"dos", b"", b"line"]),
        (b"twice\r\r\n", [b"twice"]),
        (b"\r 10%\r 20%\r100%\ndone\n", [b" 10%", b" 20%", b"100%", b"done"]),
        (b"\r 10%\r\r 20%\r", [b" 10%", b" 20%"]),
        (b"\r\r", []),
        (b"0123456789\n", [b"01234567", b"89"]),
        (b"01234567\n", [b"01234567"]),
        ("1234567é9\n".encode(), [b"1234567", "é9".encode()]),
        ("12345😀".encode(), [b"12345", "😀".encode()]),
        (b"\x80" * 10, [b"\x80" * 8, b"\x80" * 2]),
    ],
)
def test_lines(data: bytes, lines: list[bytes]) -> None:
    assert split(data, 8) == lines


@given(TEXT, st.data())
def test_how_the_bytes_were_split_never_shows(data: bytes, draw: st.DataObject) -> None:
    at = tuple(sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=5))))
    assert split(data, 8, at=at) == split(data, 8)


@given(TEXT)
def test_nothing_but_line_ends_is_lost_and_no_line_is_too_long(data: bytes) -> None:
    lines = split(data, 8)
    assert b"".join(lines) == data.replace(b"\r", b"").replace(b"\n", b"")
    assert all(len(line) <= 8 and b"\r" not in line and b"\n" not in line for line in lines)


@given(st.text(alphabet="aé€😀"))
def test_no_character_is_cut_in_two(text: str) -> None:
    assert "".join(line.decode() for line in split(text.encode(), 5)) == text


def test_a_line_is_out_as_soon_as_its_end_is_in() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"ready") == []
    assert splitter.feed(b"\n") == [b"ready"]
    assert splitter.feed(b"50%\r") == []
    assert splitter.feed(b"60%") == [b"50%"]
    assert splitter.close() == [b"60%"]
    assert splitter.close() == []


def test_a_limit_below_one_character_is_refused() -> None:
    with pytest.raises(ValueError, match="max_line is 3"):
        LineSplitter(3)


def test_fold() -> None:
    fold = LineFold()
    assert fold.feed([b"a", b"a", b"a", b"b", b"b", b"a"]) == [
        b"a",
        b"... (repeated 2 times)",
        b"b",
        b"b",
        b"a",
    ]
    assert fold.feed([b"a", b"a", b"a"]) == []
    assert fold.flush() == [b"... (repeated 3 times)"]
    assert fold.flush() == []
    assert fold.feed([b"a"]) == []  # the run goes on
    assert fold.feed([b"c"]) == [b"a", b"c"]


@given(st.lists(st.lists(st.sampled_from([b"a", b"b"]))))
def test_folding_can_be_undone(batches: list[list[bytes]]) -> None:
    fold = LineFold()
    shown = [line for batch in batches for line in (*fold.feed(batch), *fold.flush())]
    lines: list[bytes] = []
    for line in shown:
        count = int(line.split()[2]) if line.startswith(b"...") else 0
        lines += [lines[-1]] * count if count else [line]
    assert lines == [line for batch in batches for line in batch]
