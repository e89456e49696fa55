"""Record once what a draft would propose, then replay any rule: exact counts, modelled time, the oracle.

``nodes.py`` and ``trace.py``: what is recorded, in memory and on disk. ``recording.py``: driving a host.
``sampled_recorder.py``, ``sampling.py``: the same of a text that was sampled, where acceptance is chance.
``steps.py``: recorded signals as a rule sees them. ``chains.py``, ``trees.py``: a rule's rounds.
``costs.py``, ``calibrate.py``: from counts to seconds. ``oracle.py``: the best with hindsight.
``table.py``, ``tune.py``, ``cli.py``: what a user gets.
"""
