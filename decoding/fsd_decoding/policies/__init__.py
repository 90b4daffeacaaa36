"""Policies: stop policies end drafts early, threshold policies move T."""
