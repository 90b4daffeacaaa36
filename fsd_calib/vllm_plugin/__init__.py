"""FSD inside vLLM: a plugin by which vLLM serves at the threshold of a profile.

`plugin.py` is what vLLM loads. It acts on engines whose --additional-config names a profile: `start.py` checks the
profile against the engine and chooses a worker (`worker.py`), in which `serving.py` keeps the drafts' logits and makes
vLLM's own rejection sampler accept by divergence, too. Only files of this folder import vLLM.
"""

KEY = "fsd"
"""The entry of --additional-config that holds the plugin's settings."""
