"""How fast a bundle is: measured block by block, against baselines and stored results."""
