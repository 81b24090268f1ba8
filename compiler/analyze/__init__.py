"""What groups of layers do to the video in 8 bits, what time they save, and which to choose."""
