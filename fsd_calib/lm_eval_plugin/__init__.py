"""The model `fsd` of lm-evaluation-harness: our decoder, which follows a profile or a rule and threshold.

`lm_eval --model fsd` finds it by an entry point, which versions after 0.4.13 read; with any version
`python -m fsd_calib.lm_eval_plugin --model fsd` is the same command.
"""
