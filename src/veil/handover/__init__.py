"""Handing over: a finished run read back, and its model in the formats of other programs, with its certificate."""
