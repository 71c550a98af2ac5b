"""Pictures drawn by matplotlib: the kinds of `gcprof plot`, a step's timeline and the curves of plans."""
