"""What a socket does to a protocol that gives it a buffer."""


def receive(protocol, data):
    """Let bytes come in pieces, as large as the protocol's buffer."""
    while data:
        room = protocol.get_buffer(-1)
        size = min(len(room), len(data))
        room[:size] = data[:size]
        room.release()
        protocol.buffer_updated(size)
        data = data[size:]
