"""Evaluation: does a length policy pay? One driver for every host, policy and prompt set (``svip-bench``)."""
