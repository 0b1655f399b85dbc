"""What is wrong with an installation, and how to mend it.

`look_…` asks a server and decides nothing; `judge_…` decides and asks nobody; `examine` does it all.
"""
