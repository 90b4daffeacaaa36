"""The decoding loop: draft, verify, accept, emit, refill."""
