"""How the embedded drafters were trained: ``python -m svip_adapters.evaluation.train --help``.

Three steps: ``generate`` lets the target write answers to made-up prompts, ``states`` stores what the
target computed on them, ``chain`` trains the drafter on those states. The first two go on where they were
stopped; ``chain`` starts again. No benchmark prompt is used anywhere in here.
"""
