"""What the training scripts share; nothing of it ships in a bundle."""
