"""Stand-ins for servers, for tests of what asks them."""
