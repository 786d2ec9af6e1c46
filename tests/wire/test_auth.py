"""Both ends of the handshake joined in memory, and what strangers may try."""

import hmac
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import HandshakeRefused
from monarch_async.wire import auth
from monarch_async.wire.auth import Agreed, Dialer, Listener, refusal

TOKEN = b"a cluster token"
NONCE_D, NONCE_L = b"d" * 32, b"l" * 32
STREAM_D, STREAM_L = b"frames of the dialer", b"frames of the listener"


def dialer(token=TOKEN, nonce=NONCE_D, info=b"I am D"):
    return Dialer(token, nonce, info)


def listener(token=TOKEN, nonce=NONCE_L, info=b"I am L"):
    return Listener(token, nonce, info)


def refused(end, data):
    with pytest.raises(HandshakeRefused) as caught:
        end.receive(data)
    return caught.value.reason, caught.value.side


def feed(end, data, cuts):
    """Feed ``data`` cut at the given places; return all that was answered and the result."""
    places = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    sent, result = b"", None
    for i, (start, stop) in enumerate(pairwise(places)):
        piece = data[start:stop]
        answer, agreed = end.receive(piece)
        sent += answer
        if agreed is not None:
            rest = b"".join(data[a:b] for a, b in pairwise(places[i + 1 :]))
            result = Agreed(agreed.info, agreed.leftover + rest)
            break
    return sent, result


CUTS = st.lists(st.integers(0, 1 << 17), max_size=8)


@given(st.binary(max_size=300), st.binary(max_size=300), CUTS, CUTS, CUTS)
def test_both_ends_agree_under_any_split_and_keep_what_follows(info_d, info_l, cuts1, cuts2, cuts3):
    d, li = dialer(info=info_d), listener(info=info_l)
    hello = d.start()
    challenge, result = feed(li, hello, cuts1)
    assert result is None
    proof, result = feed(d, challenge, cuts2)
    assert result is None
    welcome, at_listener = feed(li, proof + STREAM_D, cuts3)
    _, at_dialer = feed(d, welcome + STREAM_L, cuts1)
    assert at_listener == Agreed(info_d, STREAM_D)
    assert at_dialer == Agreed(info_l, STREAM_L)


def test_one_byte_at_a_time():
    d, li = dialer(info=b"x" * 100), listener()
    to_listener, results = d.start(), []
    while len(results) < 2:
        to_dialer = b""
        for i in range(len(to_listener)):
            answer, agreed = li.receive(to_listener[i : i + 1])
            to_dialer += answer
            results += [agreed] if agreed else []
        to_listener = b""
        for i in range(len(to_dialer)):
            answer, agreed = d.receive(to_dialer[i : i + 1])
            to_listener += answer
            results += [agreed] if agreed else []
    assert results == [Agreed(b"x" * 100, b""), Agreed(b"I am L", b"")]


def test_the_messages_are_laid_out_as_the_docstring_says():
    def message(kind, body):
        return b"\x93mnrch\r\n" + struct.pack("!HBI", 1, kind, len(body)) + body

    def mac(domain, *messages):
        return hmac.digest(TOKEN, domain + b"".join(messages), "sha256")

    d, li = dialer(), listener()
    hello, challenge = message(1, NONCE_D), message(2, NONCE_L)
    assert d.start() == hello
    assert li.receive(hello)[0] == challenge
    unsigned = message(3, b"I am D" + bytes(32))[:-32]
    proof = unsigned + mac(b"monarch_async dialer", hello, challenge, unsigned)
    assert d.receive(challenge)[0] == proof
    unsigned = message(4, b"I am L" + bytes(32))[:-32]
    welcome = unsigned + mac(b"monarch_async listener", hello, challenge, proof, unsigned)
    assert li.receive(proof)[0] == welcome
    assert refusal("no") == message(5, b"no")


def test_info_of_the_listener_may_depend_on_the_dialer():
    d, li = dialer(info=b"link 7"), listener(info=lambda peer: b"you said " + peer)
    welcome, _ = li.receive(d.receive(li.receive(d.start())[0])[0])
    assert d.receive(welcome) == (b"", Agreed(b"you said link 7", b""))


def test_the_listener_may_refuse_an_authenticated_dialer_with_any_reason():
    def refuse(peer):
        raise HandshakeRefused(f"no such link: {peer.decode()}")

    d, li = dialer(info=b"link 7"), listener(info=refuse)
    proof, _ = d.receive(li.receive(d.start())[0])
    reason, side = refused(li, proof)
    assert (reason, side) == ("no such link: link 7", "local")
    assert refused(d, refusal(reason)) == (reason, "remote")


def test_info_of_a_stranger_reaches_nobody():
    seen = []
    d, li = dialer(token=b"guess"), listener(info=lambda peer: seen.append(peer) or b"")
    proof, _ = d.receive(li.receive(d.start())[0])
    assert refused(li, proof) == (auth.WRONG_TOKEN, "local")
    assert seen == []


def test_largest_info_passes_and_a_larger_one_is_a_local_error():
    big = b"i" * auth.MAX_INFO
    d, li = dialer(info=big), listener(info=big)
    welcome, agreed = li.receive(d.receive(li.receive(d.start())[0])[0])
    assert agreed == Agreed(big, b"")
    assert d.receive(welcome) == (b"", agreed)
    with pytest.raises(ValueError, match="65537 bytes is over the limit of 65536"):
        dialer(info=big + b"i")
    with pytest.raises(ValueError, match="over the limit"):
        listener(info=big + b"i")


def test_an_empty_token_is_a_local_error():
    with pytest.raises(ValueError, match="token is empty"):
        dialer(token=b"")


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"S", b"\x93mnrch\n", b"\0" * 99]
)
@pytest.mark.parametrize("end", [dialer, listener])
def test_garbage_is_refused_at_its_first_wrong_byte(garbage, end):
    end = end()
    if isinstance(end, Dialer):
        end.start()
    assert refused(end, garbage) == ("not a monarch_async peer", "local")


@pytest.mark.parametrize("record", [b"\x16\x03\x01", b"\x15\x03\x03\0\x02\x02\x46"])
@pytest.mark.parametrize("end", [dialer, listener])
def test_tls_from_the_other_end_is_called_that(record, end):
    end = end()
    if isinstance(end, Dialer):
        end.start()
    assert refused(end, record) == (auth.SPEAKS_TLS, "local")


def test_who_is_turned_away_is_told_why():
    reason, side = refused(auth.TurnedAway("another door"), dialer().start())
    assert (reason, side) == ("another door", "local")
    end = dialer()
    end.start()
    assert refused(end, auth.refusal(reason)) == ("another door", "remote")


def other_version(message, version=7):
    return message[:8] + struct.pack("!H", version) + message[10:]


def test_another_version_is_refused_in_the_same_words_at_both_ends():
    d = dialer()
    reason, side = refused(listener(), other_version(d.start()))
    assert (reason, side) == ("wrong version: dialer speaks 7, listener speaks 1", "local")
    # the refusal itself comes from another version, and is still read
    assert refused(d, other_version(refusal(reason))) == (reason, "remote")

    d = dialer()
    challenge, _ = listener().receive(d.start())
    assert refused(d, other_version(challenge))[0] == "wrong version: dialer speaks 1, listener speaks 7"


def test_a_listener_without_the_token_is_refused_by_the_dialer():
    class Impostor(Listener):
        def _next_body(self):
            self._token = TOKEN  # accepts any proof, as if the MAC had not been checked
            body = super()._next_body()
            self._token = b"guess"
            return body

    d, li = dialer(), Impostor(b"guess", NONCE_L, b"I am L")
    welcome, agreed = li.receive(d.receive(li.receive(d.start())[0])[0])
    assert agreed is not None
    assert refused(d, welcome) == (auth.WRONG_TOKEN, "local")


def test_messages_of_the_dialer_reflected_to_it_are_refused():
    d = dialer()
    hello = d.start()
    assert refused(d, hello) == (auth.NOT_A_PEER, "local")

    d = dialer()
    proof, _ = d.receive(listener().receive(d.start())[0])
    assert refused(d, proof) == (auth.NOT_A_PEER, "local")


def as_kind(message, kind):
    return message[:10] + bytes([kind]) + message[11:]


def test_messages_reflected_under_another_kind_are_refused():
    d = dialer()
    assert refused(d, as_kind(d.start(), auth.CHALLENGE)) == (auth.NOT_A_PEER, "local")

    d = dialer()
    proof, _ = d.receive(listener().receive(d.start())[0])
    assert refused(d, as_kind(proof, auth.WELCOME)) == (auth.WRONG_TOKEN, "local")


def test_a_recorded_proof_fails_against_a_fresh_nonce():
    d, li = dialer(), listener()
    hello = d.start()
    proof, _ = d.receive(li.receive(hello)[0])
    assert li.receive(proof)[1] is not None
    again = listener(nonce=b"m" * 32)
    again.receive(hello)
    assert refused(again, proof) == (auth.WRONG_TOKEN, "local")


def test_a_recorded_welcome_fails_against_a_fresh_nonce():
    d, li = dialer(), listener()
    challenge, _ = li.receive(d.start())
    welcome, _ = li.receive(d.receive(challenge)[0])
    again = dialer(nonce=b"e" * 32)
    again.start()
    again.receive(challenge)
    assert refused(again, welcome) == (auth.WRONG_TOKEN, "local")


@given(st.data())
def test_any_changed_bit_is_refused_by_one_of_the_ends(data):
    """Every bit of all four messages matters: no end agrees after a change that could reach it."""
    d, li = dialer(), listener()
    which = data.draw(st.integers(0, 3))

    def pass_on(number, message):
        if number != which:
            return message
        bit = data.draw(st.integers(0, len(message) * 8 - 1))
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    try:
        challenge, _ = li.receive(pass_on(0, d.start()))
        proof, _ = d.receive(pass_on(1, challenge))
        welcome, at_listener = li.receive(pass_on(2, proof))
        _, at_dialer = d.receive(pass_on(3, welcome))
    except HandshakeRefused:
        return
    # not refused: a larger length made an end wait for more, which its caller's deadline ends
    assert at_dialer is None
    assert at_listener is None or which == 3


@pytest.mark.parametrize("size", [0, 31, 33, 1 << 31])
def test_a_hello_of_another_length_is_refused(size):
    header = auth.MAGIC + struct.pack("!HBI", auth.VERSION, auth.HELLO, size)
    assert refused(listener(), header) == (auth.NOT_A_PEER, "local")


def test_an_over_long_proof_is_refused_at_its_header():
    d, li = dialer(), listener()
    li.receive(d.start())
    header = auth.MAGIC + struct.pack("!HBI", auth.VERSION, auth.PROOF, 32 + auth.MAX_INFO + 1)
    assert refused(li, header) == (auth.NOT_A_PEER, "local")


def test_the_buffer_is_bounded():
    d, li = dialer(), listener()
    li.receive(d.start())
    size = 32 + auth.MAX_INFO
    li.receive(auth.MAGIC + struct.pack("!HBI", auth.VERSION, auth.PROOF, size))
    for _ in range(size - 1):
        li.receive(b"?")
    assert len(li._buffer) == 15 + size - 1
    assert refused(li, b"?" * 1000) == (auth.WRONG_TOKEN, "local")


@given(st.binary(max_size=200), CUTS)
def test_arbitrary_input_never_agrees_nor_fails_otherwise(data, cuts):
    for end in (dialer(), listener()):
        if isinstance(end, Dialer):
            end.start()
        for prefix in (b"", auth.MAGIC, auth.MAGIC + b"\0\1"):
            try:
                assert feed(end, prefix + data, cuts)[1] is None
            except HandshakeRefused:
                break


def test_a_refusal_is_short_and_safe_to_log():
    reason, side = refused(dialer(), refusal("no\n\x1b[31mway"))
    assert (reason, side) == ("no??[31mway", "remote")
    assert len(refused(dialer(), refusal("é" * 9999))[0]) <= auth.MAX_REASON
    header = auth.MAGIC + struct.pack("!HBI", auth.VERSION, auth.REFUSAL, auth.MAX_REASON + 1)
    assert refused(dialer(), header) == (auth.NOT_A_PEER, "local")


def test_handshake_length_finds_the_end_of_either_side():
    d, li = dialer(info=b"x" * 50), listener()
    hello = d.start()
    challenge, _ = li.receive(hello)
    proof, _ = d.receive(challenge)
    welcome, _ = li.receive(proof)
    for stream in (hello + proof, challenge + welcome, hello + refusal("no")):
        for known in range(len(stream) + 3):
            length = auth.handshake_length((stream + b"...")[:known])
            assert length in (None, len(stream))
            assert length is not None or known < len(stream)
