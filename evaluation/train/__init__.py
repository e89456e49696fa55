"""How the embedded drafters were trained: ``python -m svip_adapters.evaluation.train --help``.

Three steps, each re-runnable and each going on where it was stopped: ``generate`` lets the target write
answers to made-up prompts, ``states`` stores what the target computed on them, ``chain`` trains the
drafter on those states. No benchmark prompt is used anywhere in here.
"""
