"""Records the ranges that quantisation needs, on the trajectory that a stream really takes."""
