"""``svip-bench serve``: rules on a serving engine, by the number of clients that ask at once."""
