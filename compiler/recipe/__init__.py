"""Recipes: what of a transformer is quantised, and how."""
