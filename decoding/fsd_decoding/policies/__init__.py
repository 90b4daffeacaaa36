"""Policies of decoding: threshold policies set T, stop policies end drafts early."""
