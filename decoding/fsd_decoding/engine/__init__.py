"""The decoding loop and the phases of its rounds: draft, verify, accept, emit, refill."""
