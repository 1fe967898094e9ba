//! QUIC transport: identities, framing, transfers.
