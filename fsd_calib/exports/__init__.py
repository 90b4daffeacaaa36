"""A profile as the options of engines that have a lossy rule of their own.

`base.py` is what they have in common, and every other file is one engine: its versions, the scores that it has, what it
calls their T, and what it cannot be told. `engines.py` lists them.
"""
